"""How much memory a run takes: this process, its actors, and everything that they started."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from actor_learner.cgroups import own_groups, read_number

_LARGEST_SHARE = 0.005
"""Of the CPU time; what takes longer is done less often. The kernel walks the page tables, 8 ms or so for each GB."""

_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
"""By cgroup version. Above `memory.high` nothing is killed, but everything is slowed down to give memory back."""


class Usage(NamedTuple):
    """Bytes in use. A page that n processes share counts as 1/n in each, where the kernel tells.

    learner: this process and what it started, but for the actors. actors: by number, with what each has started.
    """

    learner: int
    actors: dict[int, int]

    @property
    def total(self) -> int:
        """Bytes of the whole process tree."""
        return self.learner + sum(self.actors.values())


class MemorySampler:
    """Measures from time to time.

    pids: gives the process of each actor (`ActorPool.pids`), which are their groups' and sessions' ids as well.
    seconds: between two measurements, at least; more where that would take a share of the CPU that is worth a mention.
    """

    def __init__(self, pids: Callable[[], Mapping[int, int]], seconds: float = 10.0) -> None:
        self._pids, self._seconds = pids, seconds
        self._due = -math.inf
        self._newest: Usage | None = None

    def sample(self) -> Usage | None:
        """What is in use; None if it isn't time yet, or if it can't be measured now."""
        now = time.monotonic()
        if now < self._due:
            return None
        before = time.thread_time()
        try:
            newest = measure(self._pids())
        except OSError:  # no descriptor left, or no process: nothing that should end whoever looks on
            return None
        self._due = now + max(self._seconds, (time.thread_time() - before) / _LARGEST_SHARE)
        self._newest = newest
        return newest

    def metrics(self) -> dict[str, float]:
        """`memory/learner_mb` and `memory/actor_<n>_mb` as measured last, in MB of 10^6 bytes."""
        self.sample()
        if self._newest is None:
            return {}
        actors = {f"memory/actor_{actor}_mb": size / 1e6 for actor, size in sorted(self._newest.actors.items())}
        return {"memory/learner_mb": self._newest.learner / 1e6, **actors}


def measure(actors: Mapping[int, int], proc: Path = Path("/proc")) -> Usage:
    """What this process's tree takes now.

    actors: process id of each. Its processes are those in its group or session or below it, so that a simulator counts
    whose own parent has ended. One that is gone takes nothing. proc: without it (macOS), `ps` is asked, and what is
    shared counts in full everywhere.

    Raises OSError where that can't be read.
    """
    table = _process_table(proc)
    numbers = {pid: actor for actor, pid in actors.items()}
    learner, sizes = 0, dict.fromkeys(actors, 0)
    for pid, process in table.items():
        root = _root(pid, table, numbers)
        if root in numbers:
            sizes[numbers[root]] += process.size()
        elif root is not None:
            learner += process.size()
    return Usage(learner, sizes)


def cgroup_limit(root: Path = Path("/")) -> float:
    """Bytes that this process's cgroups allow, at which the kernel kills or throttles; inf where none says.

    root: where `proc` and `sys` are.
    """
    groups = own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    limits = [read_number(group.folder / name) for group in groups for name in _LIMITS[group.version]]
    return min((limit for limit in limits if limit is not None), default=math.inf)


class _Process(NamedTuple):
    """A line of the process table; `size` gives its bytes."""

    parent: int
    group: int
    session: int
    size: Callable[[], int]


def _root(pid: int, table: Mapping[int, _Process], actors: Collection[int]) -> int | None:
    """The actor that a process belongs to, or else this process; None if it is a stranger."""
    for _ in range(len(table)):  # the table isn't of one moment: ids may have changed hands, even to a circle
        if pid in actors or pid == os.getpid():
            return pid
        process = table.get(pid)
        if process is None:
            return None
        for leader in (process.group, process.session):
            if leader in actors:
                return leader
        pid = process.parent
    return None


def _process_table(proc: Path) -> dict[int, _Process]:
    return dict(_processes(proc) if (proc / "self/stat").exists() else _processes_by_ps())


def _processes(proc: Path) -> Iterator[tuple[int, _Process]]:
    for name in os.listdir(proc):
        if name.isdigit() and (line := _read(f"{proc}/{name}/stat")):
            fields = line.rpartition(")")[2].split()  # up to there it is a name, which may be anything
            parent, group, session = map(int, fields[1:4])
            yield int(name), _Process(parent, group, session, functools.partial(_size, f"{proc}/{name}"))


def _processes_by_ps() -> Iterator[tuple[int, _Process]]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,rss="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        lines = ps.communicate()[0].splitlines()
    for pid, parent, group, kilobytes in (map(int, line.split()) for line in lines):
        if pid != ps.pid:
            yield pid, _Process(parent, group, group, functools.partial(int, 1024 * kilobytes))


def _size(folder: str) -> int:
    """Bytes of one process, swapped ones included: its proportional set size, or else what is resident.

    The first needs Linux 4.14 and the right to trace the process, which a set-user-id program denies.
    """
    fields = _fields(f"{folder}/smaps_rollup", ("Pss", "SwapPss"))
    if "Pss" not in fields:
        fields = _fields(f"{folder}/status", ("VmRSS", "VmSwap"))
    return 1024 * sum(fields.values())


def _fields(path: str, names: Collection[str]) -> dict[str, int]:
    """Those of the lines `Name:  number kB`, in kB."""
    split = (line.partition(":") for line in _read(path).splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in split if name in names}


def _read(path: str) -> str:
    """What a file of /proc says; nothing if the process is gone or not ours to look at."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("latin-1")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
