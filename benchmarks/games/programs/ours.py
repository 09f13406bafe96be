"""Ours: `actor-learner train` with the task's words. Its clock: `time_seconds` of metrics.jsonl.

It counts the decisions that the policy learns from.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.programs.clock import Clock, read_task
from benchmarks.peers.programs.ours import rows


def main() -> None:
    task = read_task()
    run = Path(task.folder) / "run"
    words = [sys.executable, "-m", "actor_learner.cli", "train", *task.words, "--quiet", "--run-dir", str(run)]
    clock, started = Clock(task), None
    process = subprocess.Popen(words)
    for row in rows(process, run / "metrics.jsonl"):
        if started is None:
            started = time.monotonic() - row["time_seconds"]
        if not clock.enough and clock.tick(row["env_steps"], None, started + row["time_seconds"]):
            process.send_signal(signal.SIGTERM)
    status = process.wait()
    if not clock.enough:
        sys.exit(status)


if __name__ == "__main__":
    main()
