#!/usr/bin/env python3
"""What TensorBoard's event files cost, in runs of CartPole-v1's preset.

    scripts/measure tensorboard --output benchmarks/overhead/tensorboard.json    # one run by the clock, then 20 pairs
    scripts/measure tensorboard --pairs 0 --histogram-updates 100       # the first alone, with histograms

The first counts the CPU time that the learner's thread spends on them, as a part of the run's, actors included. The
pairs compare whole runs, in processes of their own, with `tensorboard=True` and False.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.overhead.watching import STEPS, compare, cpu_seconds

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--histogram-updates", type=int)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=("with", "without"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        figures = run_here(arguments.steps, arguments.child == "with", arguments.histogram_updates)
        arguments.output.write_text(json.dumps(figures))
        return
    figures = {"machine": machine(), "by_clock": run("with", arguments)}
    print(json.dumps(figures, indent=1), flush=True)
    if arguments.pairs:
        figures["pairs"] = pairs(arguments)
        print(json.dumps(figures["pairs"], indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


def run_here(steps: int, tensorboard: bool, histogram_updates: int | None) -> dict[str, Any]:
    """Trains in this process; all that is done for the files is done in the calling thread."""
    import actor_learner as al
    from actor_learner.runs.tensorboard import EventFile

    spent, depth = [0.0], [0]

    def timed(name: str) -> None:
        """Adds the thread's time; calls within one another count once."""
        original = getattr(EventFile, name)

        def measured(*args: Any, **kwargs: Any) -> None:
            started = time.thread_time()
            depth[0] += 1
            original(*args, **kwargs)
            depth[0] -= 1
            if not depth[0]:
                spent[0] += time.thread_time() - started

        setattr(EventFile, name, measured)

    for name in ("__init__", "append", "append_histograms", "flush", "close"):
        timed(name)
    with tempfile.TemporaryDirectory() as folder:
        config = al.preset(
            "CartPole-v1",
            quiet=True,
            run_dir=f"{folder}/run",
            total_steps=steps,
            tensorboard=tensorboard,
            histogram_updates=histogram_updates,
        )
        started, wall = cpu_seconds(), time.monotonic()
        result = al.train(config)
        total, wall = cpu_seconds() - started, time.monotonic() - wall
        size = sum(file.stat().st_size for file in Path(folder, "run").glob("events.out.tfevents.*"))
    return {
        "what": f"CartPole-v1's preset, {steps:,} steps, histogram_updates={histogram_updates}",
        "updates": result.metrics["updates"],
        "seconds": round(wall, 2),
        "cpu_seconds": round(total, 2),
        "cpu_seconds_of_event_files": round(spent[0], 4),
        "bytes_per_update": round(size / result.metrics["updates"]),
        "percent_of_the_run": round(100 * spent[0] / total, 3),
    }


def run(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        command = [
            sys.executable,
            "-m",
            "benchmarks.overhead.tensorboard",
            "--child",
            kind,
            "--steps",
            str(arguments.steps),
            "--output",
            str(output),
        ]
        if arguments.histogram_updates is not None:
            command += ["--histogram-updates", str(arguments.histogram_updates)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(output.read_text())
    return figures


def pairs(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU and wall seconds of runs with it / without."""
    return {
        "what": f"runs of CartPole-v1's preset, {arguments.steps:,} steps, with event files / tensorboard=False",
        "pairs": arguments.pairs,
        **compare(lambda kind: run(kind, arguments), "with", "without", arguments.pairs),
    }


if __name__ == "__main__":
    main()
