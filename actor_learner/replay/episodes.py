"""Episodes that were played elsewhere, as trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from actor_learner.spaces.leaves import check_array, check_values
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import Leaf, Structure
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.types import Array

_NEAR_BOUNDS = 1 - 1e-6
"""The largest tanh that is undone: beyond, an action hardly changes, but what it is the tanh of grows without bound."""


def episode(
    spaces: Spaces,
    observations: Sequence[Any],
    actions: Sequence[Any],
    rewards: Sequence[float],
    *,
    terminated: bool,
    action_masks: Sequence[Any] | None,
    squashed: bool | None,
) -> Trajectory:
    """Return an episode as a trajectory of one column, `[n, 1]`. See `ReplayBuffer.add_episode`."""
    steps = len(rewards)
    for name, values, count in (("actions", actions, steps), ("observations", observations, steps + 1)):
        if not steps or len(values) != count:
            expected = "one more than there are rewards" if count > steps else "as many as there are rewards"
            raise ValueError(f"`{name}` must be {expected}, at least one. Received: {len(values)} and {steps} rewards")
    if squashed is None and any(leaf.is_bounded_box for leaf in spaces.action.leaves):
        raise ValueError(
            "`squashed` must be given where actions have bounds: True for SAC, which keeps actions before tanh; False "
            "for TD3. Received: squashed=None"
        )
    last = np.arange(steps)[:, None] == steps - 1
    zeros = np.zeros((steps, 1), np.float32)
    return Trajectory(
        observation=_stacked(spaces.observation, observations),
        action=_stacked(spaces.action, actions, squashed=bool(squashed)),
        reward=np.asarray(rewards, np.float32).reshape(steps, 1),
        terminated=last & bool(terminated),
        truncated=last & (not terminated),
        valid=np.ones((steps, 1), bool),
        behaviour_log_prob=zeros,
        truncation_value=zeros,
        policy_version=np.zeros(1, np.int64),
        action_mask=None if action_masks is None else np.stack(list(action_masks)).reshape(steps, 1, -1),
        start=np.arange(steps + 1)[:, None] == 0,
    )


def _stacked(structure: Structure, values: Sequence[Any], *, squashed: bool = False) -> Any:
    """Return values of a space, one for each step, as a trajectory has them: nested arrays `[n, 1, ...]`."""
    columns = zip(*map(structure.flatten, values), strict=True)
    leaves = [_leaf(leaf, column, squashed) for leaf, column in zip(structure.leaves, columns, strict=True)]
    return structure.unflatten(leaves)


def _leaf(leaf: Leaf, column: Sequence[Any], squashed: bool) -> Array:
    steps = [check_array(leaf.label, value, leaf.shape, hint=" in each step") for value in column]
    values = np.stack(steps)[:, None]
    if leaf.start is not None:
        values = values - leaf.start
    if squashed and leaf.is_bounded_box:
        low, high = (np.asarray(bound, np.float64) for bound in (leaf.space.low, leaf.space.high))
        within_one = (values - (low / 2 + high / 2)) / (high / 2 - low / 2)
        values = np.arctanh(np.clip(within_one, -_NEAR_BOUNDS, _NEAR_BOUNDS))
    check_values(leaf, values)
    return values.astype(leaf.dtype) if leaf.dtype.kind == "f" or values.dtype.kind == leaf.dtype.kind else values
