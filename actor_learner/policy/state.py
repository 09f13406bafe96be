"""The state of a policy that remembers, for each environment whose observations it gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from actor_learner.system.types import Array


def read_start(start: Any, rows: int) -> Array | None:
    """Return where episodes start, bool `[rows]`, from such an array or one bool for all; None for None."""
    if start is None:
        return None
    found = np.asarray(start)
    if found.dtype.kind not in "biu" or found.shape not in ((), (rows,)):
        raise ValueError(f"`start` must be a bool, or {rows} of them. Received: {start!r}")
    return np.broadcast_to(found.astype(bool), (rows,))


class State:
    """The leaves of the state, `[N, ...]` each, and where an episode starts. False for a policy without memory."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = tuple(shapes)
        self.reset()

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def reset(self, rows: Any = None) -> None:
        """Let an episode start in these rows (indices, or bool `[N]`) with the next step; None: in any number of them.

        Raises ValueError for rows that aren't there.
        """
        if rows is None:
            self.leaves: tuple[Array, ...] = ()
            self._start = np.zeros((0, 1), np.float32)
        elif self.leaves:
            start = self._start.copy()  # a graph may hold the array
            try:
                start[rows] = 1.0
            except IndexError:
                count = len(start)
                raise ValueError(
                    f"`rows` must be indices below {count}, or {count} bools. Received: {rows!r}"
                ) from None
            self._start = start

    def inputs(self, rows: int, start: Array | None = None) -> tuple[Array, ...]:
        """Return the inputs of a graph for so many rows: `start [N, 1]` and the leaves; nothing without memory.

        start: bool `[N]`, where an episode starts besides. Raises ValueError if the state is of another number of rows.
        """
        if not self._shapes:
            return ()
        if not self.leaves:
            return np.ones((rows, 1), np.float32), *(np.zeros((rows, *shape), np.float32) for shape in self._shapes)
        if len(self._start) != rows:
            raise ValueError(
                f"`observation` must have {len(self._start)} rows, whose states the policy remembers; "
                f"`reset()` makes it forget them. Received: {rows} rows"
            )
        starts = self._start if start is None else np.maximum(self._start, start[:, None].astype(np.float32))
        return starts, *self.leaves

    @contextlib.contextmanager
    def replaced(self, given: Sequence[Any] | None, rows: int, single: bool) -> Iterator[State | None]:
        """Go on from `given` while entered, if it isn't None; yields what then has the state after it.

        single: True if its arrays are of one row, without the axis of rows.
        """
        if given is None:
            yield None
            return
        try:
            arrays = [np.asarray(leaf, np.float32) for leaf in given]
        except (TypeError, ValueError):
            kind = type(given).__name__
            raise ValueError(f"`state` must be a tuple of arrays of numbers. Received: a {kind}") from None
        expected = [shape if single else (rows, *shape) for shape in self._shapes]
        if not self or [array.shape for array in arrays] != expected:
            what = f"a tuple of arrays of shapes {expected}, the state" if expected else "None: there is no state"
            received = [array.shape for array in arrays]
            raise ValueError(f"`state` must be {what} of this policy. Received: {received}")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("`state` must be finite. Received: NaN or infinity in it")
        after = State(self._shapes)
        with self.forgotten():
            self.leaves = tuple(array[None] if single else array for array in arrays)
            self._start = np.zeros((rows, 1), np.float32)
            yield after
            after.leaves = self.leaves

    @contextlib.contextmanager
    def forgotten(self) -> Iterator[None]:
        """Begin without a state while entered; afterwards it is what it was before."""
        own = self.leaves, self._start
        self.reset()
        try:
            yield
        finally:
            self.leaves, self._start = own

    def result(self, single: bool) -> tuple[Array, ...]:
        """Return the leaves, of one row without the axis of rows."""
        return tuple(leaf[0] for leaf in self.leaves) if single else self.leaves

    def take(self, outputs: list[Array]) -> list[Array]:
        """Keep the state, the last of a graph's outputs; return the others."""
        count = len(self._shapes)
        self.leaves = tuple(outputs[-count:])
        self._start = np.zeros((len(outputs[0]), 1), np.float32)
        return outputs[:-count]
