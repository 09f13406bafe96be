"""One run of a library in processes of its own: its updates, its memory, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, Figures, RunFailedError
from benchmarks.peers.libraries import Peer, last_line
from benchmarks.processes import Child, command_line, find_marked, memory_of

PROGRAMS = ROOT / "benchmarks/peers/programs"
WARM_UP = 2  # uncounted ticks: all is compiled by the first; the second's batch may have been collected meanwhile


@dataclass(frozen=True)
class Run:
    """The figures of a run. Times are monotonic seconds; memory is in MB of 10^6 bytes."""

    begun: float
    ticks: list[tuple[float, int]]
    memory: Figures

    @property
    def speed(self) -> float:
        """Env steps per second after the warm-up."""
        (start, before), (end, after) = self.ticks[WARM_UP - 1], self.ticks[-1]
        return (after - before) / (end - start)

    @property
    def start_up(self) -> float:
        """Seconds from the start of the process to the end of the first update."""
        return self.ticks[0][0] - self.begun

    def figures(self) -> Figures:
        """Return the figures for the JSON file."""
        return {"speed": self.speed, "start_up": self.start_up, "updates": len(self.ticks), "memory": self.memory}


def run_peer(peer: Peer, python: Path, task: Figures) -> Run:
    """Run a script to its end. Raises RunFailedError; none of its processes stays in any case."""
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        clock = Path(folder, "clock")
        clock.touch()
        task = {"warm_up": WARM_UP, "seed": 0, "threads": 1, **peer.options, **task, "clock": str(clock)}
        command = [str(python), "-P", str(PROGRAMS / f"{peer.script}.py"), json.dumps(task)]
        shared, environment = _torch_regions(), _environment(peer, task, folder)
        child = Child(command, Path(folder, "stderr"), environment, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            memory = _watch(child, clock, peer, peer.deadline)
        finally:
            child.end()
            _remove_torch_regions(shared)
        message = last_line(child.output.read_text(errors="replace"))
        ticks = [tuple(json.loads(line)) for line in clock.read_text().splitlines()]
    if memory is None:
        raise RunFailedError(f"not done after {peer.deadline:,.0f} s")
    has_figure = len(ticks) > WARM_UP
    if child.process.returncode != 0 and not (has_figure and ticks[-1][0] - ticks[WARM_UP - 1][0] >= task["seconds"]):
        raise RunFailedError(message)
    if not has_figure:
        raise RunFailedError(f"it ended without a figure: {message}")
    return Run(child.started, ticks, memory)


def _environment(peer: Peer, task: Figures, folder: str) -> dict[str, str]:
    """Return ours as a shell has it; for the others, with their number of threads."""
    given = {key: text for key, text in os.environ.items() if not key.startswith(("TF_NUM_", "OMP_", "MKL_", "XLA_"))}
    given["TMPDIR"] = folder
    if peer.venv is None:
        return given | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), given.get("PYTHONPATH"))))}
    threads = str(task["threads"])
    given |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if task["threads"] == 1:
        given["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return given


def _watch(child: Child, clock: Path, peer: Peer, seconds: float) -> Figures | None:
    """Wait for the end, and measure memory during the first counted update; return None at the deadline."""
    has_begun = child.wait_until(lambda: clock.read_bytes().count(b"\n") >= WARM_UP, seconds, poll_seconds=0.1)
    memory = _memory(child.mark, peer) if has_begun else {}
    return memory if child.wait_for_end(seconds) else None


def _memory(mark: str, peer: Peer) -> Figures:
    """Measure the largest process, the workers (medians), and all together."""
    sizes: dict[int, dict[str, float]] = {}
    for pid in find_marked(mark):
        with contextlib.suppress(OSError, KeyError, ValueError):  # it has ended meanwhile
            sizes[pid] = memory_of(pid)
    workers = [pid for pid in sizes if re.search(peer.worker, command_line(pid))]
    found: Figures = {
        "processes": len(sizes),
        "all_pss": sum(size["pss"] for size in sizes.values()),
        "largest_pss": max((size["pss"] for pid, size in sizes.items() if pid not in workers), default=0.0),
        "workers": len(workers),
    }
    if workers:
        found |= {f"worker_{key}": statistics.median(sizes[pid][key] for pid in workers) for key in ("pss", "rss")}
    return found


def _torch_regions() -> set[Path]:
    """Return torch's named regions of shared memory: `torch_PID_...`."""
    return set(Path("/dev/shm").glob("torch_*"))  # noqa: S108


def _remove_torch_regions(before: set[Path]) -> None:
    """Remove new regions of processes that are gone: a killed process leaves them."""
    for region in _torch_regions() - before:
        if not command_line(int(region.name.split("_")[1])):
            region.unlink(missing_ok=True)
