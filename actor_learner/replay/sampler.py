"""Which rows of a replay buffer can be drawn, and draws of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from actor_learner.replay.rows import of_columns
from actor_learner.system.types import Array

_MAX_REJECTED_SHARE = 0.75  # of the rows; above, drawing lists those that can be drawn

_BLOCK = 64
"""Rows whose sum is kept. With a million rows, drawing 128 minibatches of 64 and renewing their priorities takes half
the time of blocks of 16 or 256, and a quarter of that of a binary tree."""


class Priorities:
    """Numbers of at least 0, and their sums in blocks. Rows of priority 0 are never drawn."""

    def __init__(self, count: int) -> None:
        self._blocks = np.zeros((-(-count // _BLOCK), _BLOCK))
        self._sums = np.zeros(len(self._blocks))
        self.nbytes = self.size(count)

    @staticmethod
    def size(count: int) -> int:
        """Return the bytes that so many take, and that `nbytes` says of them."""
        blocks = -(-count // _BLOCK)
        return 8 * blocks * (_BLOCK + 1)

    def __getitem__(self, index: Array) -> Array:
        return self._blocks.reshape(-1)[index]

    def __setitem__(self, index: Array, priority: Any) -> None:
        self._blocks.reshape(-1)[index] = priority
        changed = np.unique(index // _BLOCK)
        self._sums[changed] = self._blocks[changed].sum(axis=1)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums.sum())

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Return `count` indices, in proportion to their priorities: one from each of `count` equal parts of the sum.

        That there is one from each part lowers the variance (arXiv:1511.05952, appendix B.2.1).
        """
        ends = np.cumsum(self._sums)
        wanted = np.minimum((np.arange(count) + rng.random(count)) * (ends[-1] / count), np.nextafter(ends[-1], 0))
        block = np.searchsorted(ends, wanted, side="right")
        rest = np.maximum(wanted - (ends[block] - self._sums[block]), 0.0)
        inside = np.cumsum(self._blocks[block], axis=1)
        place = (inside <= np.minimum(rest, np.nextafter(inside[:, -1], 0))[:, None]).sum(axis=1)
        found: Array = block * _BLOCK + place
        return found


