"""From actions as they are sampled to what an environment gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actor_learner.policy.exported import Array
from actor_learner.spaces import structure
from actor_learner.spaces.kinds import Box

ToEnv = Callable[[Any], Any]


def leaf_to_env(leaf: structure.Leaf, distribution: str) -> ToEnv:
    """What turns one leaf of actions, of one environment or a batch, into the environment's.

    Discrete, MultiDiscrete: counted from the space's `start`. Box: clipped to the bounds, or, where the distribution
    is "squashed", low + (tanh(u) + 1) / 2 x (high - low). All in the space's dtype.
    """
    dtype = np.dtype(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        # An addition, since its result for one action is a number, which environments use as a key.
        start = np.asarray(0 if leaf.start is None else leaf.start, dtype)
        return lambda action: np.add(action, start, dtype=dtype)
    low, high = leaf.space.low, leaf.space.high
    if distribution == "squashed":
        return _squash(low, high)
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda action: np.asarray(action, dtype)
    return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)


def _squash(low: Array, high: Array) -> ToEnv:
    dtype = low.dtype
    # Halved first: the difference of the largest bounds is infinite.
    centre, scale = low / 2 + high / 2, high / 2 - low / 2
    # Rounding may step over a bound.
    return lambda action: np.clip(centre + scale * np.tanh(np.asarray(action, dtype)), low, high)
