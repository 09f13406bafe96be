"""Random batches, for learners that are measured alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

import actor_learner as al


def random_batch(
    observation_space: Any, action_space: Any, steps: int, columns: int, seed: int = 0, state: Any = None
) -> al.Trajectory:
    """Return random rows of these spaces; one episode in a hundred steps ends.

    state: The first state of each column, for networks with memory.
    """
    rng, rows = np.random.default_rng(seed), (steps, columns)
    ends = rng.random(rows) < 0.01
    return al.Trajectory(
        observation=random_observations(observation_space, (steps + 1, columns), rng),
        action=_random_actions(action_space, rows, rng),
        reward=rng.normal(size=rows).astype(np.float32),
        terminated=ends,
        truncated=np.zeros(rows, bool),
        valid=np.ones(rows, bool),
        behaviour_log_prob=np.full(rows, -1.0, np.float32),
        truncation_value=np.zeros(rows, np.float32),
        policy_version=np.zeros(columns, np.int64),
        env_index=np.arange(columns, dtype=np.int32),
        start=np.concatenate([np.ones((1, columns), bool), ends]) if state else None,
        initial_state=state or None,
    )


def random_observations(space: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Return random observations `[*shape, *space.shape]`: bytes, or normal numbers."""
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (*shape, *space.shape), np.uint8)
    return rng.normal(size=(*shape, *space.shape)).astype(space.dtype)


def _random_actions(space: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if isinstance(space, Discrete):
        return rng.integers(0, int(space.n), shape)
    return rng.uniform(-1, 1, (*shape, *space.shape)).astype(space.dtype)
