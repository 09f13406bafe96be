"""The orphan reaper: a bare interpreter that ends actors and their children when the learner's process has ended.

The kernel kills an actor when its parent ends, but not the actor's children (simulators). The orphan reaper holds one
end of a pipe and a list of process groups; when the other end closes, for any reason, it kills the groups that are
still on the list. It doesn't reach a process that started a session of its own.
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
# It also checks its parent once a second: a process that the caller has forked keeps the pipe's other end open.
_END_SECONDS = 1.0


class OrphanReaper:
    """The process, which the constructor starts and `close` ends."""

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

    def watch(self, group: int) -> None:
        """Put a process group on the list."""
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Take a process group off the list: before its leader is reaped, since ids are used again."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the orphan reaper was killed; the actors still die with their parent
            os.write(self._writing, line.encode())

    def close(self) -> None:
        """End the process, which kills the groups that are still on its list."""
        os.close(self._writing)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_SECONDS)
