"""Batches and weights are the same bytes on one machine and on several."""

from __future__ import annotations

import hashlib

import keras
import numpy as np
import pytest

import actor_learner as al
from actor_learner.spaces.trajectory import map_leaves
from tests.support.cluster_envs import FramesEnv, MaskedDictEnv

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:There are more actors than cores")]


def frames_network(observation_space, action_space):
    keras.utils.set_random_seed(1)
    image = keras.Input(observation_space.shape, dtype="uint8")
    h = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    h = keras.layers.Dense(8, "tanh")(h)
    return keras.Model(image, (keras.layers.Dense(3)(h), keras.layers.Dense(1)(h)))


def small(observation_space, action_space, **fields):
    return al.default_network(observation_space, action_space, hidden_sizes=(8,), seed=1, **fields)


def with_memory(observation_space, action_space):
    return small(observation_space, action_space, memory="gru", memory_size=8)


WORKS = {
    "CartPole": ("CartPole-v1", small, 0),
    "CartPole, lag 1": ("CartPole-v1", small, 1),
    "frames": (FramesEnv, frames_network, 0),
    "Dict with masks": (MaskedDictEnv, small, 1),
    "memory": ("actor_learner/CartPoleNoVelocity-v0", with_memory, 1),
}


def digest(pool):
    """Learns from some batches; returns a digest of them and of the final weights."""
    found = hashlib.sha256()
    learner = al.Learner(pool.network, al.PPO(minibatch_size=32, epochs=1), action_space=pool.action_space, seed=1)
    for _ in range(4):
        trajectory = pool.collect()
        for field in trajectory:
            if field is not None:
                map_leaves(lambda leaf: found.update(np.ascontiguousarray(leaf).tobytes()), field)
        learner.update(trajectory)
        pool.publish(learner.get_weights())
    for weight in learner.get_weights():
        found.update(weight.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", WORKS)
def test_one_two_and_three_machines_give_the_same_bytes(name, machines, without_xla):
    env, network, lag = WORKS[name]
    with machines.pool(env, network, max_policy_lag=lag, ray_address=None) as pool:
        alone = digest(pool)
    for of_cluster in ({"own": 2 + lag, "far": 2}, {"a": 2, "b": 1, "c": 1}):
        machines.are(**of_cluster)
        with machines.pool(env, network, max_policy_lag=lag) as pool:
            assert digest(pool) == alone, of_cluster
