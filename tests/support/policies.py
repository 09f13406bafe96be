"""Two exported policies, of three actions and of two torques, and observations for them."""

from __future__ import annotations

import functools

import numpy as np
from gymnasium.spaces import Box, Discrete

from actor_learner.networks import default
from actor_learner.policy.export.litert import export_policy

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = Discrete(3, start=5)
TORQUES = Box(np.array([-1, -2], np.float32), np.array([1, 0.5], np.float32))
BATCH = 6


@functools.cache
def discrete_network():
    return default.default_network(VECTOR, ACTIONS)


@functools.cache
def discrete_policy():
    return export_policy(discrete_network(), ACTIONS, BATCH, VECTOR)


@functools.cache
def gaussian_policy():
    network = default.default_network(VECTOR, TORQUES, initial_log_std=-0.3, noise_hold=3)
    return export_policy(network, TORQUES, BATCH, VECTOR)


def observations(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
