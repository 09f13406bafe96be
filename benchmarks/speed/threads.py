"""The learner's threads and the actors' priority against each other: whole runs, in turns.

    scripts/measure threads --output benchmarks/speed/threads.json      # 20 minutes; with `--works pong` 7

A run of lag 0 beside runs of lag 1 with one thread or all, and with actors of lower priority (`nice` 5, 10) or not. A
figure is env steps per second from the end of the first updates to that of the last. Each run takes 10 to 20 seconds.
"""

from __future__ import annotations

import functools
import json
import os
import statistics

from benchmarks.harness import Found, in_turns, make_parser, origin
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
"""Name: `max_policy_lag`, threads (None: the command line's; 0: one for each core), niceness (None: the default)."""

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
    parser = make_parser("threads", __doc__ or "", works=list(WORKS), rounds=5)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    arguments = parser.parse_args()
    result: Found = {**origin(parser), "steps_per_second": {}}
    for name in arguments.works:
        runs = {each: functools.partial(steps_per_second, WORKS[name], *SETTINGS[each]) for each in arguments.settings}
        result["steps_per_second"][name] = found = in_turns(runs, arguments.rounds)
        _print(name, found)
        if arguments.output:
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def steps_per_second(work: Work, lag: int, threads: int | None, niceness: int | None) -> float:
    """Return the speed of one run of `actor-learner train` with two actors."""
    count = None if threads is None else str(threads or len(os.sched_getaffinity(0)))
    program = ("-c", _PROGRAM, niceness)
    environment = {"TF_NUM_INTRAOP_THREADS": count}
    return work.train(work.updates, program=program, environment=environment, max_policy_lag=lag)


def _print(name: str, found: dict[str, list[float]]) -> None:
    print(f"\n{name}", flush=True)
    reference = next(iter(found.values()))
    for setting, speeds in found.items():
        ratio = statistics.median(a / b for a, b in zip(speeds, reference, strict=True))
        rounds = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(f"  {setting:30} {statistics.median(speeds):>10,.0f} steps/s  {ratio:5.2f}x   ({rounds})", flush=True)


if __name__ == "__main__":
    main()
