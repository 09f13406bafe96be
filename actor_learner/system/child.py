"""Python processes that end with the thread that starts them: their launcher, and those that answer messages."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

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

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Environment variables that hide the GPUs: libraries that see one keep a part of its memory in each process."""

# Errors of a kernel that is short of something for a moment; the last, while TensorFlow is being loaded.
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EFAULT)
_RETRY_SECONDS = 0.1
_END_SECONDS = 5.0  # the longest wait for the end of a process that has closed its connection


def start_python(
    main: str,
    arguments: Sequence[object] = (),
    *,
    name: str,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
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
            stdin=subprocess.DEVNULL,
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


class ChildEndedError(RuntimeError):
    """A child has ended, or has closed its connection; the message says why, in one line."""


class Child:
    """A process of `start_python` that answers messages, pickled objects, over a connection.

    main: called with the descriptor of its end of the connection, then the arguments, as text. Its stderr is kept.
    """

    def __init__(
        self,
        main: str,
        arguments: Sequence[object] = (),
        *,
        name: str,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        near, far = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(near.detach())
        try:
            with far:
                own = far.fileno()
                self._process = start_python(
                    main,
                    (own, *arguments),
                    name=name,
                    descriptors=(own, *descriptors),
                    environment=environment,
                    stderr=self._errors,
                )
        except BaseException:
            self.connection.close()
            self._errors.close()
            raise

    def send(self, message: Any) -> None:
        """Send a message. Raises ChildEndedError."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise ChildEndedError(self.last_words()) from error

    def receive(self, seconds: float) -> Any:
        """Return the next message. Raises TimeoutError after so many seconds, and ChildEndedError."""
        try:
            if self.connection.poll(max(seconds, 0.0)):
                return self.connection.recv()
        except (EOFError, OSError) as error:
            raise ChildEndedError(self.last_words()) from error
        raise TimeoutError(f"no answer in {seconds:.3g} s")

    def last_words(self) -> str:
        """Return the last line of stderr of a process that ends, or how it ended."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection, but goes on"
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"

    def interrupt(self) -> None:
        """Send the process SIGTERM, unless it has ended: a shell's background jobs ignore the signal of Ctrl-C."""
        self._process.send_signal(signal.SIGTERM)

    def close(self, seconds: float = 0.0) -> None:
        """End the process and its children; idempotent. It has so many seconds to end by itself, and them."""
        self.connection.close()
        if seconds > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
