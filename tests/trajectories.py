"""Trajectories for tests, as a simulator of the reader's own would write them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from actor_learner.trajectory import Trajectory

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
TWO_ACTIONS = Discrete(2)
TORQUES = Box(-1.0, 1.0, (3,), np.float32)


def random_trajectory(
    action_space=TWO_ACTIONS, *, steps=16, columns=4, seed=0, end_rate=0.1, invalid_rate=0.0, observation_space=VECTOR
):
    """Random rows; ends are split into terminated and truncated, and invalid rows hold NaN."""
    rng = np.random.default_rng(seed)
    shape = (steps, columns)
    valid = rng.random(shape) >= invalid_rate
    ends = rng.random(shape) < end_rate
    ends[:-1] |= ~valid[1:]  # an invalid row only follows an end, or another one
    terminated = ends & (rng.random(shape) < 0.5)
    truncated = ends & ~terminated

    def normal(*size):
        return rng.normal(size=size).astype(np.float32)

    if isinstance(action_space, Discrete):
        action = rng.integers(0, action_space.n, shape).astype(np.int32)
    else:
        action = normal(*shape, *action_space.shape)
        action[~valid] = np.nan
    observation = normal(steps + 1, columns, *observation_space.shape)
    observation[:-1][~valid] = np.nan
    reward, log_prob = normal(*shape), -np.abs(normal(*shape))
    reward[~valid] = log_prob[~valid] = np.nan
    return Trajectory(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated & valid,
        truncated=truncated & valid,
        valid=valid,
        behaviour_log_prob=log_prob,
        truncation_value=np.where(truncated & valid, normal(*shape), 0).astype(np.float32),
        policy_version=np.zeros(columns, np.int64),
        env_index=np.arange(columns, dtype=np.int32),
    )
