"""Spaces of the exported policies that tests/policy shares, and observations for them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = Discrete(3, start=5)
TORQUES = Box(np.array([-1, -2], np.float32), np.array([1, 0.5], np.float32))
BATCH = 6


def observations(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
