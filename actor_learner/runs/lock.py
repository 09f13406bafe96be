"""The lock of a run directory: one process at a time; the lock ends with its process, also after SIGKILL."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from actor_learner.system.files import open_plain

NAME = ".lock"
_TRIES, _TRY_SECONDS = 20, 0.01
"""`is_locked` holds the lock for a moment, on a busy machine for longer."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


class RunLock:
    """Holds the lock while entered. The kernel releases it when the process ends; actors never inherit it.

    Makes the folder if needed, and removes it if it stays empty. On a file system without locks, nothing is checked.

    Raises:
        ValueError: A living run holds the lock.
        OSError: The folder can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        while self._descriptor < 0:
            self._descriptor = _lock(self._folder)
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but names no process
            os.truncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the folder isn't empty, or was removed
            (self._folder / NAME).unlink(missing_ok=True)
            self._folder.rmdir()
        os.close(self._descriptor)
        self._descriptor = -1


def check_unlocked(folder: Path) -> None:
    """Raises ValueError if a living run holds the folder's lock. Writes nothing."""
    try:
        descriptor = open_plain(folder / NAME)
    except OSError:
        return
    try:
        _take(descriptor, folder)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Returns True if a living run holds the folder's lock. Without locks: if a run has begun and not ended.

    Writes nothing, and delays other processes for a moment at most.
    """
    try:
        descriptor = open_plain(folder / NAME)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(folder: Path) -> int:
    """Returns the descriptor of the locked file, or -1 if its last owner has just removed it."""
    descriptor = open_plain(folder / NAME, os.O_RDWR | os.O_CREAT)
    try:
        _take(descriptor, folder)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder / NAME)):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return -1


def _take(descriptor: int, folder: Path) -> None:
    try:
        _try_to_take(descriptor)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        process = f" (process {owner})" if owner.isdigit() else ""
        raise ValueError(
            f"`run_dir` is in use by a living run{process}; wait for it or stop it. Received: run_dir={str(folder)!r}"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _try_to_take(descriptor: int) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(_TRY_SECONDS)
