"""Algorithms: frozen hyperparameters, the rows that an update learns from, and a pure loss."""

from __future__ import annotations

import dataclasses
from typing import Any

from actor_learner.algorithms.a2c import A2C
from actor_learner.algorithms.actor_critic import ActorCritic as ActorCritic
from actor_learner.algorithms.base import Algorithm as Algorithm
from actor_learner.algorithms.impala import Impala
from actor_learner.algorithms.off_policy.base import OffPolicy as OffPolicy
from actor_learner.algorithms.off_policy.bc import BC
from actor_learner.algorithms.off_policy.crossq import CrossQ
from actor_learner.algorithms.off_policy.dqn import DQN
from actor_learner.algorithms.off_policy.iql import IQL
from actor_learner.algorithms.off_policy.qrdqn import QRDQN
from actor_learner.algorithms.off_policy.sac import SAC
from actor_learner.algorithms.off_policy.td3 import TD3
from actor_learner.algorithms.off_policy.tqc import TQC
from actor_learner.algorithms.ppo import PPO
from actor_learner.algorithms.pqn import PQN

__all__ = ["A2C", "BC", "DQN", "IQL", "PPO", "PQN", "QRDQN", "SAC", "TD3", "TQC", "CrossQ", "Impala"]
__all__ += ["ActorCritic", "Algorithm", "OffPolicy", "from_json", "to_json"]

NAMES = sorted(__all__[:-5], key=str.lower)
"""The algorithms, which `actor_learner` has, too: all but the bases and functions for one's own."""

BY_NAME: dict[str, type[Algorithm | OffPolicy]] = {name.lower(): globals()[name] for name in NAMES}


def to_json(algorithm: Algorithm | OffPolicy) -> dict[str, Any] | None:
    """Return name and hyperparameters of an algorithm of this package; None if a file can't hold them all."""
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values.values())
    names = [name for name, cls in BY_NAME.items() if type(algorithm) is cls]
    return {"name": names[0], **values} if names and plain else None


def from_json(description: dict[str, Any] | None) -> Algorithm | OffPolicy:
    """Return the algorithm that `to_json` described. Raises ValueError for None."""
    if description is None:
        raise ValueError(
            "The saved learner's algorithm holds callables or objects, or isn't a class of this package; "
            "give it: Learner.load(directory, algorithm=...). Received: algorithm=None"
        )
    values = dict(description)
    return BY_NAME[values.pop("name")](**values)
