"""Batches and final weights on one, two and three simulated hosts of a Ray cluster: are they the same bytes?

    scripts/measure cluster-same-bytes --output benchmarks/cluster/same_bytes.json    # 6 minutes; needs root

Four actors collect at lag 0 and 1, and a learner updates a network by PPO; without Ray first. A digest is of every
field of every batch, and of the final weights. Hosts are benchmarks/hosts.py's, with two CPUs each; the learner is on
the first one. The exit code is 1 if a digest differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np

import actor_learner as al
from benchmarks import hosts
from benchmarks.cluster.frames import tiny
from benchmarks.harness import Figures, make_parser, origin, report, tell

SECONDS = 600.0
HOSTS = "ABC"
LAGS = 0, 1


def small(observation_space: Any, action_space: Any, **fields: Any) -> Any:
    return al.default_network(observation_space, action_space, hidden_sizes=(32,), seed=1, **fields)


def recurrent(observation_space: Any, action_space: Any) -> Any:
    return small(observation_space, action_space, memory="gru", memory_size=16)


SINGLE = {"vectorization": "sync"}
WORKS: dict[str, Figures] = {
    "CartPole": {"env": "CartPole-v1", "network": small, **SINGLE},
    "frames": {"env": "benchmarks.cluster.frames:make", "network": tiny},
    "Dict with masks": {
        "env": "actor_learner_envs:actor_learner/MaskedTreasure-v0",
        "env_kwargs": {"mask_in": "observation"},
        "network": small,
        **SINGLE,
    },
    "memory": {"env": "actor_learner/CartPoleNoVelocity-v0", "network": recurrent, **SINGLE},
}


def main() -> int:
    parser = make_parser("cluster-same-bytes", __doc__ or "", batches=8)
    arguments = parser.parse_args()
    hosts.require(parser)
    found = {f"hosts: {count}": digests(count, arguments.batches) for count in range(len(HOSTS) + 1)}
    alone = {work: row["digest"] for work, row in found["hosts: 0"].items()}
    others = [
        f"{work}, {where}"
        for where, rows in found.items()
        for work, row in rows.items()
        if row["digest"] != alone[work]
    ]
    report({**origin(parser), "batches": arguments.batches, "others": others, **found}, arguments.output)
    return int(bool(others))


def digests(count: int, batches: int) -> Figures:
    """Return each work's digest on so many hosts, and which of them had actors. count: 0 for a machine without Ray."""
    module, address = "benchmarks.cluster.same_bytes", "auto" if count else ""
    with hosts.cluster(HOSTS[:count]) if count else contextlib.nullcontext():
        words = hosts.module_on(HOSTS[0] if count else "", module, batches, address)
        done = subprocess.run(**words, capture_output=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    tell(f"{count} hosts: done")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def digest(batches: int, options: Figures) -> Figures:
    """Learn from so many batches; return a digest of them and of the final weights, and the hosts of actors."""
    import keras

    from actor_learner.spaces.trajectory import map_leaves

    found = hashlib.sha256()
    keras.utils.set_random_seed(1)
    with al.ActorPool(**options, num_actors=4, envs_per_actor=2, unroll_length=16, seed=1) as pool:
        names = [host.name for host in pool.hosts]
        algorithm = al.PPO(minibatch_size=32, epochs=2)
        learner = al.Learner(pool.network, algorithm, action_space=pool.action_space, seed=1)
        for _ in range(batches):
            trajectory = pool.collect()
            for field in trajectory:
                if field is not None:
                    map_leaves(lambda leaf: found.update(np.ascontiguousarray(leaf).tobytes()), field)
            learner.update(trajectory)
            pool.publish(learner.get_weights())
        restarts = pool.restart_count
    for weight in learner.get_weights():
        found.update(weight.tobytes())
    return {"digest": found.hexdigest()[:16], "hosts": names, "restarts": restarts}


def print_digests(batches: str, address: str) -> None:
    """Print the digest of each work at each lag. address: Ray's, empty without Ray."""
    found = {}
    for (name, options), lag in itertools.product(WORKS.items(), LAGS):
        options = {**options, "max_policy_lag": lag, "ray_address": address or None}
        found[f"{name}, lag {lag}"] = digest(int(batches), options)
    print(json.dumps(found))


if __name__ == "__main__":
    print_digests(*sys.argv[1:])
