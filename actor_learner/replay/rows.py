"""Observations in memory: whole rows, or, for images that are stacks of frames, every frame once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actor_learner.spaces.trajectory import repeats_frames, stack_axis
from actor_learner.system.memory import release
from actor_learner.system.types import Array

_COLOURS = 3
_MIN_REPEATED_SHARE = 0.5  # of the rows; images of which fewer show the frames of the row before aren't stacks
_MIN_TELLING_ROWS = 4  # rows by which it is settled whether images are stacks


def leaf_store(
    shape: tuple[int, ...], dtype: np.dtype[Any], steps: int, columns: int, stacked: bool | None
) -> LeafStore:
    """Return the memory for observations of this shape, in columns of `steps` rows.

    stacked: whether images that could be stacks of frames are some; None: unless they could be coloured, or are small.
    """
    axis = stack_axis(shape, dtype)
    if axis is None or not (_looks_stacked(shape, axis) if stacked is None else stacked):
        return WholeRows(shape, dtype, steps, columns)
    return Frames(shape, dtype, steps, columns, axis)


def _looks_stacked(shape: tuple[int, ...], axis: int) -> bool:
    others = (*shape[:axis], *shape[axis + 1 :])
    return shape[axis] != _COLOURS and 2 * shape[axis] <= min(others[:2])


def of_columns(stored: Array, order: Array) -> Array:
    """Return an array of these columns `[rows, len(order), ...]`, zeros where it is -1. Frees the first row by row."""
    kept = np.zeros((len(stored), len(order), *stored.shape[2:]), stored.dtype)
    places = np.flatnonzero(order >= 0)
    for row in range(len(stored)):
        kept[row, places] = stored[row, order[places]]
        release(stored[row])
    return kept


class WholeRows:
    """Each row as it is: a leaf of the observations of `columns` columns of `steps` + 1 rows.

    A further row, the last one, holds the observation that ended an episode.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], steps: int, columns: int) -> None:
        self._rows = np.zeros((steps + 2, columns, *shape), dtype)
        self._columns = columns
        self.nbytes = self._rows.nbytes

    def write(self, first: int, values: Array, final: Array | None, final_row: Array) -> Array:
        """Replace the columns from `first` on. Returns which rows are kept, bool `[T + 2, b]`.

        values: `[T + 1, b, ...]`. final: `[b, ...]`, the observation after the row `final_row [b]`, if it isn't -1.
        """
        stop = first + values.shape[1]
        self._rows[:-1, first:stop] = values
        if final is not None:
            self._rows[-1, first:stop] = final
        return np.ones((len(self._rows), values.shape[1]), bool)

    def take(self, row: Array, column: Array) -> Array:
        """Return the observations `[n, ...]` of these rows and columns, int64 `[n]` each."""
        flat = self._rows.reshape(len(self._rows) * self._columns, *self._rows.shape[2:])
        return flat.take(row * self._columns + column, axis=0)

    def of_columns(self, order: Array) -> WholeRows:
        """Return memory of these columns alone, where -1 stands for an empty one; this memory's contents are lost."""
        steps, _, *shape = self._rows.shape
        kept = WholeRows(tuple(shape), self._rows.dtype, steps - 2, 0)
        kept._rows, kept._columns = of_columns(self._rows, order), len(order)
        kept.nbytes = kept._rows.nbytes
        return kept

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that hold the columns on their second axis, by name."""
        return {"rows": self._rows}


class Frames:
    """The same as `WholeRows`, of stacks of frames: each frame once, and for each row the places of its frames.

    A column has places for the frames of its first stack, for one more of each later row, and for the last frame of
    `final`; frames that are all zero share a place. Rows that need more of them, as those do that follow a reset whose
    observation shows several new frames, may find no place: they aren't kept.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], steps: int, columns: int, axis: int) -> None:
        self._axis, self._count = axis, shape[axis]
        picture = (*shape[:axis], *shape[axis + 1 :])
        self._places = np.zeros((steps + 2, columns, self._count), np.uint16)
        self._frames = np.zeros((steps + self._count + 2, columns, math.prod(picture)), dtype)  # the first stays zero
        self._picture, self._columns = picture, columns
        self.nbytes = self._frames.nbytes + self._places.nbytes
        self.evidence = 0, 0  # see `inspect`

    def write(self, first: int, values: Array, final: Array | None, final_row: Array) -> Array:
        frames = np.moveaxis(values, self._axis + 2, 2)
        repeats = repeats_frames(frames)
        new, same = self._new_frames(frames, repeats)
        place = np.cumsum(new.swapaxes(0, 1).reshape(new.shape[1], -1), axis=1)
        place = place.reshape(new.shape[1], len(new), -1).swapaxes(0, 1)  # of each new frame, from 1 on
        last = len(self._frames) - 1
        fits = new & (place < last)
        rows, columns, numbers = np.nonzero(fits)
        self._frames[place[fits], first + columns] = frames[rows, columns, numbers].reshape(len(rows), -1)
        places = np.where(new, place, 0)
        for number in range(1, self._count):
            places[:, :, number] = np.where(same[:, :, number], places[:, :, number - 1], places[:, :, number])
        for row in range(1, len(places)):
            like = repeats[row - 1]
            places[row, like, :-1] = places[row - 1, like, 1:]
        kept = np.zeros((len(places) + 1, new.shape[1]), bool)
        kept[:-1] = (places < last).all(axis=2)
        stop = first + new.shape[1]
        self._places[:-1, first:stop] = np.minimum(places, last)
        if final is not None:
            kept[-1] = self._write_final(first, frames, places, np.moveaxis(final, self._axis + 1, 1), final_row)
        return kept

    def of_columns(self, order: Array) -> Frames:
        shape = (*self._picture[: self._axis], self._count, *self._picture[self._axis :])
        kept = Frames(shape, self._frames.dtype, len(self._places) - 2, 0, self._axis)
        kept._places, kept._frames = of_columns(self._places, order), of_columns(self._frames, order)
        kept._columns = len(order)
        kept.nbytes = kept._frames.nbytes + kept._places.nbytes
        kept.evidence = self.evidence
        return kept

    @property
    def arrays(self) -> dict[str, Array]:
        return {"frames": self._frames, "places": self._places}

    @property
    def settled(self) -> bool:
        """True once enough rows have shown that these are stacks of frames, or that they aren't."""
        return self.evidence[0] >= _MIN_TELLING_ROWS

    @property
    def are_stacks(self) -> bool:
        """True if most rows that tell show the frames of the row before but its first."""
        telling, repeating = self.evidence
        return repeating >= telling * _MIN_REPEATED_SHARE

    def inspect(self, values: Array) -> None:
        """Count as evidence the rows of observations `[T + 1, b, ...]` that tell whether they are stacks of frames.

        A row tells nothing if all of its frames are equal, as in blank images, and so are those of the row before.
        """
        frames = np.moveaxis(values, self._axis + 2, 2)
        differ = (frames[:, :, 1:] != frames[:, :, :-1]).any(axis=tuple(range(2, frames.ndim)))
        tells, repeats = differ[1:] | differ[:-1], repeats_frames(frames)
        telling, repeating = self.evidence
        self.evidence = telling + int(tells.sum()), repeating + int((tells & repeats).sum())

    def whole(self, filled: int = 0) -> WholeRows:
        """Return memory for as many rows, each kept as it is, with what the first `filled` columns hold."""
        shape = (*self._picture[: self._axis], self._count, *self._picture[self._axis :])
        rows, columns = len(self._places), np.arange(filled)
        kept = WholeRows(shape, self._frames.dtype, rows - 2, self._columns)
        for row in range(rows):
            kept.arrays["rows"][row, :filled] = self.take(np.full(filled, row), columns)
        return kept

    def _new_frames(self, frames: Array, repeats: Array) -> tuple[Array, Array]:
        """Return which frames need a place of their own, and which repeat the one before in their own row."""
        new, same = np.zeros(frames.shape[:3], bool), np.zeros(frames.shape[:3], bool)
        new[1:, :, -1] = repeats
        rows, columns = np.nonzero(~np.concatenate([np.zeros_like(repeats[:1]), repeats]))
        stacks = frames[rows, columns].reshape(len(rows), self._count, -1)
        alike = np.zeros(stacks.shape[:2], bool)
        alike[:, 1:] = (stacks[:, 1:] == stacks[:, :-1]).all(axis=2)
        new[rows, columns], same[rows, columns] = stacks.any(axis=2) & ~alike, alike
        return new, same

    def _write_final(self, first: int, frames: Array, places: Array, final: Array, final_row: Array) -> Array:
        """Write the last frame of `final [b, n, ...]`, the others of which must be those of row `final_row`."""
        columns = np.arange(len(final))
        before = np.maximum(final_row, 0)
        known = final[:, :-1] == frames[before, columns, 1:]
        kept: Array = known.reshape(len(final), -1).all(axis=1) & (final_row >= 0)
        last = len(self._frames) - 1
        kept &= (places[before, columns, 1:] < last).all(axis=1)
        of_row = self._places[-1, first : first + len(final)]
        of_row[kept, :-1] = places[before, columns, 1:][kept]
        of_row[kept, -1] = last
        self._frames[last, first + columns[kept]] = final[kept, -1].reshape(-1, math.prod(self._picture))
        return kept

    def take(self, row: Array, column: Array) -> Array:
        places = self._places[row, column].astype(np.int64)
        flat = self._frames.reshape(-1, math.prod(self._picture))
        frames = flat.take(places * self._columns + column[:, None], axis=0)
        stacks = frames.reshape(*places.shape, *self._picture)
        return np.ascontiguousarray(np.moveaxis(stacks, 1, self._axis + 1))


LeafStore = WholeRows | Frames
"""The memory of one leaf of the observations."""
