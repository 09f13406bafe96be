"""A Keras network as TensorFlow functions of an actor's inputs and of all the network's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from actor_learner.networks.contract import all_layers, call_network, network_distribution, tensor_names
from actor_learner.policy.exported import Array
from actor_learner.spaces.spaces import Spaces

NOISE, MASK = "noise", "action_mask"
"""Names of the inputs beside the observation's leaves."""


@dataclass(frozen=True)
class Traced:
    """A TensorFlow function of inputs and all weights, traced for a fixed batch size."""

    function: Any
    inputs: tuple[tf.TensorSpec, ...]
    weights: tuple[tf.TensorSpec, ...]
    used_inputs: frozenset[int]
    """Positions of the inputs that the outputs depend on."""
    used: frozenset[int]
    """Indices of the weights that the outputs depend on."""

    @property
    def rows(self) -> int:
        """The batch size."""
        return int(self.inputs[0].shape[0])


@dataclass(frozen=True)
class Tracer:
    """One network, and what its two graphs share. The step graph takes a mask where the spaces are masked."""

    network: keras.Model
    spaces: Spaces
    other_variables: tuple[tuple[Any, Array], ...]
    """Variables that aren't weights, such as the states of random generators, and their values."""

    @property
    def distribution(self) -> Any:
        """Of the network's actions."""
        return network_distribution(self.network, self.spaces)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the observation's leaves, the noise, and the mask: the inputs of the step graph."""
        leaves = tensor_names(leaf.name for leaf in self.spaces.observation.leaves)
        return (*leaves, NOISE, MASK) if self.spaces.masked else (*leaves, NOISE)

    def trace(self, name: str, rows: int) -> Traced:
        """The function `step` or `value` for `rows` observations.

        Raises ValueError if the network's outputs don't fit.
        """
        specs = self._step_specs(rows) if name == "step" else self._observation_specs(rows)
        weights = [
            tf.TensorSpec(weight.shape, tf.float32, name=f"weight_{index}")
            for index, weight in enumerate(self.network.weights)
        ]
        function = tf.function(self._step if name == "step" else self._value, autograph=False)
        concrete = function.get_concrete_function(*specs, *weights)
        used_inputs, used_weights = (_used(concrete, group) for group in (specs, weights))
        return Traced(concrete, tuple(specs), tuple(weights), used_inputs, used_weights)

    def _observation_specs(self, rows: int) -> list[tf.TensorSpec]:
        named = zip(self.input_names, self.spaces.observation.leaves, strict=False)
        return [tf.TensorSpec((rows, *leaf.shape), leaf.dtype, name=name) for name, leaf in named]

    def _step_specs(self, rows: int) -> list[tf.TensorSpec]:
        # The noise of rank 2, whatever it is for: LiteRT graphs that reshape [b] to [b, 1] don't resize.
        specs = [tf.TensorSpec((rows, sum(self.distribution.noise)), tf.float32, name=NOISE)]
        if self.spaces.masked:
            specs.append(tf.TensorSpec((rows, self.spaces.mask_size), tf.float32, name=MASK))
        return [*self._observation_specs(rows), *specs]

    def _step(self, *arguments: Any) -> tuple[Any, ...]:
        count = len(self.spaces.observation.leaves)
        leaves, (noise, *rest) = arguments[:count], arguments[count:]
        mask = rest.pop(0) if self.spaces.masked else None
        parameters = self._call(leaves, rest)["parameters"]
        columns = self.spaces.parameter_size
        if parameters.shape != (noise.shape[0], columns):
            raise ValueError(
                f"The network's `parameters` must have {columns} columns for {self.spaces.action_space}. "
                f"Received: shape={tuple(parameters.shape)}"
            )
        action = self.distribution.sample(parameters, noise, mask)
        log_prob = self.distribution.log_prob(parameters, action, mask)
        # The parameters are there for the checks alone: a log-probability near 0 would show no difference.
        return (*action, log_prob, *self.distribution.mode(parameters, mask), parameters)

    def _value(self, *arguments: Any) -> tuple[Any]:
        count = len(self.spaces.observation.leaves)
        rows = arguments[0].shape[0]
        value = self._call(arguments[:count], arguments[count:])["value"]
        if value.shape != (rows,):
            raise ValueError(
                "The network's `value` must be one number for each observation. "
                f"Received: {value.shape[0]} for {rows} observations"
            )
        return (value,)

    def _call(self, leaves: Sequence[Any], weights: Sequence[Any]) -> dict[str, Any]:
        """Calls the network with `weights` in the places of its own, which stay untouched."""
        with keras.StatelessScope(list(self.other_variables)) as scope:
            for variable, weight in zip(self.network.weights, weights, strict=True):
                # A float16 or float64 weight is used in the precision that it was published in, float32.
                floating = keras.backend.is_float_dtype(variable.dtype)
                scope.add_update((variable, weight if floating else tf.cast(weight, variable.dtype)))
            outputs: dict[str, Any] = call_network(self.network, self.spaces.observation.unflatten(leaves))
        return outputs


def _used(function: Any, arguments: Sequence[tf.TensorSpec]) -> frozenset[int]:
    """Positions of those arguments that the function's outputs depend on."""
    seen: set[str] = set()
    pending = [tensor.op for tensor in function.graph.outputs]
    while pending:
        operation = pending.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
    return frozenset(index for index, argument in enumerate(arguments) if argument.name in seen)


def other_variables(network: keras.Model) -> tuple[tuple[Any, Array], ...]:
    """The variables that aren't weights, and their values."""
    weights = {id(weight) for weight in network.weights}
    return tuple((variable, variable.numpy()) for variable in network.variables if id(variable) not in weights)


@contextlib.contextmanager
def computing_in_float32(network: keras.Model) -> Iterator[None]:
    """Lets all layers compute in float32 while they are traced; weights keep their dtype."""
    changed = [layer for layer in (network, *all_layers(network)) if layer.compute_dtype != "float32"]
    before = [layer._dtype_policy for layer in changed]
    try:
        for layer in changed:
            policy = keras.DTypePolicy("float32")
            # Or layers with weights of another dtype wouldn't cast them before use.
            policy._variable_dtype = layer.variable_dtype
            layer._dtype_policy = policy
        yield
    finally:
        for layer, policy in zip(changed, before, strict=True):
            layer._dtype_policy = policy
