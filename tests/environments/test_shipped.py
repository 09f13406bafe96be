"""What all environments that are shipped have in common, and Catch."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings

import actor_learner_envs
import gymnasium as gym
import numpy as np
import pytest
from actor_learner_envs import catch, latency
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from actor_learner.environments.factory import resolve_env

CATCH = "actor_learner/Catch-v0"
IDS = sorted(spec.id for spec in gym.registry.values() if spec.namespace == "actor_learner")
OWN = [  # CartPole and the like are Gymnasium's where they are single
    (CATCH, {"render_mode": "rgb_array"}),
    ("actor_learner/MaskedTreasure-v0", {"render_mode": "rgb_array"}),
    ("actor_learner/MaskedTreasure-v0", {"render_mode": "rgb_array", "mask_in": "observation"}),
    ("actor_learner/MaskedTreasure-v0", {"render_mode": "rgb_array", "mask_in": None}),
    ("actor_learner/Memory-v0", {}),
    ("actor_learner/BitFlipping-v0", {}),
    ("actor_learner/PointReach-v0", {}),
    ("actor_learner/Latency-v0", {"step_time": 0.0}),
]
NATIVE = [env_id for env_id in IDS if gym.spec(env_id).vector_entry_point is not None]


@pytest.fixture
def quick(monkeypatch):
    """Latency-v0 without its waiting."""
    monkeypatch.setattr(latency.time, "sleep", lambda seconds: None)


def test_the_documented_ids_are_those_that_are_registered():
    assert sorted(set(re.findall(r"`(actor_learner/[\w-]+)`", actor_learner_envs.__doc__))) == IDS
    assert all(isinstance(gym.spec(env_id).entry_point, str) for env_id in IDS)


@pytest.mark.slow
def test_registration_imports_no_environment():
    script = "import sys, actor_learner_envs; print([m for m in sys.modules if m.startswith('actor_learner_envs.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("env_id", "kwargs"), OWN)
def test_check_env(env_id, kwargs, quick):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, **kwargs).unwrapped)


@pytest.mark.parametrize("env_id", NATIVE)
def test_vector_and_single_environments_have_the_same_spaces(env_id):
    vector_env = gym.make_vec(env_id, num_envs=3)
    single = gym.make(env_id)
    assert vector_env.single_observation_space == single.observation_space
    assert vector_env.single_action_space == single.action_space
    assert vector_env.observation_space.shape == (3, *single.observation_space.shape)
    assert type(vector_env).metadata["autoreset_mode"] is AutoresetMode.DISABLED


@pytest.mark.parametrize("env_id", NATIVE)
def test_masked_reset_leaves_the_others_alone(env_id, quick):
    vector_env = resolve_env(env_id).make(4)
    vector_env.reset(seed=0)
    vector_env.action_space.seed(0)
    mask = np.array([True, False, True, False])
    for _ in range(3):
        before = vector_env.step(vector_env.action_space.sample())[0].copy()
    after, _ = vector_env.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(after[~mask], before[~mask])
    assert all((after[row] != before[row]).any() for row in np.flatnonzero(mask))


@pytest.mark.parametrize("env_id", NATIVE)
def test_seeds_repeat(env_id, quick):
    def play(seed):
        vector_env = resolve_env(env_id).make(4)
        vector_env.action_space.seed(0)
        observations = [vector_env.reset(seed=seed)[0].copy()]
        observations += [vector_env.step(vector_env.action_space.sample())[0].copy() for _ in range(5)]
        return np.stack(observations)

    np.testing.assert_array_equal(play(1), play(1))
    assert (play(1) != play(2)).any()


def ball_and_paddle(image):
    """Columns of ball and paddle in an image; the ball hides the paddle where it is caught."""
    board = image[:: catch.CELL, :: catch.CELL, 0]
    (ball,) = np.argwhere(board == catch.BALL)
    paddle = np.flatnonzero(board[-1] == catch.PADDLE)
    return ball, int(paddle[0]) if len(paddle) else int(ball[1])


@pytest.mark.parametrize("caught", [True, False])
def test_reward_comes_with_the_end(caught):
    env = catch.CatchEnv()
    for seed in range(20):
        image, _ = env.reset(seed=seed)
        (_, column), _ = ball_and_paddle(image)
        steps = []
        while not (steps and steps[-1][2]):
            away = 0 if column >= catch.COLUMNS // 2 else 2
            ball, paddle = ball_and_paddle(image)
            steps.append(env.step(1 + np.sign(ball[1] - paddle) if caught else np.int64(away)))  # the best action
            image = steps[-1][0]
        rewards = [step[1] for step in steps]
        assert rewards == [0.0] * (catch.ROWS - 2) + [1.0 if caught else -1.0]
        assert not any(step[3] for step in steps)
        assert steps[-1][4] == {"is_success": caught}


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
