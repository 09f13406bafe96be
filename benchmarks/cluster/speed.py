"""Speed of a pool whose actors are all on another machine, beside one machine.

    scripts/measure cluster-speed --rounds 5 --output benchmarks/cluster/speed.json

Two simulated hosts (see benchmarks/hosts.py) on this machine's cores: the learner is on one, which has no CPU for Ray,
the actors are on the other one. Nothing is learned; the same weights are published after each batch. Rounds alternate.
Needs root. Ray's object store, the way that was decided against, has its figures of 2026-11-23 in speed.json, and its
program in git's history (`git show 96efe57:benchmarks/cluster/through_ray.py`).
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
from typing import Any

from benchmarks import hosts
from benchmarks.harness import Figures, make_parser, origin, ratio_of, report, run_in_turns

CARTPOLE: dict[str, Any] = {"num_actors": 4, "envs_per_actor": 16, "unroll_length": 128}
FRAMES: dict[str, Any] = {"num_actors": 2, "envs_per_actor": 8, "unroll_length": 64, "network": "tiny"}
FRAMES_ENV = "benchmarks.cluster.frames:make"
REMOTE = {"ray_address": "auto"}
WORKS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "CartPole-v1, 4 x 16": {
        "one machine": ("CartPole-v1", CARTPOLE),
        "over TCP": ("CartPole-v1", {**CARTPOLE, **REMOTE}),
    },
    "frames, 84 x 84 x 4, 2 x 8": {
        "one machine": (FRAMES_ENV, FRAMES),
        "over TCP": (FRAMES_ENV, {**FRAMES, **REMOTE}),
        "over TCP, no frame repeats": (FRAMES_ENV, {**FRAMES, **REMOTE, "env_kwargs": {"stacked": False}}),
    },
}
_START_SECONDS = 120.0


def main() -> None:
    parser = make_parser("cluster-speed", __doc__ or "", rounds=5, seconds=5.0)
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    arguments = parser.parse_args()
    hosts.require(parser)
    with hosts.cluster("AB", {"A": 0, "B": 8}):
        found = {name: compare(name, arguments.rounds, arguments.seconds) for name in arguments.only}
    report({**origin(parser), "steps_per_second": found}, arguments.output)


def compare(name: str, rounds: int, seconds: float) -> Figures:
    """Return env steps per second of each way, medians and all rounds, and ratios to the way on one machine."""
    runs = run_in_turns({way: functools.partial(speed, *work, seconds) for way, work in WORKS[name].items()}, rounds)
    return {
        "medians": {way: statistics.median(of) for way, of in runs.items()},
        "of one machine": {way: ratio_of(of, runs["one machine"]).median for way, of in runs.items()},
        "rounds": runs,
    }


def speed(env: str, options: dict[str, Any], seconds: float) -> float:
    """Return the env steps per second of one run, without its first batches."""
    words = hosts.module_on("A", "benchmarks.cluster.pool", env, seconds, json.dumps(options))
    done = subprocess.run(**words, capture_output=True, timeout=_START_SECONDS + seconds, check=False)
    batches = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"batch"')]
    if done.returncode or len(batches) < 4:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    rows = sum(batch["rows"] for batch in batches[3:])
    return float(rows / (batches[-1]["batch"] - batches[2]["batch"]))
