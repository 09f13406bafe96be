#!/usr/bin/env python3
"""Throughput with one actor 100 times slower than the others: lock-step, one batch ahead, running freely.

    scripts/measure free-running --rounds 3 --output benchmarks/speed/free_running.json

Collects batches of `actor_learner/Latency-v0`, whose environments wait 1 ms a step, and 100 ms in the actor that
the seed makes slow; nothing is learned. The three alternate; ratios are medians of the rounds'. Valid rows count.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

from actor_learner_envs.latency import StepTime

import actor_learner as al
from actor_learner.actors.actor import Startup
from benchmarks.machine import machine

ACTORS, ENVS, ROWS, STEP_TIME = 4, 8, 20, 0.001
LAGS = (0, 1, 4)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    rounds = [{lag: measure(lag, arguments.batches) for lag in LAGS} for _ in range(arguments.rounds)]
    medians = {f"lag {lag}": statistics.median(found[lag] for found in rounds) for lag in LAGS}
    ratios = {f"lag {lag} / lag 0": statistics.median(found[lag] / found[0] for found in rounds) for lag in LAGS[1:]}
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "work": {"actors": ACTORS, "envs_per_actor": ENVS, "unroll_length": ROWS, "step_seconds": STEP_TIME},
        "rounds": rounds,
        "steps_per_second": medians,
        "ratios": ratios,
    }
    print(json.dumps({"steps_per_second": medians, "ratios": ratios}, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(lag: int, batches: int) -> float:
    """Env steps a second over some batches, after the first two."""
    env_kwargs = {"step_time": STEP_TIME, "slow_fraction": 1 / ACTORS, "slow_factor": 100.0}
    with al.ActorPool(
        "actor_learner/Latency-v0",
        env_kwargs=env_kwargs,
        num_actors=ACTORS,
        envs_per_actor=ENVS,
        unroll_length=ROWS,
        max_policy_lag=lag,
        seed=seed_with_one_slow_actor(),
    ) as actors:
        steps, started = 0, time.perf_counter()
        for batch in range(2 + batches):
            if batch == 2:
                steps, started = 0, time.perf_counter()
            steps += int(actors.collect().valid.sum())
            actors.publish(actors.network.get_weights())
        return steps / (time.perf_counter() - started)


def seed_with_one_slow_actor() -> int:
    """An environment knows nothing of its actor but the seed of its reset, which decides whether it is slow."""
    step_time = StepTime(slow_fraction=1 / ACTORS)

    def slow(seed: int) -> int:
        seeds = [Startup(ENVS, (), None, seed, actor).seeds()[0] % (2**31 - ENVS) for actor in range(ACTORS)]
        return sum(map(step_time.is_slow, seeds))

    return next(seed for seed in range(1000) if slow(seed) == 1)


if __name__ == "__main__":
    main()
