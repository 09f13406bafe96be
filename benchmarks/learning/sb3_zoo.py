"""Trains SB3's PPO or SAC, or SBX's SAC, TQC or CrossQ, with the Zoo's settings, and evaluates the policy.

The evaluation is that of `actor-learner evaluate`. Environments without velocities are learned by SB3-contrib's
RecurrentPPO. SAC, TQC and CrossQ learn on one environment. Run by the interpreter of a venv with all of them:
`python -m benchmarks.learning.sb3_zoo LIBRARY ALGORITHM ENV SEED STEPS EPISODES`; prints JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from actor_learner.runs.recorded_config import algorithm_title
from envs import velocity


def settings_of(algorithm: str, env: str) -> dict[str, Any]:
    """Return the Zoo's settings, with its schedules, and layers in place of their names."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))[algorithm]
    settings = dict(tables[env if algorithm == "ppo" else "all"])
    for name, value in settings.items():
        if isinstance(value, str) and value.startswith("lin_"):
            settings[name] = linear(float(value.removeprefix("lin_")))
    policy = settings.get("policy_kwargs", {})
    if "activation_fn" in policy:
        policy["activation_fn"] = getattr(torch.nn, policy["activation_fn"])
    return settings


def linear(value: float) -> Any:
    return lambda remaining: remaining * value


def make_env(env: str, without_velocity: str | None) -> Any:
    """Return the id, or a function that makes the environment without velocities."""
    if without_velocity is None:
        return env
    limit = gym.spec(without_velocity).max_episode_steps
    assert limit is not None
    return lambda: gym.wrappers.TimeLimit(velocity.make(without_velocity), limit)


def main() -> None:
    library, algorithm, env = sys.argv[1:4]
    seed, steps, episodes = map(int, sys.argv[4:])
    settings = settings_of(algorithm, env)
    torch.set_num_threads(1)
    without_velocity = settings.pop("without_velocity", None)
    made = make_env(env, without_velocity)
    envs: Any = make_vec_env(made, n_envs=settings.pop("envs"), seed=seed)
    normalize = settings.pop("normalize", False)
    if normalize:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    kind: Any = PPO if without_velocity is None else RecurrentPPO
    if algorithm != "ppo":
        module = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
        kind = getattr(module, algorithm_title(algorithm))
    policy = "MlpPolicy" if without_velocity is None else "MlpLstmPolicy"
    model: Any = kind(policy, envs, device="cpu", seed=seed, **settings).learn(steps)
    played: Any = make_vec_env(made, n_envs=1, seed=1000)
    if normalize:
        played = VecNormalize(played, training=False, norm_reward=False)
        played.obs_rms = envs.obs_rms
    mean, std = evaluate_policy(model, played, n_eval_episodes=episodes, deterministic=True)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    found = {"return_mean": mean, "return_std": std, "training_return": sum(returns) / len(returns)}
    print(json.dumps({**found, "env_steps": model.num_timesteps}))


if __name__ == "__main__":
    main()
