"""Stacks of frames: images with an axis that counts frames, of which the next observation repeats all but one."""

from __future__ import annotations

import numpy as np

from actor_learner.system.types import Array

_MAX_FRAMES = 16  # an axis of images is one of frames or of channels up to here
_MIN_REPEATED_ROWS_SHARE = 0.25  # with fewer rows that only add a frame, keeping frames once saves little


def stack_axis(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int | None:
    """Return the axis of an observation that counts frames, if it is an image that has one."""
    if dtype != np.uint8 or len(shape) not in (3, 4):
        return None
    return next((axis for axis in (0, len(shape) - 1) if 2 <= shape[axis] <= _MAX_FRAMES), None)


def repeated(frames: Array) -> Array:
    """Return where a row shows the frames of the row before but its first, bool `[T, b]`. frames: `[T + 1, b, n, ...]`.

    It may say no where few rows are like that.
    """
    edges = frames[:, :, :, 0]  # of the pictures: enough to see that most rows aren't like that
    repeats: Array = (edges[1:, :, :-1] == edges[:-1, :, 1:]).reshape(len(frames) - 1, frames.shape[1], -1).all(axis=-1)
    if repeats.mean() < _MIN_REPEATED_ROWS_SHARE:
        return np.zeros_like(repeats)
    pixels = frames.reshape(*frames.shape[:3], -1)
    if pixels.shape[-1] % 8 == 0 and pixels.strides[-1] == 1:
        pixels = pixels.view(np.uint64)  # a third of the time
    repeats &= (pixels[1:, :, :-1] == pixels[:-1, :, 1:]).all(axis=(2, 3))
    return repeats
