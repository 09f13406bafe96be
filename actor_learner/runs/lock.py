"""The lock of a run directory: one process at a time; the lock ends with its process, also after SIGKILL."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from actor_learner.system.files import open_plain

LOCK_FILE = ".lock"
_MAX_TRIES, _TRY_SECONDS = 20, 0.01  # `is_locked` holds the lock for a moment, on a busy machine for longer
_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock while entered. The kernel releases it when the process ends; actors never inherit it.

    Makes the folder if needed, and removes it if it stays empty. On a file system without locks, nothing is checked.

    Raises:
        ValueError: A living run holds the lock.
        OSError: The folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while (descriptor := _lock(folder)) is None:
        pass
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but names no process
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder isn't empty, or was removed
            (folder / LOCK_FILE).unlink(missing_ok=True)
            folder.rmdir()
        os.close(descriptor)


def check_unlocked(folder: Path) -> None:
    """Raise ValueError if a living run holds the folder's lock. Writes nothing."""
    try:
        descriptor = open_plain(folder / LOCK_FILE)
    except OSError:
        return
    try:
        _take(descriptor, folder)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return True if a living run holds the folder's lock. Without locks: if a run has begun and not ended.

    Writes nothing, and delays other processes for a moment at most.
    """
    try:
        descriptor = open_plain(folder / LOCK_FILE)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(folder: Path) -> int | None:
    """Return the descriptor of the locked file; None if its last owner has just removed it."""
    descriptor = open_plain(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        _take(descriptor, folder)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK_FILE)):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _take(descriptor: int, folder: Path) -> None:
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if tries_left:
                time.sleep(_TRY_SECONDS)
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRORS:
                raise
            return
    owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    process = f" (process {owner})" if owner.isdigit() else ""
    raise ValueError(
        f"`run_dir` is in use by a living run{process}; wait for it or stop it. Received: run_dir={str(folder)!r}"
    )
