"""Reads the inputs of a policy: one observation or a batch, nested as its space is, and masks in any form."""

from __future__ import annotations

from typing import Any

import numpy as np

from actor_learner.spaces.kinds import Box, Dict, Discrete, MultiDiscrete
from actor_learner.spaces.masks import with_batch_axis
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Leaf, choice_counts
from actor_learner.spaces.validate import check_values
from actor_learner.system.types import Array


class ObservationReader:
    """Converts observations and masks to arrays `[N, ...]`, in which discrete values are counted from 0."""

    def __init__(self, spaces: Spaces) -> None:
        self._structure, self._masks = spaces.observation, spaces.masks
        self._has_mask_leaf = spaces.has_mask_leaf
        self._takes_dicts = isinstance(spaces.observation_space, Dict)
        first = self._structure.leaves[0]
        plain_box = isinstance(spaces.observation_space, Box) and first.shape
        self._plain_box = (first.dtype, first.shape) if plain_box else None

    def read(self, observation: Any, *, from_environment: bool = False) -> tuple[tuple[Array, ...], bool]:
        """Return the leaves, `[N, ...]` each as in a trajectory, and True for a single observation.

        from_environment: True if discrete values are counted from their space's `start`, not from 0.

        Raises ValueError, naming the leaf, for other keys, shapes or numbers of rows, and for discrete values outside
        the space.
        """
        # The common case comes first, for speed.
        if type(observation) is np.ndarray and (observation.dtype, observation.shape[1:]) == self._plain_box:
            return (observation,), False
        if self._takes_dicts and not self._has_mask_leaf and isinstance(observation, dict):
            # A space that was derived from the network's inputs may lack the mask that the environment gives.
            observation = {key: value for key, value in observation.items() if key != MASK_KEY}
        arrays = [np.asarray(value) for value in self._structure.flatten(observation)]
        rows = self._common_rows(arrays)
        pairs = zip(self._structure.leaves, arrays, strict=True)
        leaves = [_as_in_trajectory(leaf, array, from_environment) for leaf, array in pairs]
        return (tuple(array[None] for array in leaves), True) if rows is None else (tuple(leaves), False)

    def check_numbers(self, leaves: tuple[Array, ...]) -> None:
        """Raise ValueError for NaN, naming the leaf."""
        for leaf, array in zip(self._structure.leaves, leaves, strict=True):
            if np.isnan(array).any():
                raise ValueError(f"`{leaf.label}` must hold numbers. Received: NaN")

    def read_mask(self, observation: Any, action_mask: Any, rows: int, single: bool) -> Array | None:
        """Return the given mask, else the observation's, as bool `[rows, M]`; None if there is neither.

        Raises ValueError for a mask that doesn't fit the action space or forbids all of a choice.
        """
        label = MASK_KEY
        if action_mask is None and self._masks.size and isinstance(observation, dict):
            label, action_mask = f"observation[{MASK_KEY!r}]", observation.get(MASK_KEY)
        if action_mask is None:
            return None
        if not self._masks.size:
            expected = "`action_mask` must be None: the action space has no discrete choice"
            raise ValueError(f"{expected}. Received: a {type(action_mask).__name__}")
        mask = self._masks.read(with_batch_axis(action_mask) if single else action_mask, rows, label)
        if (empty := self._masks.first_empty(mask)) is not None:
            count = len(self._masks.choices)
            place = f"row {empty[0]}, for choice {empty[1]} of {count}" if count > 1 else f"row {empty[0]}"
            raise ValueError(f"`{label}` must allow an action in every row. Received: none allowed in {place}")
        return mask

    def _common_rows(self, leaves: list[Array]) -> int | None:
        """Return the number of rows that all leaves have; None for a single observation."""
        first, *others = self._structure.leaves
        rows = _rows(first, leaves[0])
        for leaf, array in zip(others, leaves[1:], strict=True):
            if _rows(leaf, array) != rows:
                expected = "without a batch axis" if rows is None else f"with {rows} rows"
                received = f"shape={array.shape} for observations of shape {leaf.shape}"
                raise ValueError(f"`{leaf.label}` must be {expected}, as `{first.label}` is. Received: {received}")
        return rows


def _rows(leaf: Leaf, array: Array) -> int | None:
    if array.shape == leaf.shape:
        return None
    if array.ndim != len(leaf.shape) + 1 or array.shape[1:] != leaf.shape:
        expected = f"`{leaf.label}` must have shape {leaf.shape}, or (N, ...) of these"
        raise ValueError(f"{expected}. Received: shape={array.shape}")
    return len(array)


def _as_in_trajectory(leaf: Leaf, array: Array, from_environment: bool) -> Array:
    """Convert a leaf to the trajectory's dtype, discrete values counted from 0."""
    if array.dtype.kind == "f" and leaf.dtype.kind in "iu" and not (array == np.round(array)).all():
        wrong = array[array != np.round(array)].reshape(-1)[0]
        raise ValueError(f"`{leaf.label}` must hold whole numbers. Received: {wrong}")
    if isinstance(leaf.space, (Discrete, MultiDiscrete)):
        # As int64, in which a difference of small unsigned numbers may be negative.
        start = np.asarray(leaf.start if leaf.start is not None and from_environment else 0, np.int64)
        _check_range(leaf, array, start, from_environment)
        array = array - start if start.any() else array
    else:
        check_values(leaf, array)
    return array.astype(leaf.dtype, copy=False)


def _check_range(leaf: Leaf, array: Array, lowest: Array, from_environment: bool) -> None:
    """Raise ValueError for values outside the space, for which a graph may return anything."""
    highest = lowest + np.reshape(choice_counts(leaf.space), leaf.shape) - 1
    wrong = (array < lowest) | (array > highest)
    if wrong.any():
        counted = "as the environment gives it" if from_environment else "counted from 0 as in a Trajectory"
        low, high = (np.broadcast_to(bound, array.shape)[wrong][0] for bound in (lowest, highest))
        expected = f"in {low} ... {high}" + ("" if leaf.start is None else f", {counted}")
        raise ValueError(f"`{leaf.label}` must be {expected}. Received: {array[wrong][0]}")
