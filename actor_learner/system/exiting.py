"""The end of the command line's process: Python's own shutdown, and nothing after it where TensorFlow is loaded.

TensorFlow and LiteRT leave threads that run on, and thousands of static objects, which the C library would destroy
under them: a run that has saved everything could still end by an abort.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

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
