"""Where an abort in native code leaves its message and the stacks of Python's threads: on stderr, or in a run's log."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
from collections.abc import Iterator
from pathlib import Path

from actor_learner.system.files import open_plain

_LOG_NAME = "native.log"

_run_folders: list[Path] = []  # those of the runs in this process, the newest last
_stack_descriptor: int | None = None  # the descriptor that stacks are written to; None: faulthandler isn't ours


def show_stacks() -> None:
    """Write the stack of each thread to stderr if a signal such as SIGABRT or SIGSEGV ends the process.

    Do nothing where faulthandler is enabled: its owner has chosen a file.
    """
    global _stack_descriptor
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError):  # stderr is closed
            _stack_descriptor = os.dup(2)
            faulthandler.enable(_stack_descriptor)


def _hide_stacks() -> None:
    global _stack_descriptor
    if _stack_descriptor is not None:
        faulthandler.disable()
        os.close(_stack_descriptor)
        _stack_descriptor = None


@contextlib.contextmanager
def native_log(folder: Path) -> Iterator[None]:
    """Show stacks while entered; keep them, with the message, in `folder`/native.log where nobody can read stderr."""
    with contextlib.ExitStack() as undo:
        if _stack_descriptor is None:
            show_stacks()
            undo.callback(_hide_stacks)
        _run_folders.append(folder)
        undo.callback(_run_folders.remove, folder)
        undo.callback(_remove_empty_log)
        _replace_unread(_stack_descriptor)
        yield


@contextlib.contextmanager
def kept_if_it_aborts() -> Iterator[int]:
    """Give a descriptor for output that nobody wants to see, unless the process aborts before the exit.

    Then it is in the newest run's native.log, with the stacks. Outside of a run it is lost, but the stacks are shown.
    """
    is_new = not any((folder / _LOG_NAME).exists() for folder in _run_folders[-1:])
    log = _open_log()
    sink = os.open(os.devnull, os.O_WRONLY) if log is None else log
    size = os.fstat(sink).st_size
    if log is not None and _stack_descriptor is not None:
        faulthandler.enable(log)
    try:
        yield sink
    finally:
        if _stack_descriptor is not None:
            faulthandler.enable(_stack_descriptor)
        if log is not None:
            os.ftruncate(log, size)
        os.close(sink)
        if is_new:
            _remove_empty_log()


def leave_closed_terminal() -> None:
    """Write to the newest run's native.log instead of stderr, if its terminal has been closed."""
    _replace_unread(2)
    _replace_unread(_stack_descriptor)


def _replace_unread(descriptor: int | None) -> None:
    """Let a descriptor whose output nobody can read refer to the newest run's native.log."""
    if descriptor is not None and not _has_reader(descriptor) and (log := _open_log()) is not None:
        os.dup2(log, descriptor)
        os.close(log)


def _open_log() -> int | None:
    """Open the newest run's native.log to append to it; return None outside of a run, or if the file can't be made."""
    with contextlib.suppress(OSError):
        for folder in _run_folders[-1:]:
            folder.mkdir(exist_ok=True)
            return open_plain(folder / _LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return None


def _remove_empty_log() -> None:
    with contextlib.suppress(OSError):
        for folder in _run_folders[-1:]:
            if not (folder / _LOG_NAME).stat().st_size:
                (folder / _LOG_NAME).unlink()
                folder.rmdir()


def _has_reader(descriptor: int) -> bool:
    """Return False if the descriptor is closed, a terminal or pipe whose other end is closed, or /dev/null."""
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(os.devnull)):
            return False
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups and errors alone
    return not poll.poll(0)
