"""What a process has, of what it must not leave behind: children, descriptors, threads, shared memory, files."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Leftovers(NamedTuple):
    """What there is at a moment, by kind; for Linux."""

    children: Counter[str]
    descriptors: Counter[str]
    threads: Counter[str]
    shared_memory: Counter[str]
    files: Counter[str]

    @classmethod
    def now(cls, temporary: Path) -> Leftovers:
        """Of this process. temporary: the folder of its temporary files."""
        gc.collect()
        return cls(
            Counter(children()),
            Counter(_descriptors()),
            Counter(thread.name for thread in threading.enumerate()),
            Counter([*os.listdir("/dev/shm"), *_mapped()]),  # noqa: S108
            Counter(map(str, temporary.rglob("*"))),
        )

    def since(self, before: Leftovers) -> list[str]:
        """What is here that wasn't there before, in words."""
        more = zip(self._fields, self, before, strict=True)
        return [f"{kind} left: {sorted((now - then).elements())}" for kind, now, then in more if now - then]


def children() -> list[str]:
    """Command lines of this process's children, dead ones that nobody has reaped included."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [command_line(int(pid)) for task in tasks for pid in task.read_text().split()]


def command_line(pid: int) -> str:
    """Of a process; empty if there is none, or if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    except OSError:
        return ""


def marked(mark: str) -> set[int]:
    """The processes, zombies left out, that have `mark` in their environment: a process and all that it started."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def memory_of(pid: int | str = "self") -> dict[str, float]:
    """Memory of a process in MB of 10^6 bytes: resident; its share of it ("pss"); what no file stands for.

    The share grows while others that map the same libraries are gone, such as actors: the first and last tell a leak.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: 1024 * int(rest.split()[0]) / 1e6 for name, _, rest in (line.partition(":") for line in lines)}
    return {"rss": fields["Rss"], "pss": fields["Pss"], "anonymous": fields["Anonymous"]}


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that listed the folder
            continue
        found.append(target.partition(":[")[0])  # the numbers of pipes and sockets are never the same again
    return found


def _mapped() -> list[str]:
    """Regions of anonymous shared memory that are still mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[-2] for line in lines if "memfd:actor_learner" in line]
