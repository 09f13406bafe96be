"""Converts sampled actions to the actions that an environment takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actor_learner.spaces.kinds import Box
from actor_learner.spaces.structure import Leaf


def leaf_to_env(leaf: Leaf, distribution: str) -> Callable[[Any], Any]:
    """Return the function that converts one leaf of an action or of a batch of actions.

    Discrete and MultiDiscrete actions are counted from the space's `start`. Box actions are clipped to the bounds;
    those of the distribution "squashed" become low + (tanh(u) + 1) / 2 x (high - low). All get the space's dtype.
    """
    dtype = np.dtype(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        # np.add returns a number for a single action, and environments use it as a key.
        start = np.asarray(0 if leaf.start is None else leaf.start, dtype)
        return lambda action: np.add(action, start, dtype=dtype, casting="unsafe")  # from int32, also to unsigned ones
    low, high = leaf.space.low, leaf.space.high
    if distribution == "squashed":
        # Halved first, because the difference of the largest bounds is infinite. Rounding may step over a bound.
        centre, scale = low / 2 + high / 2, high / 2 - low / 2
        return lambda action: np.clip(centre + scale * np.tanh(np.asarray(action, dtype)), low, high)
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda action: np.asarray(action, dtype)
    return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)
