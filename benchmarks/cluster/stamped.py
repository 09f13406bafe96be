"""A pool on a cluster whose batches are checked row by row, until its standard input ends.

python -m benchmarks.cluster.stamped OPTIONS   # of al.ActorPool, as JSON
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

import actor_learner as al
from benchmarks.faults.stamped import BatchCheck, StampedCartPole, WrongBatchError
from benchmarks.processes import memory_of

REPORT_SECONDS = 5.0


def main(options: str) -> None:
    arguments: dict[str, Any] = json.loads(options)
    found: dict[str, Any] = {"batches": 0, "wrong": [], "restarts": 0, "longest": 0.0}
    check = BatchCheck(arguments["envs_per_actor"], 0, reported=False)
    with al.ActorPool(StampedCartPole, env_kwargs={"by_time": True}, **arguments) as actors:
        reported = before = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            trajectory = actors.collect(timeout=None)
            try:
                check.check(trajectory)
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
    main(*sys.argv[1:])
