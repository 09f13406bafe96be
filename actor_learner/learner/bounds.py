"""The actions of a run's first batch against the bounds of their space."""

from __future__ import annotations

import math
import warnings

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory

MAX_SHARE_AT_BOUNDS = 0.6
"""The share of a new policy's Box components on a bound above which its noise is too wide for the space."""


def warn_of_narrow_bounds(trajectory: Trajectory, spaces: Spaces, distribution: str) -> None:
    """Warn where most components of a Gaussian policy's Box actions, `[T, B, ...]`, are clipped to a bound."""
    if distribution != "gaussian":
        return
    pairs = zip(spaces.action.leaves, spaces.action.flatten(trajectory.action), strict=True)
    at_bounds = [
        np.ravel((action[trajectory.valid] <= leaf.space.low) | (action[trajectory.valid] >= leaf.space.high))
        for leaf, action in pairs
        if leaf.is_bounded_box
    ]
    share = np.concatenate(at_bounds).mean() if at_bounds else 0.0
    if share > MAX_SHARE_AT_BOUNDS:
        warnings.warn(
            f"{share:.0%} of the numbers in the first batch's actions lie on a bound, because the policy's noise is "
            f"wider than the bounds: use `distribution='squashed'`{_lower_std(spaces)}, or scale actions in a wrapper. "
            f"Received: {spaces.gymnasium.action_space}",
            UserWarning,
            stacklevel=3,
        )


def _lower_std(spaces: Spaces) -> str:
    """Return advice about the noise's width, half of the bounds' distance from 0; none where means of 0 are outside."""
    boxes = [leaf.space for leaf in spaces.action.leaves if leaf.is_bounded_box]
    distance = min(float(min(box.high.min(), -box.low.max())) for box in boxes)
    return f", `initial_log_std={math.log(distance / 2):.1f}`" if distance > 0 else ""
