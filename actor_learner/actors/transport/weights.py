"""Slots of shared memory that hold versions of the policy's weights: the learner writes, the actors read."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actor_learner.system.types import Array


class Version(NamedTuple):
    """A version of the weights and its place."""

    number: int
    slot: int
    checksum: int


class WeightSlots:
    """The writer's side of `slots`, `[slots, size]` float32: each holds one version. `weights`: version 0, `[size]`.

    The slot and the checksum of a version travel in the assignments: Python has no memory fences, so the shared memory
    alone can't show that a version is complete. A slot that an actor may still be reading is never overwritten.
    """

    def __init__(self, slots: Array, weights: Array) -> None:
        self._slots = slots
        self._readers = [0] * len(slots)
        self._lock = threading.Lock()
        self.newest = Version(-1, -1, 0)
        self.publish(weights)

    def publish(self, weights: Array) -> None:
        """Copy the next version, `[size]`, into a slot that no actor reads."""
        with self._lock:
            slot = next(i for i, readers in enumerate(self._readers) if not readers and i != self.newest.slot)
        row = self._slots[slot]
        row[...] = weights
        self.newest = Version(self.newest.number + 1, slot, zlib.crc32(row.data))

    def read(self, slot: int) -> Array:
        """Return the weights in a slot that is held, or the newest, `[size]`."""
        weights: Array = self._slots[slot]
        return weights

    def hold_newest(self) -> Version:
        """Return the newest version and count one more reader of its slot; while another thread publishes, too."""
        with self._lock:
            self._readers[self.newest.slot] += 1
            return self.newest

    def release(self, slot: int) -> None:
        """Count one reader less."""
        with self._lock:
            self._readers[slot] -= 1

    def close(self) -> None:
        """Release the memory; the version stays known."""
        self._slots = self._slots[:0].copy()


def read_weights(flat: Array, checksum: int) -> Array:
    """Return a read-only view of a slot's weights, `[size]`; raise RuntimeError if they don't have this checksum."""
    if (found := zlib.crc32(flat.data)) != checksum:
        raise RuntimeError(
            "The weights in shared memory aren't those that were published. "
            f"Received: checksum={found:#x}, expected {checksum:#x}"
        )
    view = flat.view()
    view.flags.writeable = False
    return view


def check_finite(weights: Array, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError, naming the array, where a vector of arrays of these shapes holds NaN or infinity."""
    finite = np.isfinite(weights)
    if finite.all():
        return
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    index = int(np.searchsorted(ends, np.argmin(finite), side="right"))
    part = finite[ends[index] - math.prod(shapes[index]) : ends[index]]
    raise ValueError(
        "Weights must be finite; learning diverges where the learning rate is too high, or rewards are huge "
        f"(normalize_reward, clip_reward). Received: NaN, or beyond float32, in {np.sum(~part)} of the {part.size} "
        f"values of weights[{index}]"
    )
