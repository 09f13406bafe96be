"""The memory and CPU time of a run: this process, its actors, all processes that they started, and other programs."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from actor_learner.system import machine
from actor_learner.system.machine import allowed_cores, busy_seconds, cpu_pressure, cpu_quota

_MAX_SHARE = 0.005
"""The most CPU time that measuring may take. The kernel walks the page tables, about 8 ms for each GB."""
_TICKS = os.sysconf("SC_CLK_TCK")


_OUT_OF_MEMORY = re.compile(
    r"resource_?exhausted|out[ _]of[ _]memory|OOM when|failed to allocate|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


def tells_of_no_memory(text: str) -> bool:
    """Return whether a library's error says that memory ran out.

    XLA's search for the fastest algorithm and cuDNN say so in errors of other kinds, such as INTERNAL.
    """
    return bool(_OUT_OF_MEMORY.search(text))


class Usage(NamedTuple):
    """Bytes in use. A page that n processes share counts as 1/n in each, if the kernel reports it.

    learner: this process and its children, without the actors. actors: each actor and its children, by number.
    cpu_seconds: seconds used so far by each process: (actor, or None for the learner; process id) -> seconds.
    """

    learner: int
    actors: dict[int, int]
    cpu_seconds: Mapping[tuple[int | None, int], float] = {}

    @property
    def total(self) -> int:
        """The bytes of the whole process tree."""
        return self.learner + sum(self.actors.values())


class MemorySampler:
    """A sampler that measures at intervals.

    pids: returns the process id of each actor (`ActorPool.pids`), which is also its group's and its session's id.
    seconds: shortest time between two measurements; longer where measuring takes more than 0.5% of a core.
    second_after: time between the first two measurements, if it differs: shares of the CPU need two.
    """

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], seconds: float = 10.0, second_after: float | None = None
    ) -> None:
        self._pids, self._seconds = pids, seconds
        self._wait = seconds if second_after is None else second_after
        self._due = -math.inf
        self._newest: Usage | None = None
        self._measured_at = 0.0
        self._busy: float | None = None
        self._cpu: dict[int | None, float] = {}
        self._cpu_of_others: dict[str, float] = {}

    def sample(self) -> Usage | None:
        """Return the usage; None before the next measurement is due, or if it fails."""
        now = time.monotonic()
        if now < self._due:
            return None
        before = time.thread_time()
        try:
            newest, busy = measure(self._pids()), _busy_seconds()
        except OSError:  # no descriptor or process is left, which must not end the caller
            return None
        self._due = now + max(self._wait, (time.thread_time() - before) / _MAX_SHARE)
        self._wait = self._seconds
        if self._newest is not None:
            seconds = now - self._measured_at
            self._cpu = cpu_shares(self._newest, newest, seconds)
            if busy is not None and self._busy is not None:
                others = (busy - self._busy) / seconds - sum(self._cpu.values())
                self._cpu_of_others = {"cpu/others": max(0.0, others), "cpu/pressure": cpu_pressure()}
        self._newest, self._busy, self._measured_at = newest, busy, now
        return newest

    def metrics(self) -> dict[str, float]:
        """Return the last measurement's metrics of learner and actors.

        `memory/learner_mb` and `memory/actor_<n>_mb` are in MB of 10^6 bytes. From the second measurement on,
        `cpu/learner`, `cpu/actor_<n>` and `cpu/others` (all other programs, where the system counts them) are the CPU
        seconds per second between the last two; `cpu/pressure` is the share of time in which a process waited for a
        core.
        """
        self.sample()
        if self._newest is None:
            return {}
        sizes: dict[int | None, int] = {None: self._newest.learner, **dict(sorted(self._newest.actors.items()))}
        memory = {f"memory/{owner_name(owner)}_mb": size / 1e6 for owner, size in sizes.items()}
        cpu = {f"cpu/{owner_name(owner)}": self._cpu[owner] for owner in sizes if owner in self._cpu}
        return {**memory, **cpu, **self._cpu_of_others}


def _busy_seconds() -> float | None:
    """Return the CPU seconds of all processes on this process's cores; None if the cores aren't its own by a quota."""
    return busy_seconds() if cpu_quota() >= allowed_cores() else None


def cpu_shares(before: Usage, after: Usage, seconds: float) -> dict[int | None, float]:
    """Return the CPU seconds per second of the learner (None) and of each actor.

    Only processes that still exist at the end count, because the CPU time of ended ones is unknown.
    """
    shares = dict.fromkeys([None, *after.actors], 0.0)
    for process, used in after.cpu_seconds.items():
        earlier = before.cpu_seconds.get(process, 0.0)
        shares[process[0]] += (used - earlier if used >= earlier else used) / max(seconds, 1e-9)
    return shares


def owner_name(owner: int | None) -> str:
    """Return the name of a process in metrics: that of an actor by its number, or the learner's (None)."""
    return "learner" if owner is None else f"actor_{owner}"


