"""The throughput with one actor 100 times slower than the others: lock-step, one batch ahead, running freely.

    scripts/measure free-running --output benchmarks/speed/free_running.json

The environments of `actor_learner/Latency-v0` wait 1 ms a step, and 100 ms in the actor that the seed makes slow.
"""

from __future__ import annotations

import functools
import statistics
import time
import warnings

from actor_learner_envs.latency import StepTime

import actor_learner as al
from actor_learner.actors.actor import Startup
from benchmarks.harness import in_turns, make_parser, origin, report

ACTORS, ENVS, ROWS, STEP_TIME = 4, 8, 20, 0.001
LAGS = (0, 1, 4)


def main() -> None:
    parser = make_parser("free-running", __doc__ or "", rounds=3, batches=12)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="There are more actors than cores")
    runs = {str(lag): functools.partial(measure, lag, arguments.batches) for lag in LAGS}
    speeds = in_turns(runs, arguments.rounds)
    lock_step = speeds["0"]
    result = {
        **origin(parser),
        "work": {"actors": ACTORS, "envs_per_actor": ENVS, "unroll_length": ROWS, "step_seconds": STEP_TIME},
        "rounds": [dict(zip(speeds, row, strict=True)) for row in zip(*speeds.values(), strict=True)],
        "steps_per_second": {f"lag {lag}": statistics.median(found) for lag, found in speeds.items()},
        "ratios": {
            f"lag {lag} / lag 0": statistics.median(a / b for a, b in zip(found, lock_step, strict=True))
            for lag, found in list(speeds.items())[1:]
        },
    }
    report(result, arguments.output, leave_out=("rounds",))


def measure(lag: int, batches: int) -> float:
    """Return env steps a second over some batches, after the first two."""
    with al.ActorPool(
        "actor_learner/Latency-v0",
        env_kwargs={"step_time": STEP_TIME, "slow_fraction": 1 / ACTORS, "slow_factor": 100.0},
        num_actors=ACTORS,
        envs_per_actor=ENVS,
        unroll_length=ROWS,
        max_policy_lag=lag,
        seed=seed_with_one_slow_actor(),
    ) as actors:
        steps, started = 0, 0.0
        for batch in range(2 + batches):
            if batch == 2:
                steps, started = 0, time.perf_counter()
            steps += int(actors.collect().valid.sum())
            actors.publish(actors.network.get_weights())
        return steps / (time.perf_counter() - started)


def seed_with_one_slow_actor() -> int:
    """Find a seed: an environment knows only the seed of its reset, which decides whether it is slow."""
    step_time = StepTime(slow_fraction=1 / ACTORS)

    def slow(seed: int) -> int:
        seeds = [Startup(ENVS, (), None, seed, actor).seeds()[0] % (2**31 - ENVS) for actor in range(ACTORS)]
        return sum(map(step_time.is_slow, seeds))

    return next(seed for seed in range(1000) if slow(seed) == 1)
