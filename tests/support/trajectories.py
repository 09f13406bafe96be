"""Trajectories for tests, as a simulator of the reader's own would write them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actor_learner.spaces import structure as spaces
from actor_learner.spaces.masks import MaskLayout
from actor_learner.spaces.trajectory import Trajectory

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
TWO_ACTIONS = Discrete(2)
TORQUES = Box(-1.0, 1.0, (3,), np.float32)
DIALS = MultiDiscrete([3, 2, 4])
SWITCHES = MultiBinary(3)
HYBRID = Dict({"kind": Discrete(3), "force": TORQUES, "dials": Tuple([DIALS, SWITCHES])})
"""An action space with a leaf of every kind."""
SENSES = Dict(
    {
        "camera": Box(0, 255, (36, 40, 3), np.uint8),
        "pair": Tuple([VECTOR, Discrete(5)]),
        "dials": MultiDiscrete([[2, 3], [4, 5]]),
        "switches": MultiBinary((2, 2)),
    }
)
"""An observation space with a leaf of every kind."""


def random_trajectory(
    action_space=TWO_ACTIONS,
    *,
    steps=16,
    columns=4,
    seed=0,
    end_rate=0.1,
    invalid_rate=0.0,
    observation_space=VECTOR,
    masked=False,
):
    """Random rows; ends are split into terminated and truncated, and invalid rows hold NaN, or masks of nothing."""
    rng = np.random.default_rng(seed)
    shape = (steps, columns)
    valid = rng.random(shape) >= invalid_rate
    ends = rng.random(shape) < end_rate
    ends[:-1] |= ~valid[1:]  # an invalid row only follows an end, or another one
    terminated = ends & (rng.random(shape) < 0.5)
    truncated = ends & ~terminated

    def normal(*size):
        return rng.normal(size=size).astype(np.float32)

    actions = spaces.action_structure(action_space)
    action = [random_leaf(rng, leaf, shape, valid) for leaf in actions.leaves]
    mask = allowing_mask(rng, actions, action, valid) if masked else None
    observations = spaces.observation_structure(observation_space)
    seen = np.concatenate([valid, np.ones((1, columns), bool)])
    observation = [random_leaf(rng, leaf, (steps + 1, columns), seen) for leaf in observations.leaves]
    reward, log_prob = normal(*shape), -np.abs(normal(*shape))
    reward[~valid] = log_prob[~valid] = np.nan
    return Trajectory(
        observation=observations.unflatten(observation),
        action=actions.unflatten(action),
        reward=reward,
        terminated=terminated & valid,
        truncated=truncated & valid,
        valid=valid,
        behaviour_log_prob=log_prob,
        truncation_value=np.where(truncated & valid, normal(*shape), 0).astype(np.float32),
        policy_version=np.zeros(columns, np.int64),
        action_mask=mask,
        env_index=np.arange(columns, dtype=np.int32),
    )


def random_leaf(rng, leaf, rows, valid):
    """`[*rows, *leaf.shape]`; NaN in invalid rows where the dtype has it."""
    shape = (*rows, *leaf.shape)
    if leaf.dtype.kind == "f":
        values = rng.normal(size=shape).astype(leaf.dtype)
        values[~valid] = np.nan
        return values
    highest = {Discrete: lambda s: s.n, MultiDiscrete: lambda s: s.nvec, MultiBinary: lambda s: 2, Box: lambda s: 256}
    return rng.integers(0, highest[type(leaf.space)](leaf.space), shape).astype(leaf.dtype)


def allowing_mask(rng, structure, action, valid):
    """A random mask `[T, B, M]` that allows these actions; nothing in invalid rows."""
    mask = rng.random((*valid.shape, MaskLayout(structure).size)) < 0.6
    start = 0
    for leaf, values in zip(structure.leaves, action, strict=True):
        if not spaces.choices(leaf.space):
            continue
        sizes = [leaf.space.n] if isinstance(leaf.space, Discrete) else leaf.space.nvec.reshape(-1)
        for size, chosen in zip(sizes, np.moveaxis(values.reshape(*valid.shape, -1), -1, 0), strict=True):
            np.put_along_axis(mask, (start + chosen)[..., None].astype(np.int64), True, -1)
            start += int(size)
    return mask & valid[..., None]


def usable_rewards(buffer):
    """The rewards of the rows of a replay buffer that can be drawn."""
    return buffer._stored.reward[buffer._sampler.usable]


def worked_rows(**more):
    """A network's outputs and a minibatch for them, of two rows whose losses are worked by hand."""
    probability, before = np.array([[0.6, 0.1], [0.4, 0.2]], np.float32)
    value, entropy, advantage, returns = np.array([[1, 5], [0.5, 0.7], [2, -1], [2, 2]], np.float32)
    outputs = {"log_prob": np.log(probability), "value": value, "entropy": entropy}
    known = {"behaviour_log_prob": np.log(before), "advantage": advantage, "return": returns}
    return outputs, {**known, "valid": np.array([True, True]), **more}
