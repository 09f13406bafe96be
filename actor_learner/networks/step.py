"""A policy's step as a function of tensors: what actors run at each env step, exported or on the learner's device.

Registered names are in saved networks: they must not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from actor_learner.networks.contract import (
    CHECKED_ROWS,
    call_network,
    call_with_weights,
    check_outputs,
    drawn_seeds,
    network_distribution,
    other_variables,
    tensor_names,
)
from actor_learner.networks.memory import Memories
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.system.types import Tensor

_FLOAT = np.dtype(np.float32)
_SEEDS = 2**24
"""Numbers that a uniform float32 tells apart."""
NOISE, START = "noise", "start"


class Spec(NamedTuple):
    """An argument of a function."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Stepped(NamedTuple):
    """The results of a step for N rows."""

    action: tuple[Tensor, ...]
    """Leaves of sampled actions, `[N, ...]` each."""
    log_prob: Tensor
    """`[N]`"""
    state: tuple[Tensor, ...]
    """The state after the step, `[N, ...]` each; none without memory."""
    parameters: Tensor


@keras.saving.register_keras_serializable(package="actor_learner")
class NetworkStep(keras.layers.Layer):  # type: ignore[misc]
    """One step of a network with memory as a layer, with the state as inputs and outputs.

    Called with observations, `start` (bool `[N]`, where an episode starts) and the list of the state's leaves; returns
    the parameters `[N, P]` and the leaves after the step.
    """

    def __init__(self, network: keras.Model, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.network = network

    def call(self, observation: Any, start: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with Memories(self.network).stepping(start, state) as after:
            parameters = call_network(self.network, observation)["parameters"]
        return (parameters, *after)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "network": keras.saving.serialize_keras_object(self.network)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NetworkStep:
        return cls(**{**config, "network": keras.saving.deserialize_keras_object(config["network"])})


class PolicyStep:
    """The step and the value of a network, with all its weights as arguments.

    The step's inputs are the leaves of observations, with memory `start` (float32 `[N, 1]`, 1 where an episode starts)
    and the leaves of the state, the noise, and for masked spaces the mask, each `[N, ...]`. The value's are those
    before the noise, and for a network that draws numbers itself the noise: its last column, uniform in (0, 1] and the
    same in all rows, says which numbers these are.
    """

    def __init__(self, network: keras.Model, spaces: Spaces) -> None:
        self.network, self.spaces = network, spaces
        self.distribution = network_distribution(network, spaces)
        self._memories = Memories(network)
        self.state_shapes = self._memories.shapes
        self._others = other_variables(network)
        self._seeds = {id(state) for state in drawn_seeds(network, spaces.observation.zeros(CHECKED_ROWS))}

    @property
    def draws(self) -> bool:
        """True if the network itself draws numbers."""
        return bool(self._seeds)

    def inputs(self, rows: int) -> list[Spec]:
        """Return the inputs of the step for so many rows."""
        specs = [*self._seen(rows), self._noise(rows)]
        return [*specs, Spec(MASK_KEY, (rows, self.spaces.mask_size), _FLOAT)] if self.spaces.masked else specs

    def value_inputs(self, rows: int) -> list[Spec]:
        """Return the inputs of the value for so many rows."""
        return [*self._seen(rows), self._noise(rows)] if self.draws else self._seen(rows)

    def _noise(self, rows: int) -> Spec:
        # Always of rank 2: LiteRT graphs that reshape [b] to [b, 1] don't resize.
        return Spec(NOISE, (rows, sum(self.distribution.noise) + self.draws), _FLOAT)

    def _seen(self, rows: int) -> list[Spec]:
        leaves = self.spaces.observation.leaves
        names = tensor_names(leaf.name for leaf in leaves)
        specs = [Spec(name, (rows, *leaf.shape), leaf.dtype) for name, leaf in zip(names, leaves, strict=True)]
        if shapes := self.state_shapes:
            specs.append(Spec(START, (rows, 1), _FLOAT))
            specs += [Spec(f"state_{index}", (rows, *shape), _FLOAT) for index, shape in enumerate(shapes)]
        return specs

    def step(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Stepped:
        """Return sampled actions. Raises ValueError if the network's outputs don't fit the action space."""
        noise, mask = inputs[len(self._seen(1))], self.mask(inputs)
        if self.draws:
            noise = noise[:, :-1]
        with self._stepping(inputs) as state:
            parameters = self._call(inputs, weights)["parameters"]
        action = self.distribution.sample(parameters, noise, mask)
        return Stepped(action, self.distribution.log_prob(parameters, action, mask), tuple(state), parameters)

    def mask(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """Return the mask among the step's inputs; None where the spaces aren't masked."""
        return inputs[-1] if self.spaces.masked else None

    def value(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """Return the values `[N]` of observations, in the state in which they are seen."""
        with self._stepping(inputs):
            return self._call(inputs, weights)["value"]

    @contextlib.contextmanager
    def _stepping(self, inputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Let a call of the network go on from the state among the inputs; yields a list for the state after it."""
        if not self._memories:
            yield []
            return
        first = len(self.spaces.observation.leaves)
        start = ops.reshape(inputs[first], (-1,)) > 0.5
        with self._memories.stepping(start, inputs[first + 1 : first + 1 + len(self.state_shapes)]) as state:
            yield state

    def _call(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> dict[str, Tensor]:
        leaves = inputs[: len(self.spaces.observation.leaves)]
        observation = self.spaces.observation.unflatten(leaves)
        outputs = call_with_weights(self.network, observation, weights, self._others_at(inputs))
        check_outputs(self.network, outputs, int(leaves[0].shape[0]), self.spaces)
        return outputs

    def _others_at(self, inputs: Sequence[Tensor]) -> list[tuple[keras.Variable, Any]]:
        """Return the variables that aren't weights with their values; random generators start where the inputs say."""
        if not self.draws:
            return self._others
        count = ops.cast(inputs[len(self._seen(1))][0, -1] * _SEEDS, "int32")
        moved = ops.stack([ops.zeros_like(count), count])
        return [
            (variable, value + ops.cast(moved, variable.dtype) if id(variable) in self._seeds else value)
            for variable, value in self._others
        ]
