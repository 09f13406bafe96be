#!/usr/bin/env python3
"""What it costs that runs are watched over: heartbeats, checks, checkpoints, memory figures.

    scripts/measure watching --output benchmarks/overhead/watching.json
    scripts/measure watching --against ../older-checkout --pairs 20     # CPU time of whole runs, alternated

The first takes the parts by the clocks of threads and processes, in one run of CartPole-v1's preset. The second
compares the whole with another checkout of this project: the same run in processes of its own, here and there in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine

ROOT = Path(__file__).resolve().parents[2]
STEPS = 400_000
RUN = """
import actor_learner as al, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    config = al.preset("CartPole-v1", quiet=True, run_dir=folder + "/run", total_steps=int(sys.argv[1]))
    al.train(config)
"""


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.against:
        figures = pairs(arguments.against.resolve(), arguments.steps, arguments.pairs)
    else:
        figures = parts(arguments.steps)
    text = json.dumps({"machine": machine(), **figures}, indent=1)
    print(text)
    if arguments.output:
        before = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        arguments.output.write_text(json.dumps({**before, **json.loads(text)}, indent=1) + "\n")


def parts(steps: int) -> dict[str, Any]:
    """CPU seconds of one run, and of what watches over it."""
    import actor_learner as al
    from actor_learner.actors.processes.group import ProcessActors
    from actor_learner.runs.recorder import Recorder
    from actor_learner.system.memory import MemorySampler

    spent = {"hung actors": 0.0, "checkpoints": 0.0, "memory": 0.0}

    def timed(owner: Any, name: str, part: str) -> None:
        """Adds the CPU time of the calling thread; checkpoints are written in it from beginning to end."""
        original = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[part] += time.thread_time() - started

        setattr(owner, name, measured)

    timed(ProcessActors, "tick", "hung actors")
    timed(Recorder, "checkpoint", "checkpoints")
    timed(MemorySampler, "metrics", "memory")
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset("CartPole-v1", quiet=True, run_dir=f"{folder}/run", total_steps=steps)
        started = cpu_seconds()
        wall = time.monotonic()
        al.train(config)
        wall = time.monotonic() - wall
        total = cpu_seconds() - started
    rows = steps / config.envs_per_actor
    spent["heartbeats"] = rows * heartbeat_seconds()
    return {
        "parts": {
            "what": f"CartPole-v1's preset, {steps:,} steps, {wall:.0f} s, {total:.1f} s of CPU time",
            "cpu_seconds": {name: round(value, 4) for name, value in spent.items()},
            "percent_of_the_run": {name: round(100 * value / total, 3) for name, value in spent.items()},
            "percent_together": round(100 * sum(spent.values()) / total, 3),
        }
    }


def heartbeat_seconds() -> float:
    """Of the two writes to shared memory that each env step of an actor makes; median of 20 loops."""
    import numpy as np

    beat = np.zeros(8, np.int64).data
    numbers = range(100_000)

    def loop() -> float:
        started, beats = time.thread_time(), 0
        for _ in numbers:
            beat[0] = beats + 1
            beats += 2
            beat[0] = beats
        written = time.thread_time() - started
        started = time.thread_time()
        for _ in numbers:
            pass
        return (written - (time.thread_time() - started)) / len(numbers)

    return statistics.median(loop() for _ in range(20))


def pairs(other: Path, steps: int, count: int) -> dict[str, Any]:
    """CPU seconds of whole runs here / there, the order within each pair by chance."""
    ratios = []
    for number in range(count):
        seconds = {}
        order = [ROOT, other]
        random.Random(number).shuffle(order)
        for checkout in order:
            seconds[checkout] = _run(checkout, steps)
        ratios.append(seconds[ROOT] / seconds[other])
        print(f"pair {number + 1}: {seconds[ROOT]:.2f} s / {seconds[other]:.2f} s = {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    commit = subprocess.run(
        ["git", "-C", other, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return {
        "pairs": {
            "what": f"CPU time of CartPole-v1's preset, {steps:,} steps with start-up, here / {commit.stdout.strip()}",
            "pairs": count,
            "median": round(statistics.median(ratios), 4),
            "interval_95": [round(low, 4), round(high, 4)],
        }
    }


def _run(checkout: Path, steps: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-P", "-c", RUN, str(steps)], env=environment, check=True, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(run: Callable[[str], dict[str, Any]], kind: str, other: str, count: int) -> dict[str, Any]:
    """CPU and wall seconds of runs of one kind / another, the order within each pair by chance: medians and intervals.

    run: a kind -> its figures, with "cpu_seconds" and "seconds".
    """
    ratios: dict[str, list[float]] = {"cpu_seconds": [], "seconds": []}
    for number in range(count):
        order = [kind, other]
        random.Random(number).shuffle(order)
        figures = {each: run(each) for each in order}
        for name, found in ratios.items():
            found.append(figures[kind][name] / figures[other][name])
        said = ", ".join(f"{name} {found[-1]:.3f}" for name, found in ratios.items())
        print(f"pair {number + 1}: {said}", flush=True)
    return {
        name: {"median": round(statistics.median(found), 4), "interval_95": [round(v, 4) for v in interval(found)]}
        for name, found in ratios.items()
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% of medians of samples drawn with replacement."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(10_000))
    return medians[250], medians[-251]


def cpu_seconds() -> float:
    """Of this process and of those of its children that have ended."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


if __name__ == "__main__":
    main()
