"""The n-step returns of a batch's rows, and the rows that they are bootstrapped from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.types import Array


class Targets(NamedTuple):
    """What a value is learned from: `reward + discount * value of the observation in bootstrap_row`. `[T, B]` each."""

    reward: Array
    """float32: the sum of the window's rewards, discounted."""
    discount: Array
    """float32: `gamma` to the power of the window's rows; 0 where it ends in a terminal state."""
    bootstrap_row: Array
    """int64: the row of the column that holds the observation after the window."""
    known: Array
    """bool: False for rows that only reset, and where the observation after the window isn't in the batch."""


def successors(trajectory: Trajectory) -> Array:
    """Return the row that holds the observation after each row, int64 `[T, B]`; -1 where the batch doesn't hold it.

    It is the next row's, but after the last step of a truncated episode, whose successor may be the first observation
    of another one. Then it is `T + 1`, which stands for `final_observation`; or still the next row, if no episode
    starts there (`start`).
    """
    truncated, final_row = trajectory.truncated, trajectory.final_row
    steps = len(truncated)
    rows = np.arange(steps)[:, None]
    known = ~truncated if trajectory.start is None else ~(truncated & trajectory.start[1:])
    found = np.where(known, rows + 1, -1)
    return found if final_row is None else np.where(truncated & (rows == final_row), steps + 1, found)


def n_step_targets(reward: Array, trajectory: Trajectory, successor: Array, *, gamma: float, n_step: int) -> Targets:
    """Return the targets of each row's window: up to `n_step` rows, to the end of its episode or of its column.

    Args:
        reward: `[T, B]`, as it is to be learned.
        trajectory: the ends of episodes.
        successor: see `successors`.
        gamma: the discount of one step.
        n_step: the most rows of a window (Sutton and Barto, eq. 7.1).
    """
    steps = len(reward)
    ended = trajectory.terminated | trajectory.truncated
    total, length = np.zeros(reward.shape, np.float32), np.zeros(reward.shape, np.int64)
    grows = trajectory.valid.copy()
    weight = 1.0
    for ahead in range(min(n_step, steps)):
        grows[steps - ahead :] = False
        now = grows[: steps - ahead]
        now &= trajectory.valid[ahead:]
        total[: steps - ahead] += np.where(now, np.float32(weight) * reward[ahead:], np.float32(0))
        length[: steps - ahead] += now
        now &= ~ended[ahead:]
        weight *= gamma
    last = np.arange(steps)[:, None] + np.maximum(length - 1, 0)
    terminal, after = (np.take_along_axis(values, last, axis=0) for values in (trajectory.terminated, successor))
    discount = np.where(terminal, 0.0, np.power(gamma, length)).astype(np.float32)
    known = trajectory.valid & (terminal | (after >= 0))
    return Targets(total, discount, np.where(known & ~terminal, after, last), known)
