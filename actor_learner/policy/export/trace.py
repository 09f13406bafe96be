"""Traces a Keras network as functions of an actor's inputs and of all the network's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from actor_learner.networks.contract import (
    call_with_weights,
    check_outputs,
    network_distribution,
    other_variables,
    tensor_names,
)
from actor_learner.policy.export.traced import Function, Spec, Traced
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY

_FLOAT = np.dtype(np.float32)
NOISE = "noise"  # among the names of inputs


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
        specs = [Spec(name, (rows, *leaf.shape), leaf.dtype) for name, leaf in pairs]
        if graph == "step":
            # The noise is always of rank 2: LiteRT graphs that reshape [b] to [b, 1] don't resize.
            specs.append(Spec(NOISE, (rows, sum(self.distribution.noise)), _FLOAT))
            if self.spaces.masked:
                specs.append(Spec(MASK_KEY, (rows, self.spaces.mask_size), _FLOAT))
        shapes = enumerate(weight.shape for weight in self.network.weights)
        weights = [Spec(f"weight_{index}", tuple(shape), _FLOAT) for index, shape in shapes]
        return _backend()(self._step if graph == "step" else self._value, specs, weights, self.network)

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


def _backend() -> Callable[[Function, Sequence[Spec], Sequence[Spec], keras.Model], Traced]:
    """Returns the kind of functions that Keras's backend traces."""
    if keras.backend.backend() == "tensorflow":
        from actor_learner.policy.export.on_tensorflow import TensorFlowFunction

        return TensorFlowFunction
    from actor_learner.policy.export.on_jax import JaxFunction

    return JaxFunction
