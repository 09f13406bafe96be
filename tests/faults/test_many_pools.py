"""Pools one after the other in one process: descriptors and memory are back where they were."""

from __future__ import annotations

import functools
import gc

from actor_learner import networks
from actor_learner.pool import ActorPool
from tests.faults.failing_envs import QuietEnv
from tests.processes import children, open_descriptors, resident_megabytes


def test_pools_in_turn():
    make_env = functools.partial(QuietEnv, size=100_000)
    env = make_env()
    network = networks.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))
    children_before = children()
    megabytes, descriptors = [], []
    for _ in range(20):
        # 14 MB of batches each: a pool whose memory stayed would be seen.
        with ActorPool(make_env, network, num_actors=2, envs_per_actor=2, unroll_length=8) as pool:
            pool.collect()
        gc.collect()
        megabytes.append(resident_megabytes())
        descriptors.append(open_descriptors())
    assert children() == children_before
    assert descriptors[-1] == descriptors[0]
    assert megabytes[-1] - megabytes[4] < 100
