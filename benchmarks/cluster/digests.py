"""Digests of batches and weights: python -m benchmarks.cluster.digests BATCHES RAY_ADDRESS   # "": without Ray"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from typing import Any

import keras
import numpy as np

import actor_learner as al
from actor_learner.spaces.trajectory import map_leaves
from benchmarks.cluster.network import tiny
from benchmarks.harness import Found


def small(observation_space: Any, action_space: Any, **fields: Any) -> Any:
    return al.default_network(observation_space, action_space, hidden_sizes=(32,), seed=1, **fields)


def remembering(observation_space: Any, action_space: Any) -> Any:
    return small(observation_space, action_space, memory="gru", memory_size=16)


SINGLE = {"vectorization": "sync"}
WORKS: dict[str, Found] = {
    "CartPole": {"env": "CartPole-v1", "network": small, **SINGLE},
    "frames": {"env": "benchmarks.cluster.frames_env:make", "network": tiny},
    "Dict with masks": {
        "env": "actor_learner_envs:actor_learner/MaskedTreasure-v0",
        "env_kwargs": {"mask_in": "observation"},
        "network": small,
        **SINGLE,
    },
    "memory": {"env": "actor_learner/CartPoleNoVelocity-v0", "network": remembering, **SINGLE},
}
LAGS = 0, 1


def digest(batches: int, options: Found) -> Found:
    """Learn from so many batches; return a digest of them and of the final weights, and the hosts of actors."""
    found = hashlib.sha256()
    keras.utils.set_random_seed(1)
    with al.ActorPool(**options, num_actors=4, envs_per_actor=2, unroll_length=16, seed=1) as pool:
        hosts = [host.name for host in pool.hosts]
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
    return {"digest": found.hexdigest()[:16], "hosts": hosts, "restarts": restarts}


def main(batches: str, address: str) -> None:
    found = {}
    for (name, options), lag in itertools.product(WORKS.items(), LAGS):
        options = {**options, "max_policy_lag": lag, "ray_address": address or None}
        found[f"{name}, lag {lag}"] = digest(int(batches), options)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
