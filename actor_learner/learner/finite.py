"""The check for NaN and infinity inside an update's graph, and the state before it, to which a failed one returns."""

from __future__ import annotations

from collections.abc import Iterable

import keras
from keras import ops

from actor_learner.learner import backend
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
    vectors = [ops.cast(ops.reshape(tensor, (-1,)), "float32") for tensor in tensors if _is_floating(tensor)]
    small = [vector for vector in vectors if vector.shape[0] <= SMALL]
    large = [vector for vector in vectors if vector.shape[0] > SMALL]
    return [ops.concatenate(small, axis=0), *large] if small else large


def _is_floating(tensor: Tensor) -> bool:
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)))


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

    def put_back_where(self, undone: Tensor) -> None:
        """Assign all values where `undone`, a scalar bool, is True; the graph has nothing to do otherwise."""
        backend.cond(undone, self.put_back, self.variables)
