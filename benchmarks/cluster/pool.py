"""A pool on a cluster that collects batches without an end; its lines say when. Run on one of the hosts.

python -m benchmarks.cluster.pool ENV SECONDS OPTIONS   # OPTIONS: of al.ActorPool, as JSON; network: "tiny"
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import actor_learner as al
from benchmarks.cluster.network import tiny


def with_network(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, with the network itself in place of its name."""
    return {**options, "network": tiny} if options.get("network") == "tiny" else options


def main(env: str, seconds: str, options: str) -> None:
    with al.ActorPool(env, **with_network(json.loads(options))) as actors:
        print(json.dumps({"ready": time.time()}), flush=True)
        ends = time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            trajectory = actors.collect(timeout=None)
            found = {"batch": time.time(), "rows": int(trajectory.valid.sum()), "of": trajectory.valid.size}
            found |= {"restarts": list(map(str, actors.restarts)), "hosts": [host.name for host in actors.hosts]}
            print(json.dumps(found), flush=True)
            actors.publish(actors.exported.weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
