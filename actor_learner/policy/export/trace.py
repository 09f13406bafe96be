"""Traces a policy's step and value as functions of an actor's inputs and of all the network's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from actor_learner.networks.step import PolicyStep, Spec
from actor_learner.policy.export.traced import Function, Traced
from actor_learner.spaces.spaces import Spaces

_FLOAT = np.dtype(np.float32)


class Tracer:
    """Traces the graphs `step` and `value` of one network. `input_names` are those of the step graph."""

    def __init__(self, network: keras.Model, spaces: Spaces) -> None:
        self.network, self.spaces = network, spaces
        self._policy = PolicyStep(network, spaces)
        self.distribution = self._policy.distribution
        self.state_shapes = self._policy.state_shapes
        self.input_names = tuple(spec.name for spec in self._policy.inputs(1))

    def trace(self, graph: str, rows: int) -> Traced:
        """Traces `step` or `value` for `rows` observations. Raises ValueError if the network's outputs don't fit."""
        shapes = enumerate(weight.shape for weight in self.network.weights)
        weights = [Spec(f"weight_{index}", tuple(shape), _FLOAT) for index, shape in shapes]
        if graph == "step":
            return _backend()(self._step, self._policy.inputs(rows), weights, self.network)
        return _backend()(self._value, self._policy.value_inputs(rows), weights, self.network)

    def _step(self, *arguments: Any) -> tuple[Any, ...]:
        inputs, weights = arguments[: len(self.input_names)], arguments[len(self.input_names) :]
        action, log_prob, state, parameters = self._policy.step(inputs, weights)
        modes = self.distribution.mode(parameters, self._policy.mask(inputs))
        # The parameters are outputs for the checks alone: a log-probability near 0 would show no difference.
        return (*action, log_prob, *state, *modes, parameters)

    def _value(self, *arguments: Any) -> tuple[Any]:
        count = len(self._policy.value_inputs(1))
        return (self._policy.value(arguments[:count], arguments[count:]),)


def _backend() -> Callable[[Function, Sequence[Spec], Sequence[Spec], keras.Model], Traced]:
    """Return the kind of functions that Keras's backend traces."""
    if keras.backend.backend() == "tensorflow":
        from actor_learner.policy.export.on_tensorflow import TensorFlowFunction

        return TensorFlowFunction
    from actor_learner.policy.export.on_jax import JaxFunction

    return JaxFunction
