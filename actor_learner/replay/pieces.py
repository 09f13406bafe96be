"""Parts of trajectories, of so many rows each; and the masks of all their observations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.spaces.trajectory import FIELDS, Trajectory, map_fields, map_leaves
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
    def cut(name: str, values: Array) -> Array:
        rows = FIELDS[name].rows
        if rows is None:
            return values
        found = values[start : start + length + rows]
        missing = np.zeros((steps + rows - len(found), *values.shape[1:]), values.dtype)
        return np.concatenate([found, missing]) if len(missing) else found

    part, row = map_fields(cut, trajectory), trajectory.final_row
    if row is None:
        return part
    return part._replace(final_row=np.where((row >= start) & (row < start + length), row - start, -1))


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
