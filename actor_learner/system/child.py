"""The launcher of Python processes that end with the thread that starts them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# The child first asks the kernel to kill it when its parent ends. The signal fires when the *thread* that started it
# ends, and misses a parent that ended before, hence the comparison.
_BOOTSTRAP = """
import os, sys
_, name, parent, main, count, *words = sys.argv
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(parent):
    os._exit(0)
sys.path[:] = words[:int(count)]
from importlib import import_module
module, _, function = main.partition(":")
getattr(import_module(module), function)(*words[int(count):])
"""

_LIBRARIES = ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
ONE_THREAD = {f"{library}_THREADS": "1" for library in _LIBRARIES}
"""Environment variables that give BLAS and OpenMP one thread."""

# Errors of a kernel that is short of something for a moment; the last, while TensorFlow is being loaded.
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EFAULT)
_RETRY_SECONDS = 0.1


def start_python(
    main: str,
    arguments: Sequence[object] = (),
    *,
    name: str,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a Python process that has this one's flags and `sys.path`, and calls `main` with `arguments`.

    On Linux the process is killed when the calling thread ends. It leads a session and a process group of its own: the
    terminal's Ctrl-C, Ctrl-Z and hang-up don't reach it, and `os.killpg` also ends its children.

    main: "package.module:function". arguments: passed to the function as strings. name: as `ps` shows the process.
    descriptors: file descriptors that the process inherits. environment: variables instead of this process's.

    Raises RuntimeError if the path of Python's executable is unknown, OSError if the process can't be started.
    """
    if not (python := sys.executable):
        raise RuntimeError(
            f"A child process needs the path of Python's executable. Received: sys.executable={python!r}"
        )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    paths = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    package_parent = str(Path(__file__).absolute().parents[2])
    paths += [] if package_parent in paths else [package_parent]
    words = [name, os.getpid(), main, len(paths), *paths, *arguments]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, *flags, "-P", "-c", _BOOTSTRAP, *map(str, words)],
            pass_fds=descriptors,
            env=environment,
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    try:
        return start()
    except OSError as error:
        if error.errno not in _TRANSIENT:
            raise
    time.sleep(_RETRY_SECONDS)
    return start()
