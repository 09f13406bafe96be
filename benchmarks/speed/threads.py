#!/usr/bin/env python3
"""The learner's threads and the actors' priority, against each other: whole runs, alternated.

    scripts/measure threads [--works pong cartpole64 ...] [--rounds 5] [--output benchmarks/speed/threads.json]

A run of lag 0 beside runs of lag 1 with one thread or all, and actors that give way (`nice` 5, 10) or don't. A
figure is env steps per second from the end of the first update to that of the last. Each run takes 10 to 20
seconds, so that all takes about 20 minutes with 5 rounds of four works, 7 minutes with Pong alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.works import WORKS, Work

SETTINGS: dict[str, tuple[int, int | None, int | None]] = {
    "lag 0": (0, None, 0),
    "lag 1, the rule": (1, None, None),
    "lag 1, one thread": (1, 1, 0),
    "lag 1, one thread, nice 10": (1, 1, 10),
    "lag 1, all threads": (1, 0, 0),
    "lag 1, all threads, nice 5": (1, 0, 5),
    "lag 1, all threads, nice 10": (1, 0, 10),
}
"""Name: `max_policy_lag`, threads (None: those of the command line, 0: one for each core), niceness (None: ours)."""

_PROGRAM = """
import sys
import actor_learner.actors.pool
from actor_learner.cli import main
niceness = sys.argv.pop(1)
if niceness != "None":
    actor_learner.actors.pool.NICENESS = int(niceness)
sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["scripts/measure threads", *sys.argv[1:]]),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "steps_per_second": {},
    }
    for name in arguments.works:
        found: dict[str, list[float]] = {setting: [] for setting in arguments.settings}
        for _ in range(arguments.rounds):
            for setting, speeds in found.items():
                speeds.append(steps_per_second(WORKS[name], *SETTINGS[setting]))
        result["steps_per_second"][name] = found
        _print(name, found)
        if arguments.output:
            arguments.output.write_text(json.dumps(result, indent=2) + "\n")


def steps_per_second(work: Work, lag: int, threads: int | None, niceness: int | None) -> float:
    """Of one run of `actor-learner train` with two actors."""
    environment = dict(os.environ)
    environment.pop("TF_NUM_INTRAOP_THREADS", None)
    if threads is not None:
        environment["TF_NUM_INTRAOP_THREADS"] = str(threads or len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PROGRAM, niceness, "train", work.env, "--preset", "none", "--quiet"]
        command += ["--num-actors", 2, "--envs-per-actor", work.envs // 2, "--unroll-length", work.unroll_length]
        command += ["--minibatch-size", work.minibatch_size, "--epochs", work.epochs, "--max-policy-lag", lag]
        command += ["--total-steps", work.batch_size * (work.updates + 2), "--run-dir", f"{folder}/run"]
        command += ["--env-kwargs", json.dumps(dict(work.env_kwargs))]
        for option, value in work.changes.items():
            command += [f"--{option.replace('_', '-')}", value]
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            sys.exit(f"actor-learner failed:\n{done.stderr[-3000:]}")
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    first, last = rows[1], rows[-1]  # the second batch is collected while the update is compiled
    return float((last["env_steps"] - first["env_steps"]) / (last["time_seconds"] - first["time_seconds"]))


def _print(name: str, found: dict[str, list[float]]) -> None:
    print(f"\n{name}", flush=True)
    reference = next(iter(found.values()))
    for setting, speeds in found.items():
        ratio = statistics.median(a / b for a, b in zip(speeds, reference, strict=True))
        rounds = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(f"  {setting:30} {statistics.median(speeds):>10,.0f} steps/s  {ratio:5.2f}x   ({rounds})", flush=True)


if __name__ == "__main__":
    main()
