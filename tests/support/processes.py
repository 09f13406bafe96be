"""What tests look up about processes, in /proc, and how long they wait for them."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

from actor_learner.system.machine import available_cores


def children() -> set[int]:
    """Ids of this process's children, dead ones that nobody has reaped included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found.update(map(int, task.read_text().split()))
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and isn't a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def patience(seconds: float) -> float:
    """Seconds to wait for what takes at most `seconds` on a quiet machine: as many times more as this one is busy."""
    return seconds * min(10.0, max(1.0, 2.0 * os.getloadavg()[0] / available_cores()))


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether `condition` becomes true within so many seconds of a quiet machine."""
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def open_descriptors() -> list[str]:
    """What this process has open, one entry per descriptor, without what only garbage of earlier tests holds."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that listed the folder
            continue
    return sorted(found)


def resident_megabytes(pid: int | str = "self") -> float:
    """Resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
