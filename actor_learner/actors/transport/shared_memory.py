"""Shared memory without a name: a file descriptor that several processes map and that dies with its last holder."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from typing import Any

import numpy as np

from actor_learner.system.machine import available_memory, size_text
from actor_learner.system.types import Array

ALIGNMENT = 64  # bytes: every array starts on a cache line of its own, so that no two writers share one
_POISON = 0xFF  # bytes of fresh memory: NaN in every float, -1 or the maximum in integers


def align(offset: int) -> int:
    """Return the first multiple of `ALIGNMENT` that is not below `offset` (bytes)."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def anonymous_file(name: str) -> int:
    """Return a new descriptor of an empty file in memory that no path leads to; `name` is for `/proc` alone.

    Without `memfd_create` (macOS, some sandboxes) it is an unlinked temporary file. The descriptor is above those of
    the standard streams, even where those are closed: a child that inherits it has streams of its own.
    """
    if hasattr(os, "memfd_create"):
        try:
            with open(os.memfd_create(name), "wb", buffering=0) as memory:
                return _beyond_streams(memory.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    with tempfile.TemporaryFile(prefix=name) as file:
        return _beyond_streams(file.fileno())


def _beyond_streams(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


class Arena:
    """One region of shared memory.

    The creator makes it empty, so that its descriptor can be passed on before its size is known, and reserves its bytes
    later; the others attach to the descriptor. Arrays stay valid while they are referenced, even after `close`.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.size = descriptor, 0
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls, name: str = "actor_learner") -> Arena:
        return cls(anonymous_file(name))

    def reserve(self, size: int) -> None:
        """Allocate `size` bytes for a new arena, poisoned.

        Raises MemoryError if there are too few, where a later write would meet SIGBUS or the out-of-memory killer.
        """
        if (available := available_memory()) is not None and size > available:
            raise MemoryError(_too_little(size, f"{size_text(available)} are available"))
        try:
            os.ftruncate(self.descriptor, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, size)
            self.attach(size)
        except OSError as error:
            raise MemoryError(_too_little(size, error.strerror or str(error))) from error
        self.array(0, (size,), np.dtype(np.uint8)).fill(_POISON)

    def attach(self, size: int) -> None:
        """Map the `size` bytes that the creator has reserved."""
        self._map = mmap.mmap(self.descriptor, size)
        self.size = size

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a writable array on the bytes from `offset`, without a copy."""
        assert self._map is not None, "the arena is closed, or neither reserved nor attached"
        return np.ndarray(shape, dtype, buffer=self._map, offset=offset)

    def close(self) -> None:
        """Release the memory; idempotent, from any thread. It is unmapped when the last array on it is gone."""
        self._map = None
        descriptor, self.descriptor = self.descriptor, -1  # at once, for another thread may close it, too
        if descriptor >= 0:
            os.close(descriptor)


def _too_little(size: int, reason: str) -> str:
    return (
        f"Too little shared memory for the batches: {size_text(size)} are needed, {reason}. "
        f"Lower `num_actors`, `envs_per_actor`, `unroll_length` or `max_policy_lag`. Received: size={size}"
    )
