"""What an update measures of the layers of its models: gradients, the sizes of steps, and units that are dead."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops

from actor_learner.learner import backend
from actor_learner.networks import contract
from actor_learner.networks.memory import Memory
from actor_learner.system.types import Tensor

_RELUS = ("relu", "relu6")
_LOOPS = (Memory, layers.RNN, layers.Bidirectional, layers.TimeDistributed)
_TINY = 1e-30


class Diagnosis:
    """Measures the layers of models, within the program of an update.

    models: By the beginning of their layers' names. Without any, the program stays as it is.
    """

    def __init__(self, models: Mapping[str, keras.Model]) -> None:
        found = contract.named_layers(models)
        trained = {name: [one for one in layer._trainable_variables if one.trainable] for name, layer in found.items()}
        self._trained = {name: variables for name, variables in trained.items() if variables}
        loops = [loop for model in models.values() for loop in contract.layers_of(model, _LOOPS)]
        inside = {id(layer) for loop in loops for layer in contract.all_layers(loop)}
        self._relus = {name: layer for name, layer in found.items() if _is_relu(layer) and id(layer) not in inside}

    @contextlib.contextmanager
    def watching(self, leaves_out: Callable[[], bool] = lambda: False) -> Iterator[dict[str, Tensor]]:
        """Yield metrics, which are there on leaving: the share of units that were 0 in all rows, of each ReLU layer.

        A unit is a place on the last axis: of a convolution, a channel. leaves_out: Returns whether a layer's call is
        of no interest.
        """
        metrics: dict[str, Tensor] = {}
        highest: dict[str, list[Tensor]] = {}

        def seen(name: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def called(*arguments: Any, **options: Any) -> Tensor:
                output = call(*arguments, **options)
                if not leaves_out():
                    rows = tuple(range(len(output.shape) - 1))
                    highest.setdefault(name, []).append(ops.max(ops.stop_gradient(output), axis=rows))
                return output

            return called

        for name, layer in self._relus.items():
            layer.call = seen(name, layer.call)
        try:
            yield metrics
        finally:
            for layer in self._relus.values():
                del layer.call
        for name, found in highest.items():
            dead = functools.reduce(ops.maximum, found) <= 0
            metrics[f"diagnose/dead_units/{name}"] = ops.mean(ops.cast(dead, "float32"))

    def step(
        self, variables: Sequence[keras.Variable], gradients: Sequence[Tensor | None]
    ) -> Callable[[], dict[str, Tensor]]:
        """Measure what an optimizer is about to step. Returns a function for the time after, which returns metrics.

        They are, of each layer, the norm of its gradient, and the norm of its step divided by that of its new weights.
        """
        of = {id(one): gradient for one, gradient in zip(variables, gradients, strict=True)}
        groups = {name: own for name, own in self._trained.items() if id(own[0]) in of}
        before = {name: backend.values_of(own) for name, own in groups.items()}

        def after() -> dict[str, Tensor]:
            metrics = {}
            for name, own in groups.items():
                found = [gradient for one in own if (gradient := of[id(one)]) is not None]
                norm = backend.global_norm(found) if found else ops.convert_to_tensor(0.0)
                metrics[f"diagnose/gradient_norm/{name}"] = norm
                now = backend.values_of(own)
                moved = backend.global_norm([new - old for new, old in zip(now, before[name], strict=True)])
                ratio = moved / ops.maximum(backend.global_norm(now), _TINY)  # new ones: those before may be zeros
                metrics[f"diagnose/update_ratio/{name}"] = ratio
            return metrics

        return after


def _is_relu(layer: keras.layers.Layer) -> bool:
    """Return whether a layer's output is that of a ReLU, which may be 0 for all inputs, and stays in memory."""
    activation = getattr(layer, "activation", None)
    is_relu = isinstance(layer, layers.ReLU) or getattr(activation, "__name__", "") in _RELUS
    return is_relu and getattr(layer, "_remat_mode", None) is None
