"""BitFlipping-v0 and PointReach-v0: rewards are those of goals, and can be computed for others."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from actor_learner_envs.goals import BitFlippingEnv, PointReachEnv

IDS = ["actor_learner/BitFlipping-v0", "actor_learner/PointReach-v0"]


@pytest.mark.parametrize("env_id", IDS)
def test_rewards_are_those_that_are_computed_for_many_goals_at_once(env_id):
    env = gym.make(env_id)
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    achieved, desired, rewards, ended = [], [], [], False
    while not ended:
        observation, reward, terminated, ended, info = env.step(env.action_space.sample())
        assert not terminated
        assert info["is_success"] == (reward == 0 or (env_id == IDS[0] and 0 in rewards))
        for goals, name in ((achieved, "achieved_goal"), (desired, "desired_goal")):
            goals.append(observation[name])
        rewards.append(reward)
    function = env.unwrapped.compute_reward
    infos = np.array([{}] * len(rewards))
    np.testing.assert_array_equal(function(np.stack(achieved), np.stack(desired), infos), rewards)
    np.testing.assert_array_equal(function(np.stack(achieved), np.stack(achieved), infos), 0)
    assert min(rewards) == -1


@pytest.mark.parametrize("stops", [False, True])
def test_flipping_the_wrong_bits_achieves_the_goal(stops):
    env = BitFlippingEnv(bits=6, stop_at_success=stops)
    observation, _ = env.reset(seed=1)
    wrong = np.flatnonzero(observation["achieved_goal"] != observation["desired_goal"])
    steps = [env.step(bit) for bit in wrong]
    assert [reward for _, reward, *_ in steps] == [-1.0] * (len(wrong) - 1) + [0.0]
    assert [terminated for _, _, terminated, *_ in steps] == [False] * (len(wrong) - 1) + [stops]
    assert [info["is_success"] for *_, info in steps] == [False] * (len(wrong) - 1) + [True]
    assert env.step(0)[-1]["is_success"]  # in this episode
    assert (steps[0][0]["achieved_goal"] != steps[-1][0]["achieved_goal"]).any()  # not one array that changes


def test_a_point_moves_and_stays_in_its_square():
    env = PointReachEnv()
    start, _ = env.reset(seed=0)
    moved = env.step(np.array([0.5, -7.0], np.float32))[0]
    np.testing.assert_allclose(moved["achieved_goal"], np.clip(start["achieved_goal"] + [0.1, -0.2], -1, 1), rtol=1e-5)
    for _ in range(12):
        moved = env.step(np.ones(2, np.float32))[0]
    np.testing.assert_array_equal(moved["achieved_goal"], 1.0)


def test_bad_arguments():
    for make in (BitFlippingEnv, PointReachEnv):
        with pytest.raises(ValueError, match=r"`render_mode` must be None.*Received: render_mode='human'"):
            make(render_mode="human")
    with pytest.raises(ValueError, match="`bits` must be at least 1. Received: bits=0"):
        BitFlippingEnv(bits=0)
