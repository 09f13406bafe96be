"""Algorithms: frozen hyperparameters, a method that makes targets, and a pure loss."""

from __future__ import annotations

from actor_learner.algorithms.a2c import A2C
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.ppo import PPO

__all__ = ["A2C", "PPO", "Algorithm"]

BY_NAME: dict[str, type[Algorithm]] = {"a2c": A2C, "ppo": PPO}
