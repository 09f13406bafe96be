"""RLlib's PPO. Its clock: the return of `Algorithm.train`, one update."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers.programs.clock import WINDOW, Clock, read_task


def config(task: SimpleNamespace) -> Any:
    """Return the config for a work; for the goal, that of its own example."""
    base = PPOConfig().environment("CartPole-v1").debugging(seed=task.seed, log_level="ERROR")
    base = base.reporting(metrics_num_episodes_for_smoothing=WINDOW)
    if task.goal is not None:
        model = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
        return base.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(model_config=model)
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        base.env_runners(
            num_env_runners=task.workers,
            num_envs_per_env_runner=task.envs // task.workers,
            rollout_fragment_length=task.unroll_length,
        )
        .training(
            train_batch_size_per_learner=task.envs * task.unroll_length,
            minibatch_size=task.minibatch_size,
            num_epochs=task.epochs,
        )
        .rl_module(model_config=model)
    )


def main() -> None:
    task = read_task()
    clock = Clock(task)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=os.path.join(os.getcwd(), "r"))
    algorithm = config(task).build_algo()
    while not clock.enough:
        found = algorithm.train()["env_runners"]
        known = found.get("num_episodes_lifetime", 0) >= WINDOW
        clock.tick(found["num_env_steps_sampled_lifetime"], found.get("episode_return_mean") if known else None)
    ray.shutdown()


if __name__ == "__main__":
    main()
