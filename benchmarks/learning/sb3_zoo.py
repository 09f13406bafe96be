"""Trains Stable-Baselines3's PPO with the Zoo's settings, and evaluates it as `actor-learner evaluate` does.

Run by the interpreter of a venv with stable-baselines3: `python sb3_zoo.py ENV SEED STEPS EPISODES`; prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize


def linear(value: float) -> Any:
    return lambda remaining: remaining * value


SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "learning_rate": linear(1e-3),
        "clip_range": linear(0.2),
        "ent_coef": 0.0,
    },
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
}
"""Those of rl-baselines3-zoo, hyperparams/ppo.yml."""


def main() -> None:
    env, seed, steps, episodes = sys.argv[1], *map(int, sys.argv[2:])
    settings = dict(SETTINGS[env])
    torch.set_num_threads(1)
    envs: Any = make_vec_env(env, n_envs=settings.pop("envs"), seed=seed)
    normalize = settings.pop("normalize", False)
    if normalize:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    model = PPO("MlpPolicy", envs, device="cpu", seed=seed, **settings).learn(steps)
    played: Any = make_vec_env(env, n_envs=1, seed=1000)
    if normalize:
        played = VecNormalize(played, training=False, norm_reward=False)
        played.obs_rms = envs.obs_rms
    mean, std = evaluate_policy(model, played, n_eval_episodes=episodes, deterministic=True)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    found = {"return_mean": mean, "return_std": std, "training_return": sum(returns) / len(returns)}
    print(json.dumps({**found, "env_steps": model.num_timesteps}))


if __name__ == "__main__":
    main()
