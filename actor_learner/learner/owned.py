"""What an algorithm owns beside the network: models, variables and seeds, and an optimizer for each that it trains.

Of other variables that an update uses, `report` and `check_unchanged` tell: what becomes of them would be told nowhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from actor_learner.algorithms import optimizers
from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.fields import refusal

_REMEDY = "return it, or the model that it belongs to, from the algorithm's `models`"


class Owned:
    """The parts that `algorithm.models` returns. Make it on the learner's device.

    Attributes:
        parts: models, variables and seeds by name.
        optimizers: of parts with trainable variables, built; none with a replay buffer, where each is of a loss group.
    """

    def __init__(self, algorithm: Any, spaces: Spaces) -> None:
        kind = type(algorithm).__name__
        self.parts: dict[str, Any] = {}
        if type(algorithm).models is not Hyperparameters.models:
            if spaces.observation_space is None:
                raise refusal("observation_space", f"given for {kind}, which has models of its own", None)
            self.parts = dict(algorithm.models(spaces.observation_space, spaces.action_space))
        for name, part in self.parts.items():
            if not isinstance(part, (keras.Model, keras.Variable, keras.random.SeedGenerator)):
                expected = "models that are built, variables and keras.random.SeedGenerators"
                raise ValueError(f"`models` of {kind} must return {expected}. Received: {name}={part!r}")
            if isinstance(part, keras.Model) and not part.built:
                raise ValueError(f"`models` of {kind} must call each model once, which builds it. Received: {name!r}")
        self.optimizers: dict[str, keras.Optimizer] = {}
        for name, part in self.parts.items():
            if not algorithm.REPLAYS and (found := trained(part)):
                own = isinstance(part, keras.Variable)
                self.optimizers[name] = optimizers.build(algorithm.make_optimizer(), found, own=own)

    @property
    def models(self) -> dict[str, keras.Model]:
        return {name: part for name, part in self.parts.items() if isinstance(part, keras.Model)}

    @property
    def steps(self) -> Iterator[tuple[keras.Optimizer, list[keras.Variable]]]:
        """The optimizers, with the variables that each steps."""
        return ((optimizer, trained(self.parts[name])) for name, optimizer in self.optimizers.items())

    @property
    def statistics(self) -> list[keras.Variable]:
        """The variables that no optimizer of these steps."""
        stepped = {id(variable) for _, group in self.steps for variable in group}
        return [one for part in self.parts.values() for one in variables(part) if id(one) not in stepped]

    @property
    def saved(self) -> Mapping[str, list[keras.Variable]]:
        """All variables, in groups by their names in a file."""
        parts = {f"own.{name}": variables(part) for name, part in self.parts.items()}
        return {**parts, **{f"own.{name}.optimizer": each.variables for name, each in self.optimizers.items()}}


def check_apart(groups: Mapping[str, Sequence[keras.Variable]]) -> None:
    """Raise ValueError for a variable that the optimizers of two groups would step."""
    seen: dict[int, str] = {}
    for name, group in groups.items():
        for one in group:
            if (other := seen.setdefault(id(one), name)) != name:
                expected = "A trainable variable must be of one part of `models`, or of the network, not of two"
                raise ValueError(f"{expected}. Received: {one.path!r} of {other!r} and {name!r}")


def variables(part: Any) -> list[keras.Variable]:
    """Return all variables of a part."""
    if isinstance(part, keras.Model):
        return list(part.variables)
    return [part.state if isinstance(part, keras.random.SeedGenerator) else part]


def trained(part: Any) -> list[keras.Variable]:
    """Return the variables of a part that have gradients."""
    return [variable for variable in variables(part) if variable.trainable]


def check_unchanged(name: str, before: Any, now: Any) -> None:
    """Raise ValueError for a variable that has another value than the one that an update holds as a constant."""
    if not np.array_equal(before, now):
        raise ValueError(
            "A variable that isn't the learner's was changed after an update read it, which has the old value as a "
            f"constant on JAX: {_REMEDY}. Received: {name!r}"
        )


def report(name: str, *, assigned: bool, trainable: bool) -> None:
    """Raise ValueError for a variable that an update assigns, and warn of one that it should train."""
    if assigned:
        raise ValueError(
            "An update assigns a variable that isn't the learner's, which would be neither undone nor saved, and would "
            f"stay as it is on JAX: {_REMEDY}; `keras.random` needs a SeedGenerator from there, or a layer's. "
            f"Received: {name!r}"
        )
    if trainable:
        warnings.warn(
            f"A trainable variable that no optimizer steps is part of the update: {_REMEDY}, or make its `trainable` "
            f"False. Received: {name!r}",
            stacklevel=2,
        )
