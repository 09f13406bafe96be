"""Memory for the observations of b environments, and the check of their values at each step."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from actor_learner.spaces.kinds import Discrete, MultiBinary, MultiDiscrete
from actor_learner.spaces.leaves import require_values
from actor_learner.spaces.structure import MASK_KEY, Leaf, Structure
from actor_learner.system.types import Array

_INTEGERS = np.dtype(np.int64)


class Fault(NamedTuple):
    """An invalid number in an observation or reward."""

    label: str
    row: int
    rule: str
    value: Any


class Observations:
    """One batch of observations: `leaves`, `[b, ...]` in the trajectory's dtypes, which each `write` overwrites."""

    def __init__(self, structure: Structure, num_envs: int) -> None:
        self.structure = structure
        self.leaves = tuple(np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in structure.leaves)
        self._starts = tuple(leaf.start for leaf in structure.leaves)
        self._only = self.leaves[0] if structure.plain and self._starts[0] is None else None
        self._floats = tuple(array.reshape(-1) for array in self.leaves if array.dtype.kind == "f")
        self._limited = tuple(
            (_as_unsigned(array), limit)
            for leaf, array in zip(structure.leaves, self.leaves, strict=True)
            if (limit := _limit(leaf)) is not None
        )

    def write(self, raw: Any) -> None:
        """Copy a batch, nested like the space. Raises ValueError for other keys, lengths or shapes."""
        if self._only is not None:
            _write(self._only, raw, None)
            return
        for array, start, part in zip(self.leaves, self._starts, self.structure.flatten(raw), strict=True):
            _write(array, part, start)

    def write_row(self, row: int, raw: Any) -> None:
        for array, start, part in zip(self.leaves, self._starts, self.structure.flatten(raw), strict=True):
            _write(array[row : row + 1], np.asarray(part)[None], start)

    def take(self, other: Observations, rows: Array | None = None) -> None:
        """Copy rows (bool `[b]`; None: all) of another batch."""
        for array, source in zip(self.leaves, other.leaves, strict=True):
            np.copyto(array, source, where=True if rows is None else rows.reshape(-1, *(1,) * (array.ndim - 1)))

    def equals(self, other: Observations, rows: Array) -> bool:
        pairs = zip(self.leaves, other.leaves, strict=True)
        return all(np.array_equal(mine[rows], theirs[rows]) for mine, theirs in pairs)

    @np.errstate(over="ignore")
    def surely_valid(self, reward: Array) -> bool:
        """Return True if no number of the reward or a leaf can be invalid; on False, `fault` decides.

        One dot product finds any NaN or infinity, and finite values whose squares overflow.
        """
        if not math.isfinite(reward.dot(reward)):
            return False
        for flat in self._floats:
            if not math.isfinite(flat.dot(flat)):
                return False
        for values, limit in self._limited:  # noqa: SIM110  # a generator costs more than the loop
            if 1 in (values >= limit).tobytes():
                return False
        return True

    def fault(self) -> Fault | None:
        """Return the first NaN, infinity, or choice outside the space; None if there is none."""
        for leaf, array in zip(self.structure.leaves, self.leaves, strict=True):
            fault = None
            if array.dtype.kind == "f":
                fault = first_fault(leaf.label, array, ~np.isfinite(array), "finite")
            elif (limit := _limit(leaf)) is not None:
                shown = array if leaf.start is None else array + leaf.start
                fault = first_fault(leaf.label, shown, _as_unsigned(array) >= limit, f"in {leaf.space}")
            if fault is not None:
                return fault
        return None

    def check_shapes(self, raw: Any) -> None:
        """Raise ValueError, naming the leaf, if a batch has other keys, lengths or shapes than the space."""
        for leaf, array, part in zip(self.structure.leaves, self.leaves, self.structure.flatten(raw), strict=True):
            check_shape(leaf.label, part, array.shape)


def check_shape(label: str, part: Any, expected: tuple[int, ...]) -> None:
    """Raise ValueError if a leaf's value has another shape, or is nested further."""
    nested = isinstance(part, (dict, tuple))
    if nested or np.shape(part) != expected:
        received = f"a {type(part).__name__}" if nested else f"shape={np.shape(part)}"
        raise ValueError(f"`{label}` must have the shape {expected}. Received: {received}")


def first_fault(label: str, values: Array, wrong: Array, rule: str) -> Fault | None:
    """Return the first of `values` `[b, ...]` that is `wrong` (bool, of the same shape)."""
    if not wrong.any():
        return None
    row, *index = (int(i) for i in np.argwhere(wrong)[0])
    return Fault(f"{label}{index or ''}", row, rule, values[(row, *index)])


def _limit(leaf: Leaf) -> Any:
    """Return the number of values of a discrete leaf, in its unsigned dtype; None for a Box and for masks."""
    space: Space[Any] = leaf.space
    if leaf.path[:1] == (MASK_KEY,):
        return None
    if isinstance(space, Discrete):
        return np.uint32(space.n)
    if isinstance(space, MultiDiscrete):
        return space.nvec.astype(np.uint32)
    return np.uint8(2) if isinstance(space, MultiBinary) else None


def _as_unsigned(array: Array) -> Array:
    """Return a view in which a negative number is a large one, so that one comparison finds both."""
    return array.view(f"u{array.itemsize}")


def require_shape(value: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError for another shape: NumPy would broadcast a smaller one. Runs once per env step."""
    if getattr(value, "shape", None) != shape and np.shape(value) != shape:
        raise ValueError(f"another shape than {shape}")


def write(rows: Array, row: Any, index: int) -> None:
    """Write one row of `[b, ...]`. Raises ValueError for another shape, and for numbers that the dtype hasn't."""
    require_shape(row, rows.shape[1:])
    require_values(row, rows.dtype)
    rows[index] = row


def _write(array: Array, raw: Any, start: Any) -> None:
    require_shape(raw, array.shape)
    require_values(raw, array.dtype if start is None else _INTEGERS)
    if start is None:
        np.copyto(array, raw, casting="unsafe")
    else:
        np.subtract(raw, start, out=array, casting="unsafe")
