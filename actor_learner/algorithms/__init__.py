"""Algorithms: frozen hyperparameters, the rows that an update learns from, and a pure loss."""

from __future__ import annotations

import dataclasses
from typing import Any

from actor_learner.algorithms.a2c import A2C
from actor_learner.algorithms.actor_critic import ActorCritic
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.impala import Impala
from actor_learner.algorithms.ppo import PPO

__all__ = ["A2C", "PPO", "ActorCritic", "Algorithm", "Impala", "from_json", "to_json"]

BY_NAME: dict[str, type[Algorithm]] = {"a2c": A2C, "impala": Impala, "ppo": PPO}


def to_json(algorithm: Algorithm) -> dict[str, Any] | None:
    """Return name and hyperparameters of an algorithm of this package; None if a file can't hold them all."""
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values.values())
    names = [name for name, cls in BY_NAME.items() if type(algorithm) is cls]
    return {"name": names[0], **values} if names and plain else None


def from_json(description: dict[str, Any] | None) -> Algorithm:
    """Return the algorithm that `to_json` described. Raises ValueError for None."""
    if description is None:
        raise ValueError(
            "The saved learner's algorithm holds callables or objects, or isn't a class of this package; "
            "give it: Learner.load(directory, algorithm=...). Received: algorithm=None"
        )
    values = dict(description)
    return BY_NAME[values.pop("name")](**values)
