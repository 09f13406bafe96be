"""Weights as one vector, and as the arrays of `network.get_weights()`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from actor_learner.system.types import Array


def split_weights(
    vector: Array, shapes: Sequence[tuple[int, ...]], reshape: Callable[[Any, tuple[int, ...]], Any] = np.reshape
) -> list[Array]:
    """Return the arrays of these shapes that were raveled into a vector, as views on it. reshape: That of its kind."""
    ends = itertools.accumulate(map(math.prod, shapes), initial=0)
    return [
        reshape(vector[start:end], shape) for (start, end), shape in zip(itertools.pairwise(ends), shapes, strict=True)
    ]
