"""The four works that everything is measured by: PPO with Stable-Baselines3's hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Work:
    """An environment, and the shape of the updates on it; `envs` x `unroll_length` env steps each."""

    env: str
    envs: int
    unroll_length: int
    minibatch_size: int
    epochs: int
    updates: int
    """Of ours in some seconds on two cores, after a first one that isn't counted."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What else differs from the defaults: fields of the algorithm or of `al.TrainConfig`."""

    @property
    def batch_size(self) -> int:
        """Env steps in an update."""
        return self.envs * self.unroll_length


WORKS: dict[str, Work] = {
    "cartpole": Work("CartPole-v1", 8, 2048, 64, 10, 24),
    "cartpole64": Work("CartPole-v1", 64, 32, 512, 4, 400),
    "halfcheetah": Work("HalfCheetah-v5", 8, 2048, 64, 10, 12),
    "pong": Work(
        *("ALE/Pong-v5", 8, 128, 256, 4, 6),
        env_kwargs={"repeat_action_probability": 0.0},
        changes={"clip_reward": "sign", "ent_coef": 0.01},
    ),
}
