"""The process of one actor: its start, its output, and its end together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path

from actor_learner.actors.transport.messages import Channel, write_all
from actor_learner.actors.transport.shared_memory import anonymous_file
from actor_learner.system.child import start_python
from actor_learner.system.files import open_plain

_READ_BYTES = 1 << 16
_MAX_READS = 256
_MAX_LINE_BYTES = 1 << 16
_TAIL_CHARS = 4096
MAX_LOG_BYTES = 16 << 20  # the size in bytes from which on a log is renamed


class ActorProcess:
    """One actor's process, the channel to it and its output. It is killed when the thread that starts it ends.

    payload: the pickle that `worker.main` reads. arena: descriptor of the group's arena. log: file that the output is
    appended to, or None. show: called with each line of the output. environment: variables instead of this process's.
    """

    def __init__(
        self,
        number: int,
        payload: bytes,
        arena: int,
        log: Path | None,
        show: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        self.number, self._show = number, show
        self.tail, self._partial_line = "", b""  # tail: the end of its output, for the report of its death
        with contextlib.ExitStack() as undo:  # closes all descriptors so far if a later step fails
            self._log = None if log is None else undo.enter_context(contextlib.closing(LogFile(log)))
            near, far = socket.socketpair()
            with far:
                mailbox = anonymous_file(f"actor_learner:mailbox-{number}")
                self.channel = Channel(near.detach(), mailbox)
                undo.callback(self.channel.close)
                self.output, output = os.pipe()
                undo.callback(os.close, self.output)
                with open(output, "wb", buffering=0):
                    os.set_blocking(self.output, False)
                    write_all(mailbox, payload)
                    descriptors = (far.fileno(), mailbox, arena)
                    self._process = start_python(
                        "actor_learner.actors.processes.worker:main",
                        descriptors,
                        name=f"actor-{number}",
                        descriptors=descriptors,
                        environment=environment,
                        stdout=output,
                        stderr=output,
                    )
            self.pidfd: int | None = None  # readable when the process has ended; None: the system has none
            with contextlib.suppress(AttributeError, OSError):  # not on macOS
                self.pidfd = os.pidfd_open(self._process.pid)
                undo.callback(os.close, self.pidfd)
            self._undo = undo.pop_all()

    @property
    def pid(self) -> int:
        """The process id: the id of its process group and session as well."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return whether the process has ended; doesn't reap it, so that its id isn't used again."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # reaped by the caller's own wait(), or SIGCHLD is ignored
            return True

    def kill(self) -> None:
        """Kill the process and all that it started in its session, at once. Not after `reap`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self, seconds: float) -> int | None:
        """Wait for the end of a killed process; return its exit code (minus the signal), None if it hasn't ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def drain(self) -> int | None:
        """Read some of its output; return the number of bytes: 0 at the end, None if there are none now."""
        try:
            part = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return None
        if self._log is not None:
            self._log.write(part)
        self._split(part)
        return len(part)

    def drain_all(self) -> None:
        """Read the rest of its output, without waiting for that of its own children."""
        for _ in range(_MAX_READS):
            if not self.drain():
                break
        if self._partial_line:
            self._split(b"\n")

    def _split(self, part: bytes) -> None:
        self.tail = (self.tail + part.decode(errors="replace"))[-_TAIL_CHARS:]
        *lines, self._partial_line = (self._partial_line + part).split(b"\n")
        if len(self._partial_line) > _MAX_LINE_BYTES:
            lines, self._partial_line = [*lines, self._partial_line], b""
        for line in lines:
            self._show(line.decode(errors="replace"))

    def close(self) -> None:
        """Close every descriptor. The process must have been reaped."""
        self._undo.close()


class LogFile:
    """A log of bounded size: beyond `MAX_LOG_BYTES` the file is renamed to `<name>.1`, and a new one begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()

    def write(self, part: bytes) -> None:
        """Append where possible: a full disk doesn't end the training."""
        with contextlib.suppress(OSError):
            if self._file.tell() > MAX_LOG_BYTES:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._file.close()
                self._file = self._open()
            self._file.write(part)

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)  # an empty folder may have been removed since
        return FileIO(open_plain(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), "ab")

    def close(self) -> None:
        self._file.close()
