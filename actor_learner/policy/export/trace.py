"""Traces a Keras network as TensorFlow functions of an actor's inputs and of all the network's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from actor_learner.networks.contract import (
    call_with_weights,
    check_outputs,
    network_distribution,
    other_variables,
    tensor_names,
)
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY

NOISE = "noise"  # among the names of inputs


@dataclass(frozen=True)
class Traced:
    """A TensorFlow function of inputs and all weights, for a fixed batch size."""

    function: Any
    inputs: tuple[tf.TensorSpec, ...]
    weights: tuple[tf.TensorSpec, ...]
    used_inputs: frozenset[int]
    """Positions of the inputs that the outputs depend on."""
    used: frozenset[int]
    """Indices of the weights that the outputs depend on."""

    @property
    def rows(self) -> int:
        return int(self.inputs[0].shape[0])


class Tracer:
    """Traces the graphs `step` and `value` of one network.

    `input_names` are those of the step graph: the observation's leaves, the noise, and the mask if spaces are masked.
    """

    def __init__(self, network: keras.Model, spaces: Spaces) -> None:
        self.network, self.spaces = network, spaces
        self.distribution = network_distribution(network, spaces)
        leaves = tensor_names(leaf.name for leaf in spaces.observation.leaves)
        self.input_names = (*leaves, NOISE, MASK_KEY) if spaces.masked else (*leaves, NOISE)
        self._others = other_variables(network)

    def trace(self, graph: str, rows: int) -> Traced:
        """Traces `step` or `value` for `rows` observations. Raises ValueError if the network's outputs don't fit."""
        pairs = zip(self.input_names, self.spaces.observation.leaves, strict=False)
        specs = [tf.TensorSpec((rows, *leaf.shape), leaf.dtype, name=name) for name, leaf in pairs]
        if graph == "step":
            # The noise is always of rank 2: LiteRT graphs that reshape [b] to [b, 1] don't resize.
            specs.append(tf.TensorSpec((rows, sum(self.distribution.noise)), tf.float32, name=NOISE))
            if self.spaces.masked:
                specs.append(tf.TensorSpec((rows, self.spaces.mask_size), tf.float32, name=MASK_KEY))
        shapes = enumerate(weight.shape for weight in self.network.weights)
        weights = [tf.TensorSpec(shape, tf.float32, name=f"weight_{index}") for index, shape in shapes]
        function = tf.function(self._step if graph == "step" else self._value, autograph=False)
        concrete = function.get_concrete_function(*specs, *weights)
        used_inputs, used_weights = (_used(concrete, group) for group in (specs, weights))
        return Traced(concrete, tuple(specs), tuple(weights), used_inputs, used_weights)

    def _step(self, *arguments: Any) -> tuple[Any, ...]:
        count = len(self.spaces.observation.leaves)
        leaves, (noise, *rest) = arguments[:count], arguments[count:]
        mask = rest.pop(0) if self.spaces.masked else None
        parameters = self._call(leaves, rest)["parameters"]
        action = self.distribution.sample(parameters, noise, mask)
        log_prob = self.distribution.log_prob(parameters, action, mask)
        # The parameters are outputs for the checks alone: a log-probability near 0 would show no difference.
        return (*action, log_prob, *self.distribution.mode(parameters, mask), parameters)

    def _value(self, *arguments: Any) -> tuple[Any]:
        count = len(self.spaces.observation.leaves)
        return (self._call(arguments[:count], arguments[count:])["value"],)

    def _call(self, leaves: Sequence[Any], weights: Sequence[Any]) -> dict[str, Any]:
        observation = self.spaces.observation.unflatten(leaves)
        outputs = call_with_weights(self.network, observation, weights, self._others)
        check_outputs(self.network, outputs, int(leaves[0].shape[0]), self.spaces)
        return outputs


def _used(function: Any, arguments: Sequence[tf.TensorSpec]) -> frozenset[int]:
    """Returns the positions of the arguments that the function's outputs depend on."""
    seen: set[str] = set()
    pending = [tensor.op for tensor in function.graph.outputs]
    while pending:
        operation = pending.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
    return frozenset(index for index, argument in enumerate(arguments) if argument.name in seen)
