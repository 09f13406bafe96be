"""Weights as one vector, and as the arrays of `network.get_weights()`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from actor_learner.system.types import Array


def split_weights(vector: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the arrays of these shapes that were raveled into a vector, as views on it."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(vector, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