def release(array: Any) -> None:
    """Give the pages of a C-contiguous array back to the system at once, where it can: its contents are lost.

    For arrays that are freed piece by piece while they are copied.
    """
    start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def measure(actors: Mapping[int, int]) -> Usage:
    """Measure this process's tree.

    actors: process id of each actor. Its processes are those in its group, in its session or below it, so that a
        simulator counts although its own parent has ended.

    Without /proc (macOS), `ps` is used, and shared memory counts in full in each process. Raises OSError if the
    processes can't be read.
    """
    proc = machine.ROOT / "proc"
    table = dict(_processes_by_proc(proc) if (proc / "self/stat").exists() else _processes_by_ps())
    numbers = {pid: actor for actor, pid in actors.items()}
    sizes: dict[int | None, int] = dict.fromkeys([None, *actors], 0)
    cpu_seconds = {}
    for pid, process in table.items():
        root = _owner_of(pid, table, numbers)
        if root is not None:
            owner = numbers.get(root)
            sizes[owner] += process.size()
            cpu_seconds[owner, pid] = process.cpu_seconds
    return Usage(sizes[None], {actor: sizes[actor] for actor in actors}, cpu_seconds)


class _Process(NamedTuple):
    """An entry of the process table; `size` measures the process's bytes."""

    parent: int
    group: int
    session: int
    cpu_seconds: float
    size: Callable[[], int]


def _owner_of(pid: int, table: Mapping[int, _Process], actors: Collection[int]) -> int | None:
    """Return the process id of the actor, or of this process, that a process belongs to; None for other processes."""
    for _ in range(len(table)):  # the table is read over time: reused ids may even form a circle
        if pid in actors or pid == os.getpid():
            return pid
        if (process := table.get(pid)) is None:
            return None
        for leader in (process.group, process.session):
            if leader in actors:
                return leader
        pid = process.parent
    return None


def _processes_by_proc(proc: Path) -> Iterator[tuple[int, _Process]]:
    for name in os.listdir(proc):
        if name.isdigit() and (line := _read(f"{proc}/{name}/stat")):
            fields = line.rpartition(")")[2].split()  # after the name, which may hold anything
            parent, group, session = map(int, fields[1:4])
            seconds = sum(map(int, fields[11:13])) / _TICKS  # user and system time of all threads
            size = functools.partial(_process_bytes, f"{proc}/{name}")
            yield int(name), _Process(parent, group, session, seconds, size)


def _processes_by_ps() -> Iterator[tuple[int, _Process]]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,rss=,time="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        lines = ps.communicate()[0].splitlines()
    for line in lines:
        *numbers, used = line.split()
        pid, parent, group, kilobytes = map(int, numbers)
        if pid != ps.pid:
            yield pid, _Process(parent, group, group, _parse_ps_time(used), functools.partial(int, 1024 * kilobytes))


def _parse_ps_time(text: str) -> float:
    """Parse `[[days-]hours:]minutes:seconds`, which may have a fraction."""
    days, _, rest = text.rpartition("-")
    parts = reversed(rest.split(":"))
    return 86400 * int(days or 0) + sum(float(part) * 60.0**power for power, part in enumerate(parts))


def _process_bytes(folder: str) -> int:
    """Return the bytes of a process, of which shared ones count in part, or its resident and swapped ones."""
    # smaps_rollup needs Linux 4.14 and the right to trace the process, which a set-user-id program denies.
    fields = _read_fields(f"{folder}/smaps_rollup", ("Pss", "SwapPss")) or _read_fields(
        f"{folder}/status", ("VmRSS", "VmSwap")
    )
    return 1024 * sum(fields.values())


def _read_fields(path: str, names: Collection[str]) -> dict[str, int]:
    """Return the named entries of the lines `Name:  number kB`, in kB."""
    split = (line.partition(":") for line in _read(path).splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in split if name in names}


def _read(path: str) -> str:
    """Return the contents of a file of /proc; "" if the process has ended or belongs to another user."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("latin-1")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
