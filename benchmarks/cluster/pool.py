"""A pool on a cluster that collects batches; its lines say when. Run on one of the hosts.

python -m benchmarks.cluster.pool ENV SECONDS OPTIONS   # OPTIONS: of al.ActorPool, as JSON; network: "tiny"
python -m benchmarks.cluster.pool checked OPTIONS       # batches are checked row by row, until standard input ends
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

import actor_learner as al
from benchmarks.cluster.frames import tiny
from benchmarks.faults.stamped import BatchCheck, StampedCartPole, WrongBatchError
from benchmarks.processes import memory_of

REPORT_SECONDS = 5.0


def collect(env: str, seconds: str, options: str) -> None:
    """Print a line for each batch."""
    arguments: dict[str, Any] = json.loads(options)
    if arguments.get("network") == "tiny":
        arguments["network"] = tiny
    with al.ActorPool(env, **arguments) as actors:
        print(json.dumps({"ready": time.time()}), flush=True)
        ends = time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            trajectory = actors.collect(timeout=None)
            found = {"batch": time.time(), "rows": int(trajectory.valid.sum()), "of": trajectory.valid.size}
            found |= {"restarts": list(map(str, actors.restarts)), "hosts": [host.name for host in actors.hosts]}
            print(json.dumps(found), flush=True)
            actors.publish(actors.exported.weights)


def check(options: str) -> None:
    """Check each row of each batch, and print the figures so far every few seconds."""
    arguments: dict[str, Any] = json.loads(options)
    found: dict[str, Any] = {"batches": 0, "wrong": [], "restarts": 0, "longest": 0.0}
    checking = BatchCheck(arguments["envs_per_actor"], 0, reported=False)
    with al.ActorPool(StampedCartPole, env_kwargs={"by_time": True}, **arguments) as actors:
        reported = before = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            trajectory = actors.collect(timeout=None)
            try:
                checking.check(trajectory)
            except WrongBatchError as error:
                found["wrong"].append(str(error))
            actors.publish(actors.exported.weights)
            now = time.monotonic()
            found["batches"] += 1
            found["longest"] = max(found["longest"], round(now - before, 2))
            before = now
            if now - reported > REPORT_SECONDS:
                reported = now
                found |= {"restarts": actors.restart_count, "megabytes": round(memory_of(os.getpid())["anonymous"], 1)}
                found["descriptors"] = len(os.listdir("/proc/self/fd"))
                found.setdefault("first", {name: found[name] for name in ("megabytes", "descriptors")})
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    check(*sys.argv[2:]) if sys.argv[1] == "checked" else collect(*sys.argv[1:])
