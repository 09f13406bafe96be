"""Ours: the command line, as anyone would type it. Its clock: `time_seconds` of metrics.jsonl.

The first row's moment is when it appears in the file. The script imports little: its start counts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from benchmarks.peers.programs.clock import Clock, read_task

FOR_EVER = 10**8


def command(task: SimpleNamespace) -> list[str]:
    """Return `actor-learner train` for a work."""
    words = [sys.executable, "-m", "actor_learner.cli", "train", "--quiet", "--run-dir", "run"]
    flags = {
        "preset": "none",
        "seed": task.seed,
        "num-actors": task.actors,
        "envs-per-actor": task.envs // task.actors,
        "unroll-length": task.unroll_length,
        "minibatch-size": task.minibatch_size,
        "epochs": task.epochs,
        "max-policy-lag": task.lag,
        "total-steps": FOR_EVER,
        "env-kwargs": json.dumps(task.env_kwargs),
        **{name.replace("_", "-"): value for name, value in task.changes.items()},
    }
    return [*words, task.env, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def rows(process: subprocess.Popen[bytes], metrics: Path) -> Iterator[dict[str, float]]:
    """Yield the rows of the file when they appear, until the process has ended."""
    while process.poll() is None and not metrics.exists():
        time.sleep(0.01)
    if not metrics.exists():
        return
    with metrics.open() as file:
        rest = ""
        while True:
            ended = process.poll() is not None
            lines = (rest + file.read()).split("\n")
            rest = lines.pop()
            yield from map(json.loads, lines)
            if ended:
                return
            time.sleep(0.01)


def main() -> None:
    """Start a run, note its updates, and end it when the clock has enough. Exits with its status if it ends before."""
    task = read_task()
    clock, started = Clock(task), None
    process = subprocess.Popen(command(task))
    for row in rows(process, Path("run/metrics.jsonl")):
        if started is None:
            started = time.monotonic() - row["time_seconds"]
        if not clock.enough and clock.tick(row["env_steps"], started + row["time_seconds"]):
            process.send_signal(signal.SIGTERM)
    status = process.wait()
    if not clock.enough:
        sys.exit(status)


if __name__ == "__main__":
    main()
