"""The columns of one actor as bytes, and back. Images that are stacks of frames travel as single frames."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from actor_learner.actors.cluster.wire import Buffer, WireError
from actor_learner.actors.transport.batches import Block, BlockLayout
from actor_learner.spaces.trajectory import columns_of, repeats_frames, stack_axis
from actor_learner.system.types import Array

_LARGE_ROW_BYTES = 1 << 15
_WHOLE, _FRAMES = b"\0", b"\1"


class ColumnCodec:
    """Writes columns of blocks of one layout as bytes, and reads them into blocks of another number of columns.

    Each field is written whole, but an observation of stacked frames, where row t + 1 shows the frames of row t and a
    new one: of these, the new frames, and the rows that aren't like that.
    """

    def __init__(self, layout: BlockLayout) -> None:
        fields = dict(layout.fields)
        del fields["policy_version"]  # which the learner knows
        sizes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in fields.values()]
        self._fields, self._column_bytes = list(fields), sum(sizes) // layout.spec.num_envs
        self._stacks = {
            name: axis
            for name, (shape, dtype) in layout.spec.observation.items()
            if (axis := stack_axis(shape, dtype)) is not None
        }

    def max_bytes(self, count: int) -> int:
        """Return the most bytes that `count` columns take."""
        return count * self._column_bytes + len(self._stacks)

    def encode(self, block: Block, start: int, stop: int) -> Iterator[Buffer]:
        """Return the bytes of the columns `[start, stop)`."""
        for name in self._fields:
            part = columns_of(name, block.arrays[name], start, stop)
            if name in self._stacks:
                yield from self._encode_stack(part, self._stacks[name])
            else:
                yield from _rows(part)

    def decode(self, content: Buffer, block: Block, start: int, stop: int) -> None:
        """Write what `encode` returned into the columns `[start, stop)`. Raises WireError if it doesn't fit."""
        reader = _Reader(content)
        for name in self._fields:
            part = columns_of(name, block.arrays[name], start, stop)
            if name in self._stacks:
                self._decode_stack(reader, part, self._stacks[name])
            else:
                part[...] = reader.array(part.shape, part.dtype)
        reader.finish()

    def _encode_stack(self, part: Array, axis: int) -> Iterator[Buffer]:
        frames = np.moveaxis(part, axis + 2, 2)  # [T + 1, b, frames, ...]
        repeats = repeats_frames(frames)
        others = frames[1:][~repeats]
        if others.size + frames[1:, :, -1].size + frames[0].size + repeats.size >= frames.size:
            yield _WHOLE
            yield from _rows(part)
            return
        yield _FRAMES
        yield _bytes(repeats)
        for array in (frames[0], frames[1:, :, -1], others):
            yield _bytes(array)

    def _decode_stack(self, reader: _Reader, part: Array, axis: int) -> None:
        if reader.take(1) == _WHOLE:
            part[...] = reader.array(part.shape, part.dtype)
            return
        frames = np.moveaxis(part, axis + 2, 2)
        repeats = reader.array((len(frames) - 1, frames.shape[1]), np.dtype(np.bool_))
        frames[0] = reader.array(frames.shape[1:], part.dtype)
        newest = reader.array((len(frames) - 1, *frames.shape[1:2], *frames.shape[3:]), part.dtype)
        others = reader.array((int((~repeats).sum()), *frames.shape[2:]), part.dtype)
        taken = 0
        for row, like_the_last in enumerate(repeats, 1):
            frames[row, :, :-1] = frames[row - 1, :, 1:]
            frames[row, :, -1] = newest[row - 1]
            if not like_the_last.all():
                count = int((~like_the_last).sum())
                frames[row, ~like_the_last] = others[taken : taken + count]
                taken += count


class _Reader:
    """Reads arrays from bytes, one after the other."""

    def __init__(self, content: Buffer) -> None:
        self._view = memoryview(content)

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        if size > len(self._view):
            raise WireError(f"Columns can't be read: they end early. Received: {size - len(self._view)} bytes missing")
        content, self._view = self._view[:size], self._view[size:]
        return content

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Return a view of the next bytes."""
        return np.frombuffer(self.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def finish(self) -> None:
        if self._view:
            raise WireError(f"Columns can't be read. Received: {len(self._view)} bytes too many")


def _rows(array: Array) -> Iterator[memoryview]:
    """Return the bytes of columns: large rows as they lie in memory, else a copy."""
    if array[0].nbytes < _LARGE_ROW_BYTES or not array[0].flags.c_contiguous:
        yield _bytes(array)
    else:
        yield from (row.reshape(-1).view(np.uint8).data for row in array)


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
