"""Rows that hold several arrays side by side, so that one copy moves them all: to a device and back.

They are NumPy's structured arrays `[N]`, whose fields are numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.system.types import Array, Leaves

NUMBER = np.dtype(np.float32)


class Place(NamedTuple):
    """The place of an array in a packed row."""

    start: int  # in bytes; so is `stop`
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a row


def row_dtype(fields: Iterable[tuple[tuple[int, ...], np.dtype[Any]]]) -> np.dtype[Any]:
    """Return the dtype of rows with arrays of these shapes and dtypes, aligned."""
    return np.dtype([(str(index), dtype, shape) for index, (shape, dtype) in enumerate(fields)], align=True)


def places(rows: np.dtype[Any]) -> list[Place]:
    """Return the places of the arrays in a row of a `row_dtype`."""
    found = []
    for name in rows.names or ():
        field, start = rows.fields[name][:2]  # type: ignore[index]
        found.append(Place(start, start + field.itemsize, field.base, field.shape))
    return found


def unpacked(rows: Array) -> Leaves:
    """Return views on the arrays `[N, ...]` of packed rows `[N]`."""
    return tuple(rows[name] for name in rows.dtype.names or ())


def step_results(spaces: Spaces, state_shapes: Sequence[tuple[int, ...]]) -> np.dtype[Any]:
    """Return the dtype of a policy step's results: leaves of the action, its log-probability, leaves of the state."""
    action = [(leaf.shape, leaf.dtype) for leaf in spaces.action.leaves]
    return row_dtype([*action, ((), NUMBER), *((shape, NUMBER) for shape in state_shapes)])
