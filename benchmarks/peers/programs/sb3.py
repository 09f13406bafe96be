"""Stable-Baselines3, or SBX, its port to JAX. Their clock: the callback at the start of a rollout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from benchmarks.peers.programs.clock import Clock, read_task


class Ticks(BaseCallback):
    """Ticks when a rollout starts: the update before it has ended. Ends the training when the clock has enough."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._clock.tick(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._clock.enough


def algorithm(task: SimpleNamespace) -> Any:
    if task.peer == "sbx":
        from sbx import PPO
    else:
        import torch
        from stable_baselines3 import PPO

        torch.set_num_threads(task.threads)
    return PPO


def environments(task: SimpleNamespace) -> Any:
    """Make environments in this process, or on demand in workers. Pong: SB3's wrappers, clipped rewards, 4 frames."""
    kind = SubprocVecEnv if getattr(task, "processes", False) else DummyVecEnv
    if not task.env.startswith("ALE/"):
        return make_vec_env(task.env, n_envs=task.envs, vec_env_cls=kind)
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    without_skip = {**task.env_kwargs, "frameskip": 1}  # a wrapper skips
    return VecFrameStack(make_atari_env(task.env, n_envs=task.envs, env_kwargs=without_skip, vec_env_cls=kind), 4)


def make_model(task: SimpleNamespace) -> Any:
    """Return the model for a work; other settings are SB3's defaults."""
    settings = {"n_steps": task.unroll_length, "batch_size": task.minibatch_size, "n_epochs": task.epochs}
    settings["ent_coef"] = task.changes.get("ent_coef", 0.0)
    kind = "CnnPolicy" if task.env.startswith("ALE/") else "MlpPolicy"
    return algorithm(task)(kind, environments(task), device="cpu", seed=task.seed, **settings)


def main() -> None:
    task = read_task()
    make_model(task).learn(10**9, callback=Ticks(Clock(task)))


if __name__ == "__main__":
    main()
