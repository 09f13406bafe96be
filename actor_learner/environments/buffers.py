"""Observations of b environments as leaf arrays, and whether they are what their space says."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from actor_learner.spaces import structure as spaces
from actor_learner.spaces.kinds import Discrete, MultiBinary, MultiDiscrete
from actor_learner.spaces.structure import Structure

Array = np.ndarray[Any, Any]


class Fault(NamedTuple):
    """A number that an observation or reward must not hold."""

    label: str
    row: int
    rule: str
    value: Any


class Observations:
    """Memory for one batch of observations.

    Attributes:
        structure: The leaves that the space of one observation has.
        leaves: An array `[b, ...]` for each, in the trajectory's dtype, overwritten by each `write`.
    """

    def __init__(self, structure: Structure, num_envs: int) -> None:
        self.structure = structure
        self.leaves = tuple(np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in structure.leaves)
        self._starts = tuple(leaf.start for leaf in structure.leaves)
        only = structure.plain and self._starts[0] is None
        self._only = self.leaves[0] if only else None
        self._floats = tuple(array.reshape(-1) for array in self.leaves if array.dtype.kind == "f")
        self._limited = tuple(
            (array.view(f"u{array.itemsize}"), limit)  # unsigned, a negative number is a large one
            for leaf, array in zip(structure.leaves, self.leaves, strict=True)
            if (limit := _limit(leaf.space)) is not None and leaf.path[:1] != (spaces.MASK_KEY,)
        )

    def write(self, raw: Any) -> None:
        """Takes over what a vector environment returned: `[b, ...]`, nested as the space is.

        Raises ValueError for other keys or lengths than the space has, or another shape.
        """
        if self._only is not None:
            np.copyto(self._only, raw, casting="unsafe")
            return
        for array, start, part in zip(self.leaves, self._starts, self.structure.flatten(raw), strict=True):
            _write(array, part, start)

    def write_row(self, row: int, raw: Any) -> None:
        """Takes over the observation of one environment."""
        for array, start, part in zip(self.leaves, self._starts, self.structure.flatten(raw), strict=True):
            _write(array[row : row + 1], np.asarray(part)[None], start)

    def take(self, other: Observations, rows: Array | None = None) -> None:
        """Copies rows (bool `[b]`; None: all) of another batch."""
        for array, source in zip(self.leaves, other.leaves, strict=True):
            if rows is None:
                np.copyto(array, source)
            else:
                array[rows] = source[rows]

    def equals(self, other: Observations, rows: Array) -> bool:
        """Whether both batches agree in these rows (bool `[b]`)."""
        return all(
            np.array_equal(array[rows], theirs[rows]) for array, theirs in zip(self.leaves, other.leaves, strict=True)
        )

    @np.errstate(over="ignore")
    def surely_fine(self, reward: Array) -> bool:
        """Whether neither the reward nor a leaf can have a fault.

        One dot product finds any NaN or infinity; finite values whose squares overflow have to be looked at again.
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
        """The first NaN, infinity, or choice that the space doesn't have; None where there is none."""
        for leaf, array in zip(self.structure.leaves, self.leaves, strict=True):
            limit = _limit(leaf.space)
            if array.dtype.kind == "f":
                found = first_fault(leaf.label, array, ~np.isfinite(array), "finite")
            elif limit is not None and leaf.path[:1] != (spaces.MASK_KEY,):
                wrong = array.view(f"u{array.itemsize}") >= limit
                shown = array if leaf.start is None else array + leaf.start
                found = first_fault(leaf.label, shown, wrong, f"in {leaf.space}")
            else:
                continue
            if found is not None:
                return found
        return None

    def check_shapes(self, raw: Any) -> None:
        """Raises ValueError, naming the leaf, where a batch has other keys, lengths or shapes than the space."""
        for leaf, array, part in zip(self.structure.leaves, self.leaves, self.structure.flatten(raw), strict=True):
            check_shape(leaf.label, part, array.shape)


def check_shape(label: str, part: Any, expected: tuple[int, ...]) -> None:
    """Raises ValueError where a leaf's value has another shape, or is nested further."""
    if isinstance(part, (dict, tuple)) or np.shape(part) != expected:
        received = f"a {type(part).__name__}" if isinstance(part, (dict, tuple)) else f"shape={np.shape(part)}"
        raise ValueError(f"`{label}` must have the shape {expected}. Received: {received}")


def first_fault(label: str, values: Array, wrong: Array, rule: str) -> Fault | None:
    """The first of `values` `[b, ...]` that is `wrong` (bool, of the same shape)."""
    if not wrong.any():
        return None
    row, *index = (int(i) for i in np.argwhere(wrong)[0])
    return Fault(f"{label}{index or ''}", row, rule, values[(row, *index)])


def _limit(space: Space[Any]) -> Any:
    """What a number counted from 0 must stay below, as an array of the leaf's unsigned dtype; None without limit."""
    if isinstance(space, Discrete):
        return np.uint32(space.n)
    if isinstance(space, MultiDiscrete):
        return space.nvec.astype(np.uint32)
    return np.uint8(2) if isinstance(space, MultiBinary) else None


def _write(array: Array, raw: Any, start: Any) -> None:
    if start is None:
        np.copyto(array, raw, casting="unsafe")
    else:
        np.subtract(raw, start, out=array, casting="unsafe")
