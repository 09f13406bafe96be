"""Reads the inputs of a policy: one observation or a batch, nested as its space is, and masks in any form."""

from __future__ import annotations

from typing import Any

import numpy as np

from actor_learner.spaces.kinds import Box
from actor_learner.spaces.leaves import check_leaf
from actor_learner.spaces.masks import with_batch_axis
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.system.types import Array


class ObservationReader:
    """Converts observations and masks to arrays `[N, ...]`, in which discrete values are counted from 0."""

    def __init__(self, spaces: Spaces) -> None:
        self._structure, self._masks = spaces.observation, spaces.masks
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
        first, *others = self._structure.leaves
        # Further entries are dropped: masks, and what only the value saw.
        arrays = [np.asarray(value) for value in self._structure.flatten(observation, further=True)]
        rows = arrays[0].shape[:1] if arrays[0].shape[1:] == first.shape else ()
        hints = [", or (N, ...) of these"]
        if others:
            place = f"with {rows[0]} rows" if rows else "without a batch axis"
            hints += [f", {place}, as `{first.label}` is"] * len(others)
        leaves = tuple(
            check_leaf(leaf, array, rows, from_start=from_environment, hint=hint)
            for leaf, array, hint in zip(self._structure.leaves, arrays, hints, strict=True)
        )
        return (leaves, False) if rows else (tuple(array[None] for array in leaves), True)

    def check_numbers(self, leaves: tuple[Array, ...]) -> None:
        """Raise ValueError for NaN, and for infinity within finite bounds, naming the leaf."""
        for leaf, array in zip(self._structure.leaves, leaves, strict=True):
            if array.dtype.kind != "f" or np.isfinite(array).all():
                continue
            if np.isnan(array).any():
                raise ValueError(f"`{leaf.label}` must hold numbers. Received: NaN")
            bounded = np.isfinite(np.where(array > 0, leaf.space.high, leaf.space.low))
            if (wrong := np.isinf(array) & bounded).any():
                text = "must be finite where its space has finite bounds"
                raise ValueError(f"`{leaf.label}` {text}. Received: {array[wrong][0]}")

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
