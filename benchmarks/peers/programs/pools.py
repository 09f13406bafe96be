"""EnvPool's environments, and CleanRL's settings, for the two scripts in CleanRL's way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import envpool
import numpy as np

from benchmarks.peers.programs.clock import Clock

PPO = {
    "env": "CartPole-v1",
    "env_kwargs": {},
    "envs": 4,
    "unroll_length": 128,
    "minibatch_size": 128,
    "epochs": 4,
    "learning_rate": 2.5e-4,
    "ent_coef": 0.01,
    "updates": 500_000 // (4 * 128),
}
"""The settings of CleanRL's ppo.py, whose learning rate falls to 0 over the run."""


def own_task(task: SimpleNamespace) -> SimpleNamespace:
    """Add CleanRL's settings for the goal; for a work, as many updates as there is time for."""
    if task.goal is not None:
        return SimpleNamespace(**{**vars(task), **PPO})
    own = {"learning_rate": 3e-4, "ent_coef": task.changes.get("ent_coef", 0.0), "updates": 10**9}
    return SimpleNamespace(**{**vars(task), **own})


def make_pool(task: SimpleNamespace) -> Any:
    """Make a pool of a work's environments, with the task's threads."""
    options: dict[str, Any] = {"num_envs": task.envs, "num_threads": task.threads, "seed": task.seed}
    name = task.env.removeprefix("ALE/")
    if name != task.env:
        options |= {"reward_clip": True, **task.env_kwargs}
    return envpool.make(name, env_type="gymnasium", **options)


class Returns:
    """Adds rewards up, and passes each episode's sum to the clock."""

    def __init__(self, clock: Clock, envs: int) -> None:
        self._clock, self._sums = clock, np.zeros(envs)

    def add(self, rewards: Any, dones: Any) -> None:
        """Add one step of all environments."""
        self._sums += rewards
        if dones.any():
            for total in self._sums[dones]:
                self._clock.episode(total)
            self._sums[dones] = 0.0
