"""Parts of trajectories, of so many rows each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from actor_learner.spaces.trajectory import FIELDS, Trajectory, map_fields
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
