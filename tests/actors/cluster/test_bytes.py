"""Batches are the same bytes on one machine and on several."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import actor_learner as al
from actor_learner.spaces.trajectory import map_leaves
from tests.support.cluster_envs import EverythingEnv

pytestmark = pytest.mark.filterwarnings("ignore:There are more actors than cores")


def small(observation_space, action_space, **fields):
    return al.default_network(observation_space, action_space, hidden_sizes=(8,), seed=1, **fields)


def with_memory(observation_space, action_space):
    return small(observation_space, action_space, memory="gru", memory_size=8)


def digest(pool):
    """Of some batches, each by other weights."""
    random, found = np.random.default_rng(0), hashlib.sha256()
    for _ in range(6):
        for field in pool.collect():
            if field is not None:
                map_leaves(lambda leaf: found.update(np.ascontiguousarray(leaf).tobytes()), field)
        pool.publish(pool.exported.weights + random.normal(0, 0.1, pool.exported.weights.shape).astype(np.float32))
    return found.hexdigest()


@pytest.mark.parametrize(
    ("cpus", "network", "lag"),
    [
        pytest.param({"own": 2, "far": 1}, small, 1, marks=pytest.mark.slow, id="two"),
        pytest.param({"a": 1, "b": 1, "c": 1}, with_memory, 0, marks=pytest.mark.thorough, id="three"),
        pytest.param({"own": 2, "far": 1}, small, 3, marks=pytest.mark.thorough, id="lag 3"),
    ],
)
def test_several_machines_give_the_bytes_of_one(cpus, network, lag, machines):
    options = {"num_actors": len(cpus), "max_policy_lag": lag, "unroll_length": 16}
    with machines.pool(EverythingEnv, network, ray_address=None, **options) as pool:
        alone = digest(pool)
    machines.are(**cpus)
    with machines.pool(EverythingEnv, network, ray_wait=0.0, **options) as pool:
        assert len(pool.hosts) == len(cpus)
        assert digest(pool) == alone
