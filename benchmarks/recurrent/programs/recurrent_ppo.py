"""SB3-contrib's RecurrentPPO, the same work: `python -m benchmarks.recurrent.programs.recurrent_ppo run JSON`.

Run by the interpreter of a venv with sb3-contrib; prints JSON. Times are CPU seconds of this process, on one thread.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


class NoVelocity(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


class Clock(BaseCallback):
    """Notes the CPU time at which each rollout begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []
        self.ended: list[float] = []

    def _on_rollout_start(self) -> None:
        self.begun.append(time.process_time())

    def _on_rollout_end(self) -> None:
        self.ended.append(time.process_time())

    def _on_step(self) -> bool:
        return True


def run(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of an env step and of an update, from the fourth batch on."""
    rows = task.envs * task.steps
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([NoVelocity] * task.envs),
        n_steps=task.steps,
        batch_size=task.minibatch_size,
        n_epochs=task.epochs,
        learning_rate=1e-3,
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": task.units,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": {"pi": [64], "vf": [64]},
        },
    )
    clock = Clock()
    model.learn((3 + task.batches + 1) * rows, callback=clock)
    updates = [after - before for before, after in zip(clock.ended[3:], clock.begun[4:], strict=False)]
    batches = len(clock.begun) - 4
    total = clock.begun[-1] - clock.begun[3]
    return {"env_step": total / (batches * rows), "update": sum(updates[:batches]) / batches}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"run": run}[sys.argv[1]](SimpleNamespace(**json.loads(sys.argv[2])))))
