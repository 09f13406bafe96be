"""A function of an actor's inputs and of all weights of a network, as Keras's backend traced it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from actor_learner.networks.step import Spec
from actor_learner.policy.export.weight_table import patterns
from actor_learner.policy.graph import Graph
from actor_learner.system.types import Array

Function = Callable[..., tuple[Any, ...]]
"""A function of tensors: the inputs, then the weights."""


class InexpressibleError(Exception):
    """Raised if LiteRT can't run a graph; the message names the place."""


class Traced(abc.ABC):
    """A function of inputs and all weights, for a fixed batch size."""

    used_inputs: frozenset[int]
    """Positions of the inputs that the outputs depend on."""
    used: frozenset[int]
    """Indices of the weights that the outputs depend on."""
    outputs: int
    """Number of outputs."""

    def __init__(self, inputs: Sequence[Spec], weights: Sequence[Spec]) -> None:
        self.inputs, self.weights = tuple(inputs), tuple(weights)

    @property
    def rows(self) -> int:
        return self.inputs[0].shape[0]

    @property
    def arguments(self) -> tuple[Spec, ...]:
        return (*self.inputs, *self.weights)

    def input_positions(self, weight_inputs: Sequence[int]) -> list[int]:
        """Return the positions of the arguments that a graph takes: used inputs, and the weights `weight_inputs`."""
        return [*sorted(self.used_inputs), *(len(self.inputs) + index for index in weight_inputs)]

    def constants(self) -> list[Array]:
        """Return a value for each argument that a graph doesn't take: zeros for inputs, patterns for weights."""
        zeros = [np.zeros(spec.shape, spec.dtype) for spec in self.inputs]
        return [*zeros, *patterns([spec.shape for spec in self.weights])]

    def set_used(self, positions: Sequence[int]) -> None:
        """Set which arguments the outputs depend on."""
        count = len(self.inputs)
        self.used_inputs = frozenset(position for position in positions if position < count)
        self.used = frozenset(position - count for position in positions if position >= count)

    @abc.abstractmethod
    def run(self, inputs: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Return the function's outputs."""

    @abc.abstractmethod
    def to_flatbuffer(self, weight_inputs: Sequence[int]) -> tuple[bytes, list[str]]:
        """Convert the function with the weights `weight_inputs` as inputs and the others as constant patterns.

        Returns the flatbuffer and the names that its outputs have, unless the converter joined them. Raises
        InexpressibleError.
        """

    @abc.abstractmethod
    def fallback(self) -> Graph | None:
        """Return the function as a TensorFlow graph with all used weights as inputs; None on another backend."""
