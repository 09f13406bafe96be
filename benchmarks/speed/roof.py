#!/usr/bin/env python3
"""Achieved and roof on the four works, at lag 0 and 1: `actor-learner benchmark` for each. About six minutes.

scripts/measure roof [--works cartpole pong] [--lags 1] [--rounds 5] [--output benchmarks/speed/roof.json]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.works import WORKS, Work


def main() -> None:
    """Measures, prints, writes after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--lags", nargs="+", type=int, default=[1, 0])
    parser.add_argument("--num-actors", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["scripts/measure roof", *sys.argv[1:]]),
        "machine": machine(),
        "works": {},
    }
    for name in arguments.works:
        for lag in arguments.lags:
            words = command(WORKS[name], lag, arguments.num_actors, arguments.rounds, arguments.seconds)
            found = measure(words)
            result["works"].setdefault(name, {})[f"lag {lag}"] = found
            print(line(name, lag, found), flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def command(work: Work, lag: int, num_actors: int, rounds: int, seconds: float) -> list[str]:
    """The arguments of `actor-learner benchmark` for a work."""
    flags: dict[str, Any] = {
        "preset": "none",
        "num_actors": num_actors,
        "envs_per_actor": work.envs // num_actors,
        "unroll_length": work.unroll_length,
        "minibatch_size": work.minibatch_size,
        "epochs": work.epochs,
        "max_policy_lag": lag,
        **({"env_kwargs": json.dumps(dict(work.env_kwargs))} if work.env_kwargs else {}),
        **work.changes,
        "rounds": rounds,
        "seconds": seconds,
    }
    return [work.env, *(word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", str(value)))]


def measure(words: list[str]) -> dict[str, Any]:
    """What the command says as JSON."""
    program = [sys.executable, "-m", "actor_learner.cli", "benchmark", *words, "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=1800, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line(name: str, lag: int, found: dict[str, Any]) -> str:
    """A work in one line, with what the cores did."""
    cores = {part: share for part, share in found["cores"].items() if part != "count" and share >= 0.01}
    shares = ", ".join(f"{part} {share:.0%}" for part, share in cores.items())
    slower = ", ".join(f"{part} {factor:.2f}x" for part, factor in found["slower_than_alone"].items())
    return (
        f"{name:11} lag {lag}: {found['achieved_steps_per_second']:>9,.0f} / {found['roof_steps_per_second']:>9,.0f} = "
        f"{found['ratio']:.1%}, limit {found['limit']}; cores: {shares}; beside each other: {slower}"
    )


if __name__ == "__main__":
    main()
