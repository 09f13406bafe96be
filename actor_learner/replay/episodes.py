"""Episodes that were played elsewhere, as trajectories."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actor_learner.spaces.kinds import Tuple, middle
from actor_learner.spaces.leaves import check_array, check_choices, check_values
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import Leaf, Structure, choice_counts
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.fields import refusal
from actor_learner.system.types import Array

_NEAR_BOUNDS = 1 - 1e-6
"""The largest tanh that is undone: beyond, an action hardly changes, but what it is the tanh of grows without bound."""

_MAX_BEYOND = 1 + 1e-3
"""The largest distance from the middle of an action's bounds that rounding explains, in halves of their distance."""


def episode(
    spaces: Spaces,
    observations: Sequence[Any] | Mapping[str, Any],
    actions: Sequence[Any] | Mapping[str, Any],
    rewards: Sequence[float],
    *,
    terminated: bool,
    action_masks: Sequence[Any] | None,
    squashed: bool | None,
    of_parts: bool = False,
) -> Trajectory:
    """Return an episode as a trajectory of one column, `[n, 1]`. See `ReplayBuffer.add_episode`.

    of_parts: A tuple or list for a Tuple space holds arrays of all steps, however many these are.
    """
    steps = len(rewards)
    action = _by_leaf(spaces.action, "actions", actions, steps, of_parts=of_parts)
    observation = _by_leaf(spaces.observation, "observations", observations, steps, more=1, of_parts=of_parts)
    if np.ndim(terminated):
        raise refusal("terminated", "True or False, as after the last step", terminated)
    if squashed is None and any(leaf.is_bounded_box for leaf in spaces.action.leaves):
        raise ValueError(
            "`squashed` must be given where actions have bounds: True for SAC, which keeps actions before tanh; False "
            "for TD3. Received: squashed=None"
        )
    last = np.arange(steps)[:, None] == steps - 1
    zeros = np.zeros((steps, 1), np.float32)
    return Trajectory(
        observation=_stacked(spaces.observation, observation),
        action=_stacked(spaces.action, action, squashed=bool(squashed)),
        reward=np.asarray(rewards, np.float32).reshape(steps, 1),
        terminated=last & bool(terminated),
        truncated=last & (not terminated),
        valid=np.ones((steps, 1), bool),
        behaviour_log_prob=zeros,
        truncation_value=zeros,
        policy_version=np.zeros(1, np.int64),
        action_mask=None
        if action_masks is None
        else spaces.masks.read(np.stack(list(action_masks)), steps, "action_masks")[:, None],
        start=np.arange(steps + 1)[:, None] == 0,
    )


def _by_leaf(
    structure: Structure, name: str, values: Any, steps: int, more: int = 0, of_parts: bool = False
) -> Sequence[Any]:
    """Return the values of each leaf, `steps + more` of each.

    values: those of each step, or arrays of all steps, nested as the space is; a tuple of so many is one of steps,
        unless it is of arrays.
    """
    count = steps + more
    if isinstance(structure.space, Tuple) and isinstance(values, list) and of_parts:
        values = tuple(values)
    in_parts = isinstance(structure.space, Tuple) and isinstance(values, tuple)
    in_parts &= of_parts or len(values) != count or all(isinstance(each, np.ndarray) for each in values)
    nested = in_parts or (isinstance(values, dict) and not structure.plain)
    columns: list[Any] = [np.atleast_1d(part) for part in structure.flatten(values)] if nested else [values]
    for column in columns:
        if not steps or len(column) != count:
            expected = "one more than there are rewards" if more else "as many as there are rewards"
            raise ValueError(f"`{name}` must be {expected}, at least one. Received: {len(column)} and {steps} rewards")
    return columns if nested else list(zip(*map(structure.flatten, values), strict=True))


def _stacked(structure: Structure, columns: Sequence[Any], *, squashed: bool | None = None) -> Any:
    """Return the values of each leaf as a trajectory has them: nested arrays `[n, 1, ...]`. squashed: of actions."""
    read = functools.partial(_leaf, squashed=squashed)
    return structure.unflatten(list(itertools.starmap(read, zip(structure.leaves, columns, strict=True))))


def _leaf(leaf: Leaf, column: Sequence[Any], *, squashed: bool | None) -> Array:
    steps = [check_array(leaf.label, value, leaf.shape, hint=" in each step") for value in column]
    values = np.stack(steps)[:, None]
    if choice_counts(leaf.space) and values.dtype.kind in "biuf":
        check_choices(leaf, values, from_start=True)
    if leaf.start is not None:
        values = values - leaf.start
    if squashed is not None and leaf.is_bounded_box and values.dtype.kind in "iuf":
        centre, half = middle(leaf.space, np.float64)
        if (np.abs(values - centre) > half * _MAX_BEYOND).any():
            what = f"{leaf.label} is outside its bounds, in other units perhaps: scale or clip it"
            warnings.warn(f"{what}. Received: values beyond those of {leaf.space}", stacklevel=6)
        values = before_tanh(leaf, values) if squashed else values
    check_values(leaf, values)
    return values.astype(leaf.dtype) if leaf.dtype.kind == "f" or values.dtype.kind == leaf.dtype.kind else values


def before_tanh(leaf: Leaf, action: Array) -> Array:
    """Return what a policy that squashes by tanh has drawn where a Box with bounds got an action `[..., *shape]`."""
    centre, half = middle(leaf.space, np.float64)
    return np.arctanh(np.clip((action - centre) / half, -_NEAR_BOUNDS, _NEAR_BOUNDS))


def after_tanh(leaf: Leaf, action: Array) -> Array:
    """Return the action that a Box with bounds gets of one before tanh, `[..., *shape]`."""
    centre, half = middle(leaf.space, np.float64)
    found: Array = centre + half * np.tanh(action)
    return found
