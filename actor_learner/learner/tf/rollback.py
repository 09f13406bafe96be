"""What an update that went wrong is undone by: whether all is finite, and the state as it was before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

Tensor = Any

SMALL = 2**16
"""As many numbers, or fewer, are rather copied than looked at on their own."""


class StateBefore:
    """Variables as they are when this is made: in a graph, ahead of the first assignment to one of them.

    Tensors that were read share the memory of their variables until these are assigned to, so that it costs one copy of
    the state, and no time.
    """

    def __init__(self, variables: Iterable[keras.Variable]) -> None:
        self._values = [(variable, tf.convert_to_tensor(variable.value)) for variable in variables]

    def put_back_where(self, undone: Tensor) -> None:
        """Assigns all of it where `undone`, a scalar bool, is True; the graph has nothing to do otherwise."""

        def put_back() -> Tensor:
            for variable, value in self._values:
                variable.assign(value)
            return tf.constant(0)

        tf.cond(undone, put_back, lambda: tf.constant(0))


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether no number of these tensors is NaN or infinite: a scalar bool."""
    return tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(part)) for part in in_few_parts(tensors))])


def in_few_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The floating-point numbers of tensors or TensorFlow variables as a few float32 vectors.

    Small ones stand side by side, because each vector that is looked at takes time to compile and to start; large ones
    don't, because that would copy them.
    """
    vectors = [tf.cast(tf.reshape(tensor, (-1,)), tf.float32) for tensor in tensors if tensor.dtype.is_floating]
    small = [vector for vector in vectors if vector.shape[0] <= SMALL]
    large = [vector for vector in vectors if vector.shape[0] > SMALL]
    return [tf.concat(small, axis=0), *large] if small else large
