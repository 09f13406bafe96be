"""RLlib's PPO on PyTorch. Its clock: the end of each call of `train`, which collects a batch and learns from it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers.programs.clock import Clock, read_task


def config_of(task: SimpleNamespace) -> Any:
    """Return the settings for a work."""
    runners = {"num_env_runners": task.workers, "num_envs_per_env_runner": task.envs // max(1, task.workers)}
    training = {"train_batch_size_per_learner": task.envs * task.unroll_length, "num_epochs": task.epochs}
    return (
        PPOConfig()
        .environment(task.env)
        .env_runners(**runners, rollout_fragment_length=task.unroll_length)
        .training(**training, minibatch_size=task.minibatch_size)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=os.environ["TMPDIR"])
    algorithm, clock = config_of(task).debugging(seed=task.seed, log_level="ERROR").build_algo(), Clock(task)
    while not clock.enough:
        clock.tick(algorithm.train()["num_env_steps_sampled_lifetime"])


if __name__ == "__main__":
    main()
