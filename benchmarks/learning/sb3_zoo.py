"""Trains Stable-Baselines3's PPO or SAC with the Zoo's settings, and evaluates it as `actor-learner evaluate` does.

Environments without velocities are learned by SB3-contrib's RecurrentPPO. SAC is SB3's or SBX's, on one environment.
Run by the interpreter of a venv with all of them: `python -m benchmarks.learning.sb3_zoo LIBRARY ALGORITHM ENV SEED
STEPS EPISODES`; prints JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import gymnasium as gym
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from envs import velocity


def linear(value: float) -> Any:
    return lambda remaining: remaining * value


def recurrent(env: str, units: int = 64, **policy: Any) -> dict[str, Any]:
    policy |= {"ortho_init": False, "activation_fn": torch.nn.ReLU, "lstm_hidden_size": units}
    policy |= {"enable_critic_lstm": True, "net_arch": {"pi": [64], "vf": [64]}}
    return {"without_velocity": env, "normalize": True, "policy_kwargs": policy}


CART_POLE: dict[str, Any] = {
    "envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "learning_rate": linear(1e-3),
    "clip_range": linear(0.2),
    "ent_coef": 0.0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": CART_POLE,
    "LunarLander-v3": {
        "envs": 16,
        "n_steps": 1024,
        "batch_size": 64,
        "n_epochs": 4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "ent_coef": 0.01,
    },
    "HalfCheetah-v5": {
        "envs": 1,
        "n_steps": 512,
        "batch_size": 64,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "learning_rate": 2.0633e-05,
        "clip_range": 0.1,
        "ent_coef": 0.000401762,
        "vf_coef": 0.58096,
        "max_grad_norm": 0.8,
        "normalize": True,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    },
    "actor_learner/CartPoleNoVelocity-v0": {**recurrent("CartPole-v1"), **CART_POLE},
    "actor_learner/PendulumNoVelocity-v0": {
        **recurrent("Pendulum-v1"),
        "envs": 4,
        "n_steps": 1024,
        "gamma": 0.9,
        "learning_rate": 1e-3,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "actor_learner/MountainCarContinuousNoVelocity-v0": {
        **recurrent("MountainCarContinuous-v0", 32, log_std_init=0.0),
        "envs": 8,
        "n_steps": 1024,
        "batch_size": 256,
        "gamma": 0.9999,
        "gae_lambda": 0.9,
        "learning_rate": 7.77e-5,
        "clip_range": 0.1,
        "ent_coef": 0.00429,
        "vf_coef": 0.19,
        "max_grad_norm": 5,
        "use_sde": True,
        "sde_sample_freq": 8,
    },
    "actor_learner/LunarLanderNoVelocity-v0": {
        **recurrent("LunarLander-v3"),
        "envs": 32,
        "n_steps": 512,
        "n_epochs": 4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "ent_coef": 0.01,
    },
}
"""Those of rl-baselines3-zoo, hyperparams/ppo.yml and ppo_lstm.yml."""

SAC = {"envs": 1, "learning_starts": 10_000}
"""Those of hyperparams/sac.yml for the walkers: the library's own, but for the first steps."""


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
    settings = dict(SETTINGS[env] if algorithm == "ppo" else SAC)
    torch.set_num_threads(1)
    without_velocity = settings.pop("without_velocity", None)
    made = make_env(env, without_velocity)
    envs: Any = make_vec_env(made, n_envs=settings.pop("envs"), seed=seed)
    normalize = settings.pop("normalize", False)
    if normalize:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    kind: Any = PPO if without_velocity is None else RecurrentPPO
    if algorithm == "sac":
        kind = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library]).SAC
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
