#!/usr/bin/env python3
"""Kills a training run with SIGKILL at random moments and lets it go on, again and again.

    scripts/measure kill-and-resume --kills 50 --output benchmarks/faults/kill_and_resume.json

The run writes a checkpoint after every update. Every second kill comes while the run starts, the others while it learns
and saves. After each kill all checkpoints must be whole. The process that comes next must say that it goes on from the
newest of them, and its rows must follow those up to there; then the kill counts as resumed.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actor_learner.runs.checkpoints import checkpoint_folders, newest_whole
from benchmarks.harness import machine

DEADLINE_SECONDS = 300.0
LEARNING_SECONDS = 3.0
"""Kills while learning come within so many seconds of the first update."""


@dataclass
class Kill:
    """What a kill left, and what the next process that came so far made of it."""

    while_learning: bool
    updates: int
    """Of the newest whole checkpoint."""
    damaged: int = 0
    resumed_at: int | None = None
    """Updates that a later process said it goes on after; None until one has learned, too."""


@dataclass
class Trial:
    """A run that is killed and goes on. A directory without a run begins one."""

    run_dir: Path
    seed: int = 0
    kills: list[Kill] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    """From a process's start to its first update."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.output = self.run_dir.with_name(f"{self.run_dir.name}-output.txt")

    def kill(self, *, while_learning: bool) -> None:
        """One process, from its start to SIGKILL. One that was to die while it started may have learned already."""
        newest = _newest(self.run_dir)
        process = self._start()
        try:
            if while_learning:
                self._wait_for_update(process)
                time.sleep(self.random.uniform(0, LEARNING_SECONDS))
            else:
                time.sleep(self.random.uniform(0, min(self.start_seconds or [5.0])))
            assert process.poll() is None, f"the run ended by itself: {self.output.read_text()}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if _newest(self.run_dir) > newest:
            self._note_resumption()
        path, state, damages = newest_whole(self.run_dir / "checkpoints")
        self.kills.append(Kill(while_learning, state.updates if path else 0, len(damages)))

    def finish(self) -> int:
        """Goes on once more, and ends the run by SIGTERM, which nothing ignores. Returns its exit code."""
        process = self._start()
        try:
            self._wait_for_update(process)
            process.terminate()
            return process.wait(DEADLINE_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        if (self.run_dir / "config.json").exists():
            arguments = ["--resume", str(self.run_dir)]
        else:
            arguments = ["CartPole-v1", "--run-dir", str(self.run_dir), "--total-steps", "1_000_000_000"]
            arguments += ["--checkpoint-updates", "1", "--preset", "none", "--unroll-length", "16"]
            arguments += ["--seed", str(self.seed)]
        command = [sys.executable, "-P", "-m", "actor_learner.cli", "train", *arguments]
        self.started = time.monotonic()
        with self.output.open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def _wait_for_update(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until a process has learned and saved."""
        newest = _newest(self.run_dir)
        while _newest(self.run_dir) <= newest:
            said = self.output.read_text()
            assert process.poll() is None, f"the run ended by itself: {said}"
            assert time.monotonic() - self.started < DEADLINE_SECONDS, f"no update in time: {said}"
            time.sleep(0.02)
        self.start_seconds.append(time.monotonic() - self.started)
        self._note_resumption()

    def _note_resumption(self) -> None:
        """Takes down where the process that has learned went on: what the kills before it left is proven."""
        resumed_at = self._resumed_at()
        for kill in self.kills:
            if kill.resumed_at is None:
                kill.resumed_at = resumed_at

    def _resumed_at(self) -> int:
        """The updates after which this process goes on, by what it says and by the rows in metrics.jsonl."""
        found = re.search(r"goes on after ([\d,]+) steps", self.output.read_text())
        steps = int(found[1].replace(",", "")) if found else 0
        rows = rows_of(self.run_dir)
        assert [row["updates"] for row in rows] == list(range(1, len(rows) + 1)), "a row is missing or doubled"
        for name in ("env_steps", "time_seconds"):
            assert all(a[name] < b[name] for a, b in itertools.pairwise(rows)), f"{name} goes back"
        return next((int(row["updates"]) for row in rows if row["env_steps"] == steps), 0)

    def summary(self) -> dict[str, object]:
        """The figures, and each kill."""
        return {
            "kills": len(self.kills),
            "while_learning": sum(kill.while_learning for kill in self.kills),
            "resumed": sum(kill.resumed_at is not None for kill in self.kills),
            "older_than_the_last_checkpoint": sum(kill.resumed_at != kill.updates for kill in self.kills),
            "damaged_checkpoints": sum(kill.damaged for kill in self.kills),
            "updates": _newest(self.run_dir),
            "median_seconds_to_first_update": round(statistics.median(self.start_seconds), 2),
            "each": [asdict(kill) for kill in self.kills],
        }


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl, without a last one that is being written."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _newest(run_dir: Path) -> int:
    folders = checkpoint_folders(run_dir / "checkpoints")
    return int(folders[0].name) if folders else 0


def main() -> int:
    """Kills, prints and writes. Exit code 1 if a kill wasn't survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(Path(directory) / "run", arguments.seed)
        for number in range(arguments.kills):
            trial.kill(while_learning=number % 2 == 0)
            print(number + 1, trial.kills[-1], flush=True)
        exit_code = trial.finish()
        summary = trial.summary()
    print(json.dumps({name: value for name, value in summary.items() if name != "each"}, indent=1))
    if arguments.output:
        about = {"date": datetime.date.today().isoformat(), "machine": machine(), "seed": arguments.seed}
        arguments.output.write_text(json.dumps({**about, **summary}, indent=1) + "\n")
    survived = summary["resumed"] == arguments.kills and not summary["older_than_the_last_checkpoint"]
    return 0 if survived and exit_code == 128 + signal.SIGTERM and not summary["damaged_checkpoints"] else 1


if __name__ == "__main__":
    sys.exit(main())