class Sampler:
    """Draws rows of a ring of columns: uniformly, or by priority. Rows are numbered `row * columns + column`.

    Attributes:
        usable: bool `[T, columns]`: the rows that can be drawn.
        count: how many they are.
        largest_priority: that has occurred.

    Args:
        steps: rows of a column.
        columns: how many there are.
        priority_exponent: None: draws are uniform.
        rng: of the draws.
    """

    def __init__(self, steps: int, columns: int, priority_exponent: float | None, rng: np.random.Generator) -> None:
        self.rng = rng
        self.usable = np.zeros((steps, columns), bool)
        self.count = 0
        self.largest_priority = 1.0
        self.priority_exponent = priority_exponent
        self._priorities = None if priority_exponent is None else Priorities(steps * columns)

    @staticmethod
    def size(rows: int, *, prioritized: bool) -> int:
        """Return the bytes for so many rows, which `nbytes` says of them."""
        return rows + (Priorities.size(rows) if prioritized else 0)

    @property
    def nbytes(self) -> int:
        """The bytes of marks and priorities."""
        return self.size(self.usable.size, prioritized=self._priorities is not None)

    def allow(self, columns: slice, usable: Array) -> None:
        """Let rows `[T, b]` of columns be drawn, none of which could. New rows have the largest priority."""
        self.usable[:, columns] = usable
        self.count += int(usable.sum())
        if self._priorities is not None:
            self._priorities[self._indices(columns)] = usable.reshape(-1) * self.largest_priority

    def forget(self, columns: Any) -> None:
        """Never draw from columns again."""
        self.count -= int(self.usable[:, columns].sum())
        self.usable[:, columns] = False
        if self._priorities is not None:
            self._priorities[self._indices(columns)] = 0.0

    def _indices(self, columns: Any) -> Array:
        steps, total = self.usable.shape
        numbers = np.arange(total)[columns]
        indices: Array = np.arange(steps)[:, None] * total + numbers
        return indices.reshape(-1)

    def draw(self, count: int, filled: int) -> Array:
        """Return the numbers of rows, with replacement. filled: columns, the first ones, that hold any."""
        if self._priorities is not None:
            drawn: Array = self.rng.permutation(self._priorities.draw(count, self.rng))
            return drawn
        steps, columns = self.usable.shape
        usable, rows = self.usable.reshape(-1), steps * filled
        if self.count < (1 - _MAX_REJECTED_SHARE) * rows:
            listed: Array = self.rng.choice(np.flatnonzero(usable), count)
            return listed
        found, missing = [], count
        while missing:
            drawn = self.rng.integers(0, rows, missing + missing // 4 + 8)
            if filled < columns:
                row, column = np.divmod(drawn, filled)
                drawn = row * columns + column
            found.append(drawn[usable[drawn]][:missing])
            missing -= len(found[-1])
        return np.concatenate(found)

    def weights(self, index: Array, importance_exponent: float) -> Array:
        """Return the weights of rows `[..., M]`, float32, in units of the largest of their minibatch."""
        if self._priorities is None:
            return np.ones(index.shape, np.float32)
        weight = (self._priorities[index] / self._priorities.total * self.count) ** -importance_exponent
        relative: Array = weight / weight.max(axis=-1, keepdims=True)
        return relative.astype(np.float32)

    def update(self, indices: Array, error: Array) -> None:
        """See `ReplayBuffer.update_priorities`."""
        if self._priorities is None or self.priority_exponent is None:
            raise ValueError("Draws are uniform: pass `priority_exponent`. Received: priority_exponent=None")
        flat, errors = np.asarray(indices).reshape(-1), np.asarray(error).reshape(-1)
        if len(flat) != len(errors):
            raise ValueError(f"`error` must have a number for each of {len(flat)} rows. Received: {len(errors)}")
        if not len(flat):
            return
        if flat.dtype.kind not in "iu" or flat.min() < 0 or flat.max() >= self.usable.size:
            raise ValueError(f"`indices` must be those that `sample` returned. Received: {flat[:3].tolist()} ...")
        priority = (np.abs(errors) + 1e-6) ** self.priority_exponent
        if not np.isfinite(priority).all():
            raise ValueError(f"`error` must be finite. Received: {priority[~np.isfinite(priority)][0]}")
        self.largest_priority = max(self.largest_priority, float(priority.max()))
        self._priorities[flat] = np.where(self.usable.reshape(-1)[flat], priority, 0.0)

    def reorder(self, order: Array) -> None:
        """Keep these columns alone, in this order, where -1 stands for an empty one."""
        before, priorities = self.usable.shape, self._priorities
        kept = None if priorities is None else priorities[self._indices(slice(None))].reshape(before)
        self.usable = of_columns(self.usable, order)
        self.count = int(self.usable.sum())
        if kept is not None:
            self._priorities = Priorities(self.usable.size)
            self._priorities[self._indices(slice(None))] = of_columns(kept, order).reshape(-1)

    def marks(self, filled: int) -> dict[str, Array]:
        """Return which rows of the first columns can be drawn, and their priorities."""
        usable = {"usable": self.usable[:, :filled]}
        if self._priorities is None:
            return usable
        return {**usable, "priority": self._priorities[self._indices(slice(0, filled))]}

    def put_marks(self, marks: Mapping[str, Array], filled: int) -> None:
        """Put back what `marks` returned."""
        self.usable[:, :filled] = marks["usable"]
        self.count = int(self.usable.sum())
        if self._priorities is not None:
            self._priorities[self._indices(slice(0, filled))] = marks["priority"]
