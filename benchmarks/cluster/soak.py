"""A pool over three pretended hosts that is disturbed every ten seconds: batches wrong, processes left, memory.

    scripts/measure cluster-soak --minutes 30 --output benchmarks/cluster/soak.json

The learner and Ray's head are on host A. In turns, an actor or a NodeHost of B or C is killed, its cable is pulled for
some seconds, or the host is switched off and comes back. Every row of every batch is checked: it says which environment
and which step it is. Needs root.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable

from benchmarks import hosts
from benchmarks.harness import Found, make_parser, origin, report, tell

SECONDS_BETWEEN, CUT_SECONDS = 10.0, 7.0
OPTIONS = {"ray_address": "auto", "num_actors": 6, "envs_per_actor": 4, "unroll_length": 32, "max_restarts": 100_000}


def kill(host: str, part: str) -> None:
    for pid, line in hosts.processes(host).items():
        if part in line:
            os.kill(pid, signal.SIGKILL)
            return


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
    "actor killed": lambda host: kill(host, "actor-"),
    "NodeHost killed": lambda host: kill(host, "ray::RayHost"),
    "cable cut": cut,
    "host off and on": switch_off_and_on,
}


def main() -> None:
    parser = make_parser("cluster-soak", __doc__ or "", minutes=30.0, seed=0)
    arguments = parser.parse_args()
    if reason := hosts.unavailable():
        parser.error(reason)
    hosts.down_all()
    try:
        for host in "ABC":
            hosts.up(host)
            hosts.start_ray(host, "A")
        found = soak(60 * arguments.minutes, random.Random(arguments.seed))
    finally:
        hosts.down_all()
    report({**origin(parser), **found}, arguments.output)


def soak(seconds: float, chance: random.Random) -> Found:
    """Disturb a pool for so long; return what was seen."""
    words = hosts.inside("A", "python", "-W", "ignore", "-m", "benchmarks.cluster.stamped", json.dumps(OPTIONS))
    process = subprocess.Popen(
        words,
        env=hosts.environment(TF_CPP_MIN_LOG_LEVEL="3"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert process.stdin is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    faults: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        started = time.monotonic()
        name = chance.choice(list(FAULTS))
        try:
            FAULTS[name](chance.choice("BC"))
            faults[name] += 1
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            tell(f"{name}: {error}")
        time.sleep(max(0.0, SECONDS_BETWEEN - (time.monotonic() - started)))
        tell(f"{sum(faults.values())} faults; {lines[-1].strip() if lines else ''}")
    process.stdin.close()
    exit_code = process.wait(120)
    time.sleep(7.0)
    left = [line for host in hosts.names() for line in hosts.processes(host).values() if "actor_learner" in line]
    reader.join(5.0)
    ended = json.loads(next(line for line in reversed(lines) if line.startswith('{"batches"')))
    return {"faults": faults, "exit_code": exit_code, "processes_left": left, **ended}
