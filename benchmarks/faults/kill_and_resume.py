"""Kills a training run with SIGKILL at random moments and resumes it, again and again.

    scripts/measure kill-and-resume --kills 50 --output benchmarks/faults/kill_and_resume.json
    scripts/measure kill-and-resume --kills 20 --algorithm dqn --output benchmarks/faults/kill_and_resume-dqn.json

Every second kill comes while the run starts, the others while it learns and saves. After each kill all checkpoints must
be whole, and the next process must resume from the newest one. With a replay buffer, rows that are drawn from the
newest checkpoint's must be steps that CartPole takes.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from actor_learner.replay.buffer import ReplayBuffer
from actor_learner.replay.saving import has_buffer
from actor_learner.runs.checkpoints import checkpoint_folders, newest_whole
from benchmarks.harness import Figures, child_environment, flag_words, make_parser, origin, report
from benchmarks.processes import Child

DEADLINE_SECONDS = 300.0
LEARNING_SECONDS = 3.0  # kills while learning come within so many seconds of the first update


@dataclass
class Kill:
    """The checkpoint that a kill left, and where the run was resumed after it."""

    while_learning: bool
    updates: int  # of the newest whole checkpoint
    damaged: int = 0
    torn: int = 0  # rows of the newest replay buffer that never happened
    resumed_at: int | None = None  # after so many updates, as a later process reports once it has learned


@dataclass
class Trial:
    """A run that is killed and resumed. A directory without a run begins one."""

    run_dir: Path
    seed: int = 0
    algorithm: str = "ppo"
    kills: list[Kill] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)  # from a process's start to its first update

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.output = self.run_dir.with_name(f"{self.run_dir.name}-output.txt")

    def kill(self, *, while_learning: bool) -> None:
        """Start a process and kill it. A process that dies during its start may have learned already."""
        newest = _newest(self.run_dir)
        child = self._start()
        try:
            if while_learning:
                self._wait_for_update(child)
                time.sleep(self.random.uniform(0, LEARNING_SECONDS))
            else:
                time.sleep(self.random.uniform(0, min(self.start_seconds or [5.0])))
            assert child.process.poll() is None, f"the run ended by itself: {self.output.read_text()}"
        finally:
            child.end()
        if _newest(self.run_dir) > newest:
            self._note_resumption()
        path, state, damages = newest_whole(self.run_dir / "checkpoints")
        torn = torn_rows(path) if path and has_buffer(path) else 0
        self.kills.append(Kill(while_learning, state.updates if path else 0, len(damages), torn))

    def finish(self) -> int:
        """Resume once more, and end the run by SIGTERM. Returns its exit code."""
        child = self._start()
        try:
            self._wait_for_update(child)
            child.process.terminate()
            return child.process.wait(DEADLINE_SECONDS)
        finally:
            child.end()

    def _start(self) -> Child:
        if (self.run_dir / "config.json").exists():
            arguments = ["--resume", str(self.run_dir)]
        else:
            flags = {"run_dir": self.run_dir, "total_steps": 10**9, "checkpoint_updates": 1, "preset": "none"}
            flags["algorithm"] = self.algorithm
            arguments = ["CartPole-v1", *flag_words({**flags, "unroll_length": 16, "seed": self.seed})]
        command = [sys.executable, "-P", "-m", "actor_learner.cli", "train", *arguments]
        return Child(command, self.output, child_environment())

    def _wait_for_update(self, child: Child) -> None:
        """Wait until a process has learned and saved."""
        newest = _newest(self.run_dir)
        learned = child.wait_until(lambda: _newest(self.run_dir) > newest, DEADLINE_SECONDS)
        assert learned, f"the run ended by itself, or made no update in time: {self.output.read_text()}"
        self.start_seconds.append(time.monotonic() - child.started)
        self._note_resumption()

    def _note_resumption(self) -> None:
        """Note where the process that has learned resumed: that proves what the kills before it left."""
        resumed_at = self._resumed_at()
        for kill in self.kills:
            if kill.resumed_at is None:
                kill.resumed_at = resumed_at

    def _resumed_at(self) -> int:
        """Return the updates after which this process resumes, by its output and by the rows in metrics.jsonl."""
        found = re.search(r"(?:goes on|resumes|continues) after ([\d,]+) steps", self.output.read_text())
        steps = int(found[1].replace(",", "")) if found else 0
        rows = rows_of(self.run_dir)
        assert [row["updates"] for row in rows] == list(range(1, len(rows) + 1)), "a row is missing or doubled"
        for name in ("env_steps", "time_seconds"):
            assert all(a[name] < b[name] for a, b in itertools.pairwise(rows)), f"{name} goes back"
        return next((int(row["updates"]) for row in rows if row["env_steps"] == steps), 0)

    def summary(self) -> Figures:
        """Return the figures, and each kill."""
        return {
            "seed": self.seed,
            "kills": len(self.kills),
            "while_learning": sum(kill.while_learning for kill in self.kills),
            "resumed": sum(kill.resumed_at is not None for kill in self.kills),
            "older_than_the_last_checkpoint": sum(kill.resumed_at != kill.updates for kill in self.kills),
            "damaged_checkpoints": sum(kill.damaged for kill in self.kills),
            "torn_rows": sum(kill.torn for kill in self.kills),
            "updates": _newest(self.run_dir),
            "median_seconds_to_first_update": round(statistics.median(self.start_seconds), 2),
            "each": [asdict(kill) for kill in self.kills],
        }


def torn_rows(checkpoint: Path) -> int:
    """Return how many of 1,000 drawn rows of a checkpoint's replay buffer aren't a step of CartPole."""
    rows = ReplayBuffer.load(checkpoint).sample(1000)
    cart_pole: Any = gym.make("CartPole-v1").unwrapped
    torn = 0
    for before, action, discount, after in zip(
        rows.observation, rows.action, rows.discount, rows.next_observation, strict=True
    ):
        cart_pole.reset()
        cart_pole.state = before.astype(np.float64)
        found, _, terminated, _, _ = cart_pole.step(int(action))
        right = np.allclose(found, after, atol=1e-4) if discount else True
        torn += not (right and terminated == (discount == 0))
    return torn


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.jsonl, without an incomplete last one."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _newest(run_dir: Path) -> int:
    folders = checkpoint_folders(run_dir / "checkpoints")
    return int(folders[0].name) if folders else 0


def main() -> int:
    """Kill, print and write. Returns 1 if a kill wasn't survived."""
    parser = make_parser("kill-and-resume", __doc__ or "", kills=50, seed=0, algorithm="ppo")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(Path(directory) / "run", arguments.seed, arguments.algorithm)
        for number in range(arguments.kills):
            trial.kill(while_learning=number % 2 == 0)
            print(number + 1, trial.kills[-1], flush=True)
        exit_code = trial.finish()
        found = trial.summary()
    report({**origin(parser), **found}, arguments.output, leave_out=("each",))
    survived = found["resumed"] == arguments.kills and not found["older_than_the_last_checkpoint"]
    return (
        0
        if survived and exit_code == 128 + signal.SIGTERM and not found["damaged_checkpoints"] + found["torn_rows"]
        else 1
    )
