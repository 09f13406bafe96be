"""The environments that are shipped with the project."""

from __future__ import annotations

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from actor_learner_envs import catch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from actor_learner.environments import Environments, resolve_env

CATCH = "actor_learner/Catch-v0"


def ball_and_paddle(image):
    """Columns of ball and paddle in an image; the ball hides the paddle where it is caught."""
    board = image[:: catch.CELL, :: catch.CELL, 0]
    (ball,) = np.argwhere(board == catch.BALL)
    paddle = np.flatnonzero(board[-1] == catch.PADDLE)
    return ball, int(paddle[0]) if len(paddle) else int(ball[1])


def follow(images):
    """The best action, by eye."""
    seen = [ball_and_paddle(image) for image in images]
    return np.array([1 + np.sign(ball[1] - paddle) for ball, paddle in seen])


def test_registered_with_string_entry_points():
    resolve_env(CATCH)
    spec = gym.spec(CATCH)
    assert (spec.entry_point, spec.namespace) == ("actor_learner_envs.catch:CatchEnv", "actor_learner")


def test_check_env():
    resolve_env(CATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(CATCH, render_mode="rgb_array").unwrapped)


def test_image():
    env = catch.CatchEnv()
    image, _ = env.reset(seed=0)
    assert (image.shape, image.dtype) == ((84, 84, 1), np.uint8)
    assert env.observation_space.contains(image)
    ball, paddle = ball_and_paddle(image)
    assert ball[0] == 0
    assert paddle == catch.COLUMNS // 2
    assert (image == catch.BALL).sum() == (image == catch.PADDLE).sum() == catch.CELL**2


def test_paddle_moves_and_stops_at_the_walls():
    env = catch.CatchEnv()
    env.reset(seed=0)
    paddles = [ball_and_paddle(env.step(np.int64(0))[0])[1] for _ in range(8)]
    assert paddles == [5, 4, 3, 2, 1, 0, 0, 0]
    env.reset()
    paddles = [ball_and_paddle(env.step(np.int64(2))[0])[1] for _ in range(8)]
    assert paddles == [7, 8, 9, 10, 11, 11, 11, 11]


@pytest.mark.parametrize("caught", [True, False])
def test_reward_comes_with_the_end(caught):
    env = catch.CatchEnv()
    for seed in range(20):
        image, _ = env.reset(seed=seed)
        (_, column), _ = ball_and_paddle(image)
        steps = []
        while not (steps and steps[-1][2]):
            away = 0 if column >= catch.COLUMNS // 2 else 2
            steps.append(env.step(follow([image])[0] if caught else np.int64(away)))
            image = steps[-1][0]
        rewards = [step[1] for step in steps]
        assert rewards == [0.0] * (catch.ROWS - 2) + [1.0 if caught else -1.0]
        assert not any(step[3] for step in steps)
        assert steps[-1][4] == {"is_success": caught}


def test_render():
    env = catch.CatchEnv(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (84, 84, 3)
    assert catch.CatchEnv().render() is None


def test_vector_and_single_environments_play_the_same_game():
    """Ball columns differ, because seeds enter differently; so the single ones get the vector's columns."""
    vector_env = catch.CatchVectorEnv(5)
    images, _ = vector_env.reset(seed=1)
    singles = [catch.CatchEnv() for _ in range(5)]
    for single, column in zip(singles, vector_env._ball_column, strict=True):
        single.reset()
        single._ball_column = int(column)
    generator = np.random.default_rng(0)
    for _ in range(catch.ROWS - 1):
        actions = generator.integers(3, size=5)
        images, rewards, terminated, truncated, infos = vector_env.step(actions)
        for index, single in enumerate(singles):
            image, *rest, info = single.step(actions[index])
            np.testing.assert_array_equal(images[index], image)
            assert rest == [rewards[index], terminated[index], truncated[index]]
            assert info.get("is_success") == (infos["is_success"][index] if terminated[index] else None)
    assert terminated.all()
    assert len(set(vector_env._ball_column.tolist())) > 1


def test_native_environment_resets_ended_games_only():
    vector_env = catch.CatchVectorEnv(3)
    vector_env.reset(seed=0)
    vector_env.step(np.array([0, 1, 2]))
    before = vector_env.step(np.array([0, 1, 2]))[0]
    after, _ = vector_env.reset(options={"reset_mask": np.array([False, True, False])})
    np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])
    assert ball_and_paddle(after[1])[0][0] == 0


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_whole_way_with_perfect_play(vectorization):
    factory = pickle.loads(resolve_env(CATCH, vectorization=vectorization).dumps())
    environments = Environments(factory.make(4))
    assert environments.autoreset_mode is AutoresetMode.DISABLED
    observation = environments.reset(0)
    episodes = []
    for _ in range(33):
        transition = environments.step(follow(observation))
        observation = transition.observation
        if transition.episodes is not None:
            episodes.append(transition.episodes)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.returns.tolist() == [1.0] * 4
        assert episode.lengths.tolist() == [11.0] * 4
        assert episode.info["is_success"].tolist() == [1.0] * 4
