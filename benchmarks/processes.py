"""The processes of a measurement: how one is watched and killed, their memory, and their leftovers. For Linux."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import statistics
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_MIN_SAMPLES = 20
_MARK = "MEASURED_CHILD"


class Child:
    """A process in a session of its own; it and its descendants carry `mark` in their environment."""

    def __init__(self, command: Iterable[Any], output: Path, environment: Mapping[str, str], **options: Any) -> None:
        """Start it. output: the file for what it prints, errors included. options: of `subprocess.Popen`."""
        identity = uuid.uuid4().hex
        self.mark, self.output = f"{_MARK}={identity}", output
        with open(output, "wb") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                list(map(str, command)),
                env={**environment, _MARK: identity},
                start_new_session=True,
                **{**streams, **options},
            )

    def wait_until(self, condition: Callable[[], Any], seconds: float, poll_seconds: float = 0.005) -> bool:
        """Wait until a condition holds; return False if the process ends first, or so many seconds after its start."""
        while self.process.poll() is None and time.monotonic() < self.started + seconds:
            if condition():
                return True
            time.sleep(poll_seconds)
        return False

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until the process ends; return False if it hasn't so many seconds after its start."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.started + seconds - time.monotonic()))
        return self.process.returncode is not None

    def end(self) -> None:
        """Kill the process group and all marked processes, until there are none."""
        for _ in range(50):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            left = find_marked(self.mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            if not left and self.process.returncode is not None:
                return
            time.sleep(0.02)


class Leftovers(NamedTuple):
    """The things that a process holds at a moment, by kind."""

    children: Counter[str]
    descriptors: Counter[str]
    threads: Counter[str]
    shared_memory: Counter[str]
    files: Counter[str]

    @classmethod
    def now(cls, temporary: Path) -> Leftovers:
        """Collect those of this process. temporary: the folder of its temporary files."""
        gc.collect()
        return cls(
            Counter(_child_commands()),
            Counter(_descriptors()),
            Counter(thread.name for thread in threading.enumerate()),
            Counter([*os.listdir("/dev/shm"), *_mapped_regions()]),  # noqa: S108
            Counter(map(str, temporary.rglob("*"))),
        )

    def since(self, before: Leftovers) -> list[str]:
        """Describe what wasn't there before."""
        more = zip(self._fields, self, before, strict=True)
        return [f"{kind} left: {sorted((now - then).elements())}" for kind, now, then in more if now - then]


def _child_commands() -> list[str]:
    """Return the command lines of this process's children, zombies included."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [command_line(int(pid)) for task in tasks for pid in task.read_text().split()]


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def find_marked(mark: str) -> set[int]:
    """Return the processes, without zombies, that have `mark` in their environment: a process and its descendants."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def memory_of(pid: int | str = "self") -> dict[str, float]:
    """Return the memory of a process in MB of 10^6 bytes: resident, its share of it ("pss"), and anonymous.

    The share grows when processes that map the same libraries end; the first and last tell a leak.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: 1024 * int(rest.split()[0]) / 1e6 for name, _, rest in (line.partition(":") for line in lines)}
    return {"rss": fields["Rss"], "pss": fields["Pss"], "anonymous": fields["Anonymous"]}


def growth(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Compare the beginning of the second fifth with the end: medians of a twentieth of the samples (at least 3)."""
    if len(samples) < _MIN_SAMPLES:
        return {"samples": len(samples), "growth": {}}
    size = max(3, len(samples) // 20)
    early, late = samples[len(samples) // 5 :][:size], samples[-size:]
    begin, end = (
        {kind: statistics.median(sample[kind] for sample in part) for kind in early[0]} for part in (early, late)
    )
    return {
        "samples": len(samples),
        "after_a_fifth": {kind: round(value, 1) for kind, value in begin.items()},
        "end": {kind: round(value, 1) for kind, value in end.items()},
        "growth": {kind: round(end[kind] / begin[kind] - 1, 5) for kind in begin},
    }


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
        found.append(target.partition(":[")[0])  # the numbers of pipes and sockets never repeat
    return found


def _mapped_regions() -> list[str]:
    """Return the regions of anonymous shared memory that are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[-2] for line in lines if "memfd:actor_learner" in line]
