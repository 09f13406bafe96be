"""The same columns through Ray's object store: an actor of Ray's collects batches, and returns their arrays.

python -m benchmarks.cluster.through_ray ENV SECONDS OPTIONS   # as benchmarks.cluster.pool
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray

import actor_learner as al
from benchmarks.cluster.pool import with_network


class RayPool:
    """A pool on a machine of its own, whose batches and weights travel by Ray."""

    def __init__(self, env: str, options: dict[str, Any]) -> None:
        self._pool = al.ActorPool(env, **with_network(options))

    def weights(self) -> Any:
        return self._pool.exported.weights

    def collect(self, weights: Any) -> list[Any]:
        """Collect a batch by these weights; return its arrays, which Ray copies into its object store."""
        self._pool.publish(weights)
        self._pool.collect(timeout=None)
        block = self._pool._blocks[0]
        return list(block.arrays.values())


def main(env: str, seconds: str, options: str) -> None:
    ray.init("auto", log_to_driver=False)
    pool = ray.remote(RayPool).options(num_cpus=1).remote(env, json.loads(options))
    weights = ray.get(pool.weights.remote())
    arrays = [array.copy() for array in ray.get(pool.collect.remote(ray.put(weights)))]
    rows = next(array for array in arrays if array.ndim == 2).size
    print(json.dumps({"ready": time.time()}), flush=True)
    ends = time.monotonic() + float(seconds)
    while time.monotonic() < ends:
        for own, received in zip(arrays, ray.get(pool.collect.remote(ray.put(weights))), strict=True):
            own[...] = received  # into the learner's batch
        print(json.dumps({"batch": time.time(), "rows": rows, "of": rows}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
