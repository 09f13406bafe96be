"""Pools one after the other in one process: descriptors and memory are back where they were."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from actor_learner.actors.pool import ActorPool
from actor_learner.networks import default
from tests.faults.failing_envs import QuietEnv
from tests.support.processes import children, open_descriptors

pytestmark = pytest.mark.slow


def shared_memory():
    """The mappings of arenas, which stay as long as any array on them does."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:actor_learner" in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_pools_in_turn():
    env = QuietEnv()
    network = default.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))
    children_before, shared_before = children(), shared_memory()
    descriptors, objects = [], []
    for _ in range(10):
        with ActorPool(QuietEnv, network, num_actors=2, envs_per_actor=2, unroll_length=8) as pool:
            pool.collect()
            assert len(shared_memory()) == len(shared_before) + 1
        del pool
        gc.collect()
        descriptors.append(open_descriptors())
        objects.append(len(gc.get_objects()))
    assert children() == children_before
    assert shared_memory() == shared_before
    assert descriptors[-1] == descriptors[0]
    assert objects[-1] - objects[2] < 7 * 100  # a pool and all that it has is more than 100
