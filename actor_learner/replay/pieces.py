"""Parts of trajectories: of so many rows, of some columns; and the masks of all their observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.spaces.trajectory import Trajectory, map_leaves
from actor_learner.system.types import Array


def pieces(trajectory: Trajectory, steps: int) -> Iterator[Trajectory]:
    """Yield parts of `steps` rows each, the last one filled up with invalid rows."""
    if trajectory.start is None and trajectory.final_row is not None:  # then rows that only reset show the last episode
        end = np.ones_like(trajectory.valid[:1])
        trajectory = trajectory._replace(start=np.concatenate([trajectory.valid, end]))
    length = len(trajectory.reward)
    if length == steps:
        yield trajectory
        return
    for start in range(0, length, steps):
        yield _part(trajectory, start, min(steps, length - start), steps)


def _part(trajectory: Trajectory, start: int, length: int, steps: int) -> Trajectory:
    def rows(values: Array) -> Array:
        return _filled_up(values[start : start + length], steps)

    def observations(values: Array) -> Array:
        return _filled_up(values[start : start + length + 1], steps + 1)

    row = trajectory.final_row
    if row is not None:
        row = np.where((row >= start) & (row < start + length), row - start, -1)
    fields = trajectory._asdict()
    of_rows = ("action", "reward", "terminated", "truncated", "valid", "action_mask")
    changed = {name: map_leaves(rows, fields[name]) for name in of_rows if fields[name] is not None}
    changed |= {
        name: map_leaves(observations, fields[name]) for name in ("observation", "start") if fields[name] is not None
    }
    return trajectory._replace(**changed, final_row=row)


def _filled_up(values: Array, length: int) -> Array:
    missing = np.zeros((length - len(values), *values.shape[1:]), values.dtype)
    return np.concatenate([values, missing]) if len(missing) else values


_PER_COLUMN = ("final_observation", "final_row")
_KEPT = ("observation", "action", "reward", "terminated", "truncated", "valid", "action_mask", "start")


def columns_of(piece: Trajectory, start: int, stop: int) -> Trajectory:
    """Return the columns `[start, stop)` of the fields that are kept."""
    changed: dict[str, Any] = {}
    for name, field in piece._asdict().items():
        if field is not None and name in _PER_COLUMN:
            changed[name] = map_leaves(lambda values: values[start:stop], field)
        elif field is not None and name in _KEPT:
            changed[name] = map_leaves(lambda values: values[:, start:stop], field)
    return piece._replace(**changed)


def masks_of(piece: Trajectory, spaces: Spaces) -> tuple[Array, Array]:
    """Return the masks `[T + 2, b, choices]` of all rows, and which of them are known, bool `[T + 2, b]`."""
    steps, columns = piece.reward.shape
    masks = np.ones((steps + 2, columns, spaces.mask_size), bool)
    known = np.zeros((steps + 2, columns), bool)
    assert piece.action_mask is not None
    masks[:steps], known[:steps] = piece.action_mask, piece.valid
    if not spaces.has_mask_leaf:
        return masks, known
    known[steps:] = True
    leaf = piece.observation[MASK_KEY]
    rows = map_leaves(lambda values: values.reshape(-1, *values.shape[2:]), leaf)
    label = f"observation[{MASK_KEY!r}]"
    masks[: steps + 1] = spaces.masks.read(rows, (steps + 1) * columns, label).reshape(steps + 1, columns, -1)
    known[:steps] = True
    if piece.final_observation is not None and piece.final_row is not None:
        # Elsewhere nothing was written, and a terminal state allows no action.
        cut = (piece.final_row >= 0) & piece.truncated[piece.final_row, np.arange(columns)]
        last = map_leaves(lambda values: values[cut], piece.final_observation[MASK_KEY])
        if cut.any():
            masks[-1, cut] = spaces.masks.read(last, int(cut.sum()), label)
    return masks, known
