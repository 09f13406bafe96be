"""The warden: a bare interpreter that ends actors and their children when the learner's process is gone.

An actor asks the kernel to die with its parent, but its own children (simulators) don't inherit that.
The warden holds one end of a pipe and a list of process groups; when the other end closes, for whatever
reason, it kills what is still on the list. A process that started a session of its own is out of reach.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

_PROGRAM = """
import os, select, signal, sys
parent, pipe = int(sys.argv[1]), int(sys.argv[2])
groups, rest = set(), b""
while True:
    if not select.select([pipe], [], [], 1.0)[0]:
        if os.getppid() != parent:
            break
        continue
    part = os.read(pipe, 4096)
    if not part:
        break
    *lines, rest = (rest + part).split(b"\\n")
    for line in lines:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
# The parent is asked for once a second as well: a process that the caller has forked holds a copy of the
# pipe's other end, and would keep it open.

_END_SECONDS = 1.0


class Warden:
    """Started by the constructor, ended by `close`."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), str(reading)],
                pass_fds=(reading,),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def watch(self, group: int) -> None:
        """Puts a process group on the list."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Takes a process group off the list: before its leader is reaped, since ids are used again."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # someone killed the warden; the actors still die with their parent
            os.write(self._writing, line.encode())

    def close(self) -> None:
        """Ends the warden; whatever is still on its list is killed."""
        os.close(self._writing)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_SECONDS)
