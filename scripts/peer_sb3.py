"""One training run of SB3 or SBX, for `compare_sb3.py`; prints env steps per second. Runs in the peers' venv."""

from __future__ import annotations

import json
import sys
import time

import ale_py
import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


class Clock(BaseCallback):
    """Notes the time at which each rollout starts, which is when the update before it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []

    def _on_rollout_start(self) -> None:
        self.starts.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def _make_atari(work: dict[str, object]) -> VecFrameStack:
    """Four stacked frames of 84 x 84 behind SB3's wrappers, clipped rewards included."""
    gym.register_envs(ale_py)
    return VecFrameStack(make_atari_env(work["peer_env"], n_envs=work["envs"]), n_stack=4)


def main(peer: str, work: dict[str, object], threads: int) -> None:
    """Trains for `work["updates"][0]` updates; the first isn't counted."""
    if peer == "sb3":
        import torch
        from stable_baselines3 import PPO

        torch.set_num_threads(threads)
    else:
        from sbx import PPO

    batch = work["envs"] * work["unroll"]
    images = str(work["env"]).startswith("ALE/")
    model = PPO(
        "CnnPolicy" if images else "MlpPolicy",
        _make_atari(work) if images else make_vec_env(work["env"], n_envs=work["envs"]),
        n_steps=work["unroll"],
        batch_size=work["minibatch"],
        n_epochs=work["epochs"],
        device="cpu",
        seed=0,
    )
    clock = Clock()
    updates = work["updates"][0]
    model.learn(batch * updates, callback=clock)
    ended = time.perf_counter()
    print(batch * (updates - 1) / (ended - clock.starts[1]))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
