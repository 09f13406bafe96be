"""How much memory and CPU time a run takes: this process, its actors, and everything that they started."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_LARGEST_SHARE = 0.005
"""Of the CPU time; what takes longer is done less often. The kernel walks the page tables, 8 ms or so for each GB."""

_TICKS = os.sysconf("SC_CLK_TCK")

_PROPORTIONAL = ("Pss", "SwapPss")
_OWN = ("Private_Dirty", "SwapPss")


class Usage(NamedTuple):
    """Bytes in use. A page that n processes share counts as 1/n in each, where the kernel tells.

    learner: this process and what it started, but for the actors. actors: by number, with what each has started.
    cpu_seconds: used so far by each process: (actor, or None for the learner; process id) -> seconds.
    """

    learner: int
    actors: dict[int, int]
    cpu_seconds: Mapping[tuple[int | None, int], float] = {}

    @property
    def total(self) -> int:
        """Bytes of the whole process tree."""
        return self.learner + sum(self.actors.values())


class MemorySampler:
    """Measures from time to time.

    pids: gives the process of each actor (`ActorPool.pids`), which are their groups' and sessions' ids as well.
    seconds: between two measurements, at least; more where that would take a share of the CPU that is worth a mention.
    second_after: between the first two, where that is another figure: shares of the CPU need two.
    """

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], seconds: float = 10.0, second_after: float | None = None
    ) -> None:
        self._pids, self._seconds = pids, seconds
        self._wait = seconds if second_after is None else second_after
        self._due = -math.inf
        self._newest: Usage | None = None
        self._measured_at = 0.0
        self._cpu: dict[int | None, float] = {}

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
        self._due = now + max(self._wait, (time.thread_time() - before) / _LARGEST_SHARE)
        self._wait = self._seconds
        if self._newest is not None:
            self._cpu = cpu_shares(self._newest, newest, now - self._measured_at)
        self._newest, self._measured_at = newest, now
        return newest

    def metrics(self) -> dict[str, float]:
        """Of learner and actors, as measured last; nothing before the first measurement.

        `memory/learner_mb` and `memory/actor_<n>_mb` in MB of 10^6 bytes. From the second measurement on also
        `cpu/learner` and `cpu/actor_<n>`: CPU seconds per second between the last two.
        """
        self.sample()
        if self._newest is None:
            return {}
        sizes: dict[int | None, int] = {None: self._newest.learner, **dict(sorted(self._newest.actors.items()))}
        memory = {f"memory/{_name(owner)}_mb": size / 1e6 for owner, size in sizes.items()}
        return {**memory, **{f"cpu/{_name(owner)}": self._cpu[owner] for owner in sizes if owner in self._cpu}}


def cpu_shares(before: Usage, after: Usage, seconds: float) -> dict[int | None, float]:
    """CPU seconds per second of the learner (None) and of each actor.

    A process counts as far as it is there in the end: what one has used that has ended since isn't known.
    """
    shares = dict.fromkeys([None, *after.actors], 0.0)
    for process, used in after.cpu_seconds.items():
        earlier = before.cpu_seconds.get(process, 0.0)
        shares[process[0]] += (used - earlier if used >= earlier else used) / max(seconds, 1e-9)
    return shares


def _name(owner: int | None) -> str:
    return "learner" if owner is None else f"actor_{owner}"


def measure(actors: Mapping[int, int], proc: Path = Path("/proc"), counted: Collection[str] = _PROPORTIONAL) -> Usage:
    """What this process's tree takes now.

    actors: process id of each. Its processes are those in its group or session or below it, so that a simulator counts
    whose own parent has ended. One that is gone takes nothing. proc: without it (macOS), `ps` is asked, and what is
    shared counts in full everywhere. counted: fields of `smaps_rollup`.

    Raises OSError where that can't be read.
    """
    table = _process_table(proc, counted)
    numbers = {pid: actor for actor, pid in actors.items()}
    sizes: dict[int | None, int] = dict.fromkeys([None, *actors], 0)
    cpu_seconds = {}
    for pid, process in table.items():
        root = _root(pid, table, numbers)
        if root is not None:
            owner = numbers.get(root)
            sizes[owner] += process.size()
            cpu_seconds[owner, pid] = process.cpu_seconds
    return Usage(sizes[None], {actor: sizes[actor] for actor in actors}, cpu_seconds)


def own_memory(pid: int) -> int:
    """Bytes that an actor's process and all that it started have for themselves: what another one like it takes, too.

    Code and data that are the same files in each are left out, where the kernel tells; the batches are as well.
    """
    return measure({0: pid}, counted=_OWN).actors[0]


class _Process(NamedTuple):
    """A line of the process table; `size` gives its bytes."""

    parent: int
    group: int
    session: int
    cpu_seconds: float
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


def _process_table(proc: Path, counted: Collection[str]) -> dict[int, _Process]:
    return dict(_processes(proc, counted) if (proc / "self/stat").exists() else _processes_by_ps())


def _processes(proc: Path, counted: Collection[str]) -> Iterator[tuple[int, _Process]]:
    for name in os.listdir(proc):
        if name.isdigit() and (line := _read(f"{proc}/{name}/stat")):
            fields = line.rpartition(")")[2].split()  # up to there it is a name, which may be anything
            parent, group, session = map(int, fields[1:4])
            seconds = sum(map(int, fields[11:13])) / _TICKS  # user and system time of all its threads
            size = functools.partial(_size, f"{proc}/{name}", counted)
            yield int(name), _Process(parent, group, session, seconds, size)


def _processes_by_ps() -> Iterator[tuple[int, _Process]]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,rss=,time="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        lines = ps.communicate()[0].splitlines()
    for line in lines:
        *numbers, used = line.split()
        pid, parent, group, kilobytes = map(int, numbers)
        if pid != ps.pid:
            yield pid, _Process(parent, group, group, _seconds(used), functools.partial(int, 1024 * kilobytes))


def _seconds(text: str) -> float:
    """Of `[[days-]hours:]minutes:seconds`, which may have a fraction."""
    days, _, rest = text.rpartition("-")
    parts = reversed(rest.split(":"))
    return 86400 * int(days or 0) + sum(float(part) * 60.0**power for power, part in enumerate(parts))


def _size(folder: str, counted: Collection[str]) -> int:
    """Bytes of one process, swapped ones included: those that are counted, or else what is resident.

    The first needs Linux 4.14 and the right to trace the process, which a set-user-id program denies.
    """
    fields = _fields(f"{folder}/smaps_rollup", counted)
    if not fields:
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
