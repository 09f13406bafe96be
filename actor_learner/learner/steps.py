"""What the updates of all algorithms share: gradient steps in one compiled graph, all of which stay, or none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from actor_learner.algorithms.returns import shape_of
from actor_learner.learner import backend
from actor_learner.system.fields import refusal
from actor_learner.system.types import Tensor

SMALL = 2**16
"""Tensors of at most so many numbers are copied side by side rather than checked one by one."""


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return whether no number of these tensors is NaN or infinite: a scalar bool."""
    found = [ops.all(ops.isfinite(part)) for part in in_few_parts(tensors)]
    return ops.all(ops.stack([ops.convert_to_tensor(True), *found]))


def have_finite_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Return whether the sum of squares of these tensors is finite: beyond that, a network's gradient isn't."""
    return all_finite([backend.half_square_sum(vector) for vector in in_few_parts(tensors)])


def in_few_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the floating-point numbers of tensors or variables as a few float32 vectors.

    Small tensors stand side by side, because each vector that is checked takes time to compile and to start; large
    ones don't, because that would copy them.
    """
    kinds = keras.backend
    floating = [each for each in tensors if kinds.is_float_dtype(kinds.standardize_dtype(each.dtype))]
    vectors = [ops.cast(ops.reshape(tensor, (-1,)), "float32") for tensor in floating]
    small = [vector for vector in vectors if vector.shape[0] <= SMALL]
    large = [vector for vector in vectors if vector.shape[0] > SMALL]
    return [ops.concatenate(small, axis=0), *large] if small else large


class Snapshot:
    """The values of variables at one place in a graph or between two calls, ahead of the first assignment to one.

    A tensor that was read shares the memory of its variable until that is assigned to, so a snapshot costs one copy of
    the state, and no time.
    """

    def __init__(self, variables: Iterable[keras.Variable]) -> None:
        self.variables = list(variables)
        self._values = backend.values_of(self.variables)

    def put_back(self) -> None:
        """Assign all values."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)


class Steps(ABC):
    """An update, as it is traced into one compiled graph. Calling it mutates what `state` lists.

    If a metric, a number of this state or an output of the new network isn't finite, all of it stays as it was.

    Attributes:
        metric_names: of an update's metrics, in their order, "undone" (0 or 1) last.
        checked_names: of the metrics, parts of the state and outputs that must be finite. Tracing fills both.
    """

    metric_names: tuple[str, ...] = ()
    checked_names: tuple[str, ...] = ()

    def __init__(self, algorithm: Any, optimizer: keras.Optimizer) -> None:
        self._algorithm, self._optimizer = algorithm, optimizer  # of the network

    @property
    @abstractmethod
    def state(self) -> list[keras.Variable]:
        """All variables that an update may assign, or that change between updates."""

    def _at(self, schedule: Mapping[str, Tensor]) -> Any:
        """Return the algorithm with this update's values; writes the learning rate, if it is among them."""
        values = dict(schedule)
        if (rate := values.pop("learning_rate", None)) is not None:
            self._optimizer.learning_rate = rate
        return self._algorithm.at(values)

    def _share_learning_rate(self, optimizers: Iterable[keras.Optimizer]) -> None:
        """Give other optimizers the network's learning rate, which a callback may have changed."""
        rate = self._optimizer.learning_rate
        for optimizer in optimizers:
            if optimizer is not self._optimizer and isinstance(rate, keras.Variable):  # else each has a Keras schedule
                optimizer.learning_rate.assign(rate.value)

    def _end(
        self,
        before: Snapshot,
        metrics: dict[str, Tensor],
        unchecked: dict[str, Tensor],
        of_metrics: Tensor,
        parts: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Undo the update if something isn't finite. Returns all metrics, and which of `checked_names` are finite.

        of_metrics: Which metrics are finite. parts: Whether parts of the state and the outputs are, by name.
        """
        finite = ops.concatenate([of_metrics, ops.stack(list(parts.values()))], axis=0)
        self.checked_names = (*metrics, *parts)
        undone = ops.logical_not(ops.all(finite))
        metrics = {**metrics, **unchecked, "learning_rate": self._optimizer.learning_rate, "undone": undone}
        self.metric_names = tuple(metrics)
        values = vector(metrics)
        backend.cond(undone, before.put_back, before.variables)
        return values, finite


def vector(metrics: Mapping[str, Tensor], names: Iterable[str] | None = None) -> Tensor:
    """Return metrics as one float32 vector, in the order of `names`; None: in their own."""
    for name, value in metrics.items():
        check_scalar(name, value)
    return ops.stack([ops.cast(metrics[name], "float32") for name in names or metrics])


def check_scalar(name: str, value: Tensor) -> Tensor:
    """Return a loss or a metric. Raises ValueError for one that isn't a scalar."""
    if shape := shape_of(value):
        raise refusal(name, "a scalar, such as a mean over rows", f"a tensor of shape {list(shape)}")
    return value


def apply_gradients(optimizer: keras.Optimizer, gradients: Sequence[Tensor | None], variables: Sequence[Any]) -> None:
    """Step the optimizer on the variables that have a gradient: a head that the loss ignores has none.

    Raises ValueError if there are variables, but none of them has a gradient.
    """
    pairs = [(gradient, one) for gradient, one in zip(gradients, variables, strict=True) if gradient is not None]
    if variables and not pairs:
        raise ValueError(
            "The loss depends on none of the weights that it trains, so they would never change: compute it from the "
            f"outputs that it is given. Received: {len(variables)} weights, the first {variables[0].path}"
        )
    optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
