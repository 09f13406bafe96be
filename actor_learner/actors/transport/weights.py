"""Slots of shared memory that hold versions of the policy's weights: the learner writes, the actors read."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Version(NamedTuple):
    """A version of the weights, and where it is."""

    number: int
    slot: int
    checksum: int


class WeightSlots:
    """The writer's side of `[slots, size]` float32: each slot holds one version, all weights in one row.

    Which slot holds which version, and its checksum, travel in the hand-outs. Python has no memory fences,
    so nothing in the shared memory itself could say that a version is complete; and a slot that an actor
    may still be reading is never overwritten.

    slots: `[slots, size]`, writable. weights: version 0, as `network.get_weights()` gives it.
    """

    def __init__(self, slots: Array, weights: Sequence[Array]) -> None:
        self._slots = slots
        self._shapes = [np.shape(weight) for weight in weights]
        self._readers = [0] * len(slots)
        self._lock = threading.Lock()
        self.newest = Version(-1, -1, 0)
        self.publish(weights)

    def publish(self, weights: Sequence[Array]) -> None:
        """Writes the next version into a slot that nobody reads.

        Raises ValueError if the arrays aren't shaped like version 0's, or hold NaN or infinity (actors
        would sample from nothing); the newest version is then what it was.
        """
        self._check_shapes(weights)
        with self._lock:
            slot = next(i for i, readers in enumerate(self._readers) if not readers and i != self.newest.slot)
        self.newest = Version(self.newest.number + 1, slot, _write(self._slots[slot], weights))

    def hold_newest(self) -> Version:
        """The newest version, noting that one more actor may read it; while another thread publishes, too."""
        with self._lock:
            self._readers[self.newest.slot] += 1
            return self.newest

    def release(self, slot: int) -> None:
        """Takes back one `hold_newest`."""
        with self._lock:
            self._readers[slot] -= 1

    def close(self) -> None:
        """Lets go of the memory; the version stays known."""
        self._slots = self._slots[:0].copy()

    def _check_shapes(self, weights: Sequence[Array]) -> None:
        shapes = [np.shape(weight) for weight in weights]
        if shapes == self._shapes:
            return
        if len(shapes) != len(self._shapes):
            raise ValueError(
                f"`weights` must be the {len(self._shapes)} arrays of `network.get_weights()`. "
                f"Received: {len(shapes)} arrays"
            )
        index = next(i for i, shape in enumerate(shapes) if shape != self._shapes[i])
        raise ValueError(f"`weights[{index}]` must be of shape {self._shapes[index]}. Received: shape={shapes[index]}")


def read_weights(flat: Array, checksum: int) -> Array:
    """The reader's side: a slot's weights, `[size]` float32, read-only and in place.

    Raises RuntimeError if they aren't those that the checksum was made of.
    """
    found = zlib.crc32(flat.data)
    if found != checksum:
        raise RuntimeError(
            "The weights in shared memory aren't those that were published. "
            f"Received: checksum={found:#x}, expected {checksum:#x}"
        )
    view = flat.view()
    view.flags.writeable = False
    return view


def _write(flat: Array, weights: Sequence[Array]) -> int:
    start = 0
    for weight in weights:
        array = np.asarray(weight)
        flat[start : start + array.size] = array.reshape(-1)
        start += array.size
    if not np.isfinite(flat).all():
        raise ValueError(
            "Weights must be finite; learning diverges where the learning rate is too high, or rewards are huge "
            f"(normalize_reward, clip_reward). Received: NaN, or beyond float32, in {_not_finite(weights)}"
        )
    return zlib.crc32(flat.data)


def _not_finite(weights: Sequence[Array]) -> str:
    bad = [int(np.size(weight) - np.isfinite(np.float32(weight)).sum()) for weight in weights]
    index = next(i for i, count in enumerate(bad) if count)
    return f"{bad[index]} of the {np.size(weights[index])} values of weights[{index}]"
