"""The end of a process: where an abort in native code leaves its message and Python's stacks, and an end without one.

An abort is told on stderr, or in a run's log. TensorFlow and LiteRT leave threads that run on, and thousands of static
objects, which the C library would destroy under them: a run that has saved everything could still end by an abort. So
the command line's process ends with Python's own shutdown, and nothing after it where TensorFlow is loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import io
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

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


VARIABLE = "ACTOR_LEARNER_NATIVE_EXIT"
"""Environment variable; if it isn't empty, native libraries end as usual: profilers write their results then."""

_LIBRARIES = {"tensorflow", "ai_edge_litert"}
_FLUSH_FAILED = 120  # Python's own exit code for it
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)  # text first, which fills the buffers of the others


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Call `main` and end the process, as `sys.exit(main())` does: same output, same exit code."""
    show = sys.excepthook

    def show_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        _end(error if isinstance(error, KeyboardInterrupt) else 1)

    sys.excepthook = show_and_end
    try:
        code: Any = main()
    except SystemExit as error:
        code = error.code
    _end(code)
    sys.exit(code)


def _end(code: Any) -> None:
    """End the process if a library is loaded that might abort it. code: as `SystemExit` takes it, or the Ctrl-C."""
    if os.environ.get(VARIABLE) or not _LIBRARIES & set(sys.modules):
        return
    if code is not None and not isinstance(code, int | KeyboardInterrupt):
        print(code, file=sys.stderr)
        code = 1
    flushed = _shut_down()
    if isinstance(code, KeyboardInterrupt):  # a shell looks at the signal that its command ended by
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF if flushed else _FLUSH_FAILED)


def _shut_down() -> bool:
    """Wait for threads, call the functions of `atexit`, flush all files; return False if that of stdout fails."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        _report_ignored(threading, error)
    atexit._run_exitfuncs()
    gc.unfreeze()
    opened = [thing for thing in gc.get_objects() if type(thing) in _FILES]
    for file in sorted(opened, key=lambda file: _FILES.index(type(file))):
        if file is not sys.stdout:
            _flush(file)
    failure = _flush(sys.stdout)
    if failure is not None:
        _report_ignored(sys.stdout, failure)
    _flush(sys.stderr)
    ctypes.CDLL(None).fflush(None)
    return failure is None


def _flush(file: Any) -> Exception | None:
    """Flush a file, unless it is closed; return the exception that it raises."""
    try:
        if file is not None and not getattr(file, "closed", False):
            file.flush()
    except Exception as error:
        return error
    return None


def _report_ignored(where: Any, error: BaseException) -> None:
    """Write what Python itself writes of an exception in its shutdown."""
    trace = error.__traceback__ and error.__traceback__.tb_next  # without this module's frame
    lines = traceback.format_exception(error.with_traceback(trace))
    print(f"Exception ignored in: {where!r}", "".join(lines), sep="\n", end="", file=sys.stderr)
