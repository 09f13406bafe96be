"""Hindsight experience replay: rows that are drawn get a goal that was achieved in their episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from actor_learner.replay.targets import Targets, successors
from actor_learner.spaces.structure import Structure
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.fields import HINDSIGHT, check_choice, check_number
from actor_learner.system.types import Array

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_KEYS = {"observation", ACHIEVED, DESIRED}
_TRIED_ROWS = 97  # unlike the size of most goals, so that rewards along a wrong axis are found

ComputeReward = Callable[[Array, Array, Array], Any]


class HindsightError(ValueError):
    """Goals that can't be replaced, or a function of rewards that can't be used."""


@dataclass(frozen=True)
class Hindsight:
    """The goals that drawn rows get in place of their own (arXiv:1707.01495, section 4.5).

    A row keeps its own goal with probability 1 / (goals + 1). Both of its observations get the other goal, and the
    reward is computed anew. Its `discount` stays.

    Attributes:
        strategy: "future": a goal achieved in this step or later in the episode; "final": at the episode's end;
            "episode": anywhere in it. Episodes begin and end with a column.
        goals: other goals for each of the row's own, above 0; SB3's `n_sampled_goal`.
        compute_reward: the function (achieved `[N, ...]`, desired `[N, ...]`, `[N]` empty dicts) -> rewards `[N]`, such
            as `env.unwrapped.compute_reward` of goal environments.

    Raises ValueError for an argument out of range.
    """

    strategy: str
    goals: float = 4.0
    compute_reward: ComputeReward | None = None

    def __post_init__(self) -> None:
        check_choice("hindsight", self.strategy, HINDSIGHT)
        check_number("hindsight_goals", self.goals, above=0)

    def check(self, observation: Structure) -> None:
        """Raise HindsightError for observations without two goals of one kind, and unless a function takes arrays."""
        leaves = {leaf.path: leaf for leaf in observation.leaves}
        achieved, desired = leaves.get((ACHIEVED,)), leaves.get((DESIRED,))
        if achieved is None or desired is None or _KEYS - {path[0] for path in leaves}:
            raise HindsightError(
                "`hindsight` needs observations that are a Dict with 'observation', 'achieved_goal' and "
                f"'desired_goal', both goals single arrays. Received: {observation.space}"
            )
        if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
            raise HindsightError(
                "`hindsight` needs goals of one shape and dtype: an achieved one takes the place of a desired one. "
                f"Received: achieved_goal={achieved.space}, desired_goal={desired.space}"
            )
        if not callable(self.compute_reward):
            raise HindsightError(
                "`compute_reward` must be a function (achieved goals, desired goals, infos) -> rewards, which "
                f"hindsight needs. Received: compute_reward={self.compute_reward!r}"
            )
        goals = np.zeros((_TRIED_ROWS, *achieved.shape), achieved.dtype)
        self.rewards(goals, goals)

    def draw(self, row: Array, first: Array, last: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw which rows get another goal, and the row after which it was achieved: int64 `[m]` each.

        row: `[n]`. first, last: `[n]`, see `episode_rows`.
        """
        changed = np.flatnonzero((rng.random(len(row)) * (self.goals + 1.0) < self.goals) & (last >= row))
        last = last[changed]
        begin = {"future": row, "episode": first}[self.strategy][changed] if self.strategy != "final" else last
        return changed, begin + (rng.random(len(changed)) * (last - begin + 1)).astype(np.int64)

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """Return the rewards of goals `[N, ...]`, float32 `[N]`. Raises HindsightError if the function can't."""
        if not (count := len(achieved)):
            return np.zeros(0, np.float32)
        received = f"Received: compute_reward={self.compute_reward!r}"
        infos = np.repeat(np.array([{}], object), count)
        try:
            reward = np.asarray(self.compute_reward(achieved, desired, infos), np.float32)  # type: ignore[misc]
        except Exception as error:
            text = f"`compute_reward` must take arrays of goals {achieved.shape}, and {count} empty dicts as infos, but"
            raise HindsightError(f"{text} raised {type(error).__name__}: {error}. {received}") from error
        if reward.shape != (count,):
            text = f"`compute_reward` must return {count} rewards for {count} goals, not an array {reward.shape}"
            raise HindsightError(f"{text}. {received}")
        return reward


def with_last_observations(piece: Trajectory, targets: Targets) -> Targets:
    """Return one-step targets that point to the last observations of terminated episodes, too, where they are known."""
    after = successors(piece._replace(truncated=piece.truncated | piece.terminated))
    known = piece.terminated & piece.valid & (after >= 0)
    return targets._replace(bootstrap_row=np.where(known, after, targets.bootstrap_row))


def episode_rows(piece: Trajectory, reached: Array) -> Array:
    """Return the first row of each row's episode, and the last one whose next observation is known: int16 `[T, B, 2]`.

    The last one is -1 where the row's own next observation isn't known.

    reached: bool `[T, B]`, where the next observation is known.
    """
    steps, columns = reached.shape
    ends = piece.terminated | piece.truncated | ~piece.valid
    rows = np.zeros((steps, columns, 2), np.int16)
    first = np.zeros(columns, np.int16)
    for row in range(steps):
        rows[row, :, 0] = first
        first = np.where(ends[row], row + 1, first)
    last = np.full(columns, -1)
    for row in reversed(range(steps)):
        last = np.where(ends[row], -1, last)
        last = np.where(reached[row] & (last < 0), row, last)
        rows[row, :, 1] = np.where(reached[row], last, -1)
    return rows
