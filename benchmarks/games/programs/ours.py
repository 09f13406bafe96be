"""Ours: `actor-learner train` with the task's words. Its clock: `time_seconds` of metrics.jsonl.

It counts the decisions that the policy learns from.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers.programs.clock import read_task
from benchmarks.peers.programs.ours import follow


def main() -> None:
    task = read_task()
    run = Path(task.folder) / "run"
    words = [sys.executable, "-m", "actor_learner.cli", "train", *task.words, "--quiet", "--run-dir", str(run)]
    follow(task, words, run / "metrics.jsonl")


if __name__ == "__main__":
    main()
