"""Keras's initializers of random weights. On JAX, NumPy computes the same numbers, to rounding.

JAX would compile programs for each shape, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from actor_learner.system.types import Array, Tensor

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


@keras.saving.register_keras_serializable(package="actor_learner")
class Orthogonal(keras.initializers.Orthogonal):  # type: ignore[misc]
    """Keras's initializer of this name: the columns or the rows of a kernel, flattened, are orthogonal."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not _computes(self.seed):
            return super().__call__(shape, dtype)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(_normal(self.seed, (max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))
        kernel = q.T if rows < columns else q
        return ops.convert_to_tensor(self.gain * kernel.reshape(shape), dtype=dtype)


@keras.saving.register_keras_serializable(package="actor_learner")
class VarianceScaling(keras.initializers.VarianceScaling):  # type: ignore[misc]
    """Keras's initializer of this name."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not _computes(self.seed) or self.distribution != "uniform":
            return super().__call__(shape, dtype)
        fans = {"fan_in": math.prod(shape[:-1]), "fan_out": math.prod(shape[:-2]) * shape[-1]}
        limit = math.sqrt(3 * self.scale / fans.get(self.mode, sum(fans.values()) / 2))
        return ops.convert_to_tensor(_uniform(self.seed, shape, -limit, limit), dtype=dtype)


def _computes(seed: Any) -> bool:
    return keras.backend.backend() == "jax" and isinstance(seed, int)


def _normal(seed: int, shape: Sequence[int]) -> Array:
    from scipy.special import erfinv  # JAX needs SciPy

    above_minus_one = np.nextafter(np.float32(-1), np.float32(0))
    numbers: Array = math.sqrt(2) * erfinv(_uniform(seed, shape, above_minus_one, 1))
    return numbers


def _uniform(seed: int, shape: Sequence[int], low: Any, high: Any) -> Array:
    """Return the float32 numbers of `jax.random.uniform`, from 23 random bits each."""
    low, high = np.float32(low), np.float32(high)
    fraction = ((_random_bits(seed, math.prod(shape)) >> 9) | 0x3F800000).view(np.float32) - np.float32(1)
    numbers: Array = np.maximum(low, fraction * (high - low) + low)
    return numbers.reshape(shape)


def _random_bits(seed: int, count: int) -> Array:
    """Return `count` random numbers of 32 bits as JAX does: Threefry-2x32 of 0, 1, ... (10.1145/2063384.2063405)."""
    key = np.array([[seed], [0], [seed ^ 0x1BD11BDA]], np.uint32)  # columns: NumPy warns where scalars overflow
    x: Array
    y: Array
    x, y = np.repeat(key[0], count), np.arange(count, dtype=np.uint32) + key[1]
    for round_ in range(5):
        for bits in map(np.uint32, _ROTATIONS[round_ % 2]):
            x += y
            y = x ^ ((y << bits) | (y >> (np.uint32(32) - bits)))
        x += key[(round_ + 1) % 3]
        y += key[(round_ + 2) % 3] + np.uint32(round_ + 1)
    return x ^ y
