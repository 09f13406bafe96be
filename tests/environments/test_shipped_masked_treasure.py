"""MaskedTreasure-v0: the environment that needs its action masks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from actor_learner_envs.masked_treasure import STEP_COST, MaskedTreasureEnv, distances
from hypothesis import given, settings, strategies as st

ID = "actor_learner/MaskedTreasure-v0"


def squares_of(observation):
    """The player's square and the treasure's."""
    player, treasure = observation.reshape(2, -1)
    assert player.sum() == treasure.sum() == 1
    return int(player.argmax()), int(treasure.argmax())


def neighbours(square, size):
    """By walking, not by distance."""
    row, column = divmod(square, size)
    steps = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return {r * size + c for r, c in steps if 0 <= r < size and 0 <= c < size}


def play(env, policy, seed=None):
    """An episode's return, length and last step."""
    observation, info = env.reset(seed=seed)
    total, length = 0.0, 0
    while True:
        step = env.step(policy(observation, info))
        observation, reward, terminated, truncated, info = step
        total, length = total + reward, length + 1
        if terminated or truncated:
            return total, length, step


def nearest(observation, info):
    """The best action."""
    _, treasure = squares_of(observation)
    legal = np.flatnonzero(info["action_mask"])
    return int(legal[distances(8)[treasure, legal].argmin()])


@settings(max_examples=40)
@given(size=st.integers(2, 6), data=st.data())
def test_only_neighbours_are_legal_and_nothing_else_moves(size, data):
    env = MaskedTreasureEnv(size)
    observation, info = env.reset(seed=data.draw(st.integers(0, 1000)))
    for _ in range(5):
        player, treasure = squares_of(observation)
        assert set(np.flatnonzero(info["action_mask"])) == neighbours(player, size)
        action = data.draw(st.integers(0, size**2 - 1))
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        after = action if action in neighbours(player, size) else player
        assert squares_of(observation) == (after, treasure)
        assert info["is_success"] is terminated is (after == treasure)
        assert reward == (1.0 if terminated else -STEP_COST)
        assert not truncated
        if terminated:
            return


def test_start():
    """The treasure is in each of the corners, the player anywhere else."""
    env = MaskedTreasureEnv(3)
    env.reset(seed=0)
    starts = {squares_of(env.reset()[0]) for _ in range(500)}
    assert starts == {(player, treasure) for treasure in (0, 2, 6, 8) for player in range(9) if player != treasure}


def test_best_return_is_the_documented_one():
    env = gym.make(ID)
    for seed in range(20):
        player, treasure = squares_of(env.reset(seed=seed)[0])
        total, length, (*_, info) = play(env, nearest, seed=seed)
        assert length == distances(8)[player, treasure]
        assert total == pytest.approx(1 - STEP_COST * (length - 1))
        assert info["is_success"]
    to_corner = distances(8)[0, 1:]
    assert 1 - STEP_COST * (to_corner.mean() - 1) == pytest.approx(0.878, abs=5e-4)
    assert gym.spec(ID).reward_threshold < 0.878


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), actions=st.lists(st.integers(0, 63), max_size=10))
def test_masks_are_the_same_wherever_they_are_found(seed, actions):
    envs = {mask_in: MaskedTreasureEnv(mask_in=mask_in) for mask_in in ("info", "observation", None)}
    seen = {mask_in: env.reset(seed=seed) for mask_in, env in envs.items()}
    for action in [None, *actions]:
        if action is not None:
            steps = {mask_in: env.step(np.int64(action)) for mask_in, env in envs.items()}
            seen = {mask_in: (step[0], step[4]) for mask_in, step in steps.items()}
        board, info = seen["info"]
        nested, nested_info = seen["observation"]
        np.testing.assert_array_equal(nested["action_mask"], info["action_mask"])
        np.testing.assert_array_equal(nested["observation"], board)
        np.testing.assert_array_equal(seen[None][0], board)
        assert "action_mask" not in nested_info
        assert "action_mask" not in seen[None][1]
        assert envs["observation"].observation_space.contains(nested)


@pytest.mark.parametrize(
    ("kwargs", "received"), [({"size": 1}, "size=1"), ({"mask_in": "observations"}, "mask_in='observations'")]
)
def test_refused_arguments(kwargs, received):
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        MaskedTreasureEnv(**kwargs)
