"""Spaces of the exported policies that tests/policy shares, observations for them, and what a policy does."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = Discrete(3, start=5)
TORQUES = Box(np.array([-1, -2], np.float32), np.array([1, 0.5], np.float32))
BATCH = 6


def observations(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def acted(policy):
    """Returns the bytes of what a policy does in five steps."""
    rng, structure = np.random.default_rng(0), policy.spaces.observation
    leaves = tuple(rng.integers(0, 2, (BATCH, *leaf.shape)).astype(leaf.dtype) for leaf in structure.leaves)
    steps = [policy.step_leaves(leaves) for _ in range(5)]
    arrays = [array for actions, log_prob in steps for array in (*actions, log_prob)]
    return b"".join(array.tobytes() for array in (*arrays, policy.value_leaves(leaves)))
