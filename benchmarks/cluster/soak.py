"""A pool over three simulated hosts that is disturbed every ten seconds: batches wrong, processes left, memory.

    scripts/measure cluster-soak --minutes 30 --output benchmarks/cluster/soak.json

The learner and Ray's head are on host A. In turns, an actor or a NodeHost of B or C is killed, its cable is pulled for
some seconds, or the host is switched off and comes back. Every row of every batch is checked: it says which environment
and which step it is. Needs root.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable

from benchmarks import hosts
from benchmarks.cluster import faults
from benchmarks.harness import Figures, make_parser, origin, report, tell

SECONDS_BETWEEN, CUT_SECONDS = 10.0, 7.0
OPTIONS = {"ray_address": "auto", "num_actors": 6, "envs_per_actor": 4, "unroll_length": 32, "max_restarts": 100_000}


def cut(host: str) -> None:
    hosts.cut(host)
    time.sleep(CUT_SECONDS)
    hosts.heal(host)


def switch_off_and_on(host: str) -> None:
    hosts.down(host)
    time.sleep(2.0)
    hosts.up(host)
    hosts.start_ray(host, "A")


FAULTS: dict[str, Callable[[str], None]] = {
    **{name: faults.FAULTS[name] for name in ("actor killed", "NodeHost killed")},
    "cable cut": cut,
    "host off and on": switch_off_and_on,
}


def main() -> None:
    parser = make_parser("cluster-soak", __doc__ or "", minutes=30.0, seed=0)
    arguments = parser.parse_args()
    hosts.require(parser)
    with hosts.cluster("ABC"), faults.Learner(("checked",), OPTIONS) as learner:
        found = soak(learner, 60 * arguments.minutes, random.Random(arguments.seed))
    report({**origin(parser), **found}, arguments.output)


def soak(learner: faults.Learner, seconds: float, chance: random.Random) -> Figures:
    """Disturb a pool for so long, and let it end; return what was seen."""
    caused: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and learner.process.poll() is None:
        started = time.monotonic()
        name = chance.choice(list(FAULTS))
        try:
            FAULTS[name](chance.choice("BC"))
            caused[name] += 1
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            tell(f"{name}: {error}")
        time.sleep(max(0.0, SECONDS_BETWEEN - (time.monotonic() - started)))
        tell(f"{caused.total()} faults; {learner.rows[-1] if learner.rows else ''}")
    assert learner.process.stdin is not None
    learner.process.stdin.close()
    if exit_code := learner.process.wait(120):
        tell("\n".join(learner.other[-20:]))
    time.sleep(faults.LEFT_SECONDS)
    left = [line for host in hosts.names() for line in hosts.processes(host).values() if "actor_learner" in line]
    return {"faults": caused, "exit_code": exit_code, "processes_left": left, **learner.rows[-1]}
