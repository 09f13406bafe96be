from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from keras import ops

from actor_learner.learner.rewards import ReturnStatistics, RewardScaling, clip_reward
from tests.support.trajectories import random_trajectory


class ScalarLoop:
    """Reward scaling written as a loop over rows, with the statistics of all returns seen so far."""

    def __init__(self, num_envs, gamma):
        self.gamma, self.seen, self.running = gamma, [], [0.0] * num_envs

    def scale(self, trajectory):
        for t in range(trajectory.reward.shape[0]):
            for b, env in enumerate(trajectory.env_index):
                if trajectory.valid[t, b]:
                    self.running[env] = trajectory.reward[t, b] + self.gamma * self.running[env]
                    self.seen.append(self.running[env])
                    if trajectory.terminated[t, b] or trajectory.truncated[t, b]:
                        self.running[env] = 0.0
        return np.clip(trajectory.reward / np.sqrt(np.var(self.seen) + 1e-8), -10, 10)


@pytest.mark.parametrize("invalid_rate", [0.0, 0.2])
def test_scaling_equals_a_scalar_loop_over_several_batches(invalid_rate):
    loop, scaling = ScalarLoop(4, 0.9), RewardScaling(4, 0.9)
    for seed in range(3):
        trajectory = random_trajectory(seed=seed, end_rate=0.2, invalid_rate=invalid_rate)
        trajectory = trajectory._replace(
            reward=np.nan_to_num(trajectory.reward) * 5,
            env_index=np.roll(np.arange(4, dtype=np.int32), seed),  # columns may change their environment
        )
        found = scaling.scale(
            trajectory.reward, trajectory.terminated | trajectory.truncated, trajectory.valid, trajectory.env_index
        )
        valid = trajectory.valid
        expected = loop.scale(trajectory)
        np.testing.assert_allclose(ops.convert_to_numpy(found)[valid], expected[valid], rtol=1e-4)


def test_scaling_starts_from_the_statistics_of_another_with_returns_at_0():
    loop, first = ScalarLoop(4, 0.9), RewardScaling(4, 0.9)
    batches = [random_trajectory(seed=seed, end_rate=0.05) for seed in range(2)]

    def scaled(scaling, batch):
        ended = batch.terminated | batch.truncated
        return ops.convert_to_numpy(scaling.scale(batch.reward, ended, batch.valid, batch.env_index))

    np.testing.assert_allclose(scaled(first, batches[0]), loop.scale(batches[0]), rtol=1e-4)
    second = RewardScaling(4, 0.9, ReturnStatistics(float(first.mean), float(first.variance), float(first.count)))
    loop.running = [0.0] * 4
    np.testing.assert_allclose(scaled(second, batches[1]), loop.scale(batches[1]), rtol=1e-4)


def test_an_environment_that_stands_in_a_batch_twice_starts_at_0():
    """Its two columns start at 0, and so does its next column; the other environment continues its return."""
    scaling = RewardScaling(3, 0.5)
    rows = np.ones((2, 3), np.float32)
    no = np.zeros((2, 3), bool)
    scaling.scale(rows, no, ~no, np.arange(3, dtype=np.int32))
    np.testing.assert_array_equal(ops.convert_to_numpy(scaling.discounted_return), [1.5, 1.5, 1.5])
    scaling.scale(rows * np.array([1, 2, 3], np.float32), no, ~no, np.array([2, 0, 2], np.int32))
    np.testing.assert_array_equal(ops.convert_to_numpy(scaling.discounted_return), [3.375, 1.5, 0.0])
    # Returns of the six rows before, then of 1 and 3 from 0, and of 2 from 1.5.
    seen = [1.0] * 3 + [1.5] * 3 + [1.0, 1.5, 3.0, 4.5, 2.75, 3.375]
    assert float(ops.convert_to_numpy(scaling.variance)) == pytest.approx(np.var(seen), rel=1e-5)
    scaling.scale(rows, no, ~no, np.arange(3, dtype=np.int32))
    expected = [1 + 0.5 * (1 + 0.5 * 3.375), 1 + 0.5 * (1 + 0.5 * 1.5), 1.5]
    np.testing.assert_array_equal(ops.convert_to_numpy(scaling.discounted_return), expected)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(env_index=st.lists(st.integers(0, 4), min_size=4, max_size=4), seed=st.integers(0, 9))
def test_the_order_of_columns_changes_no_statistics(env_index, seed):
    trajectory = random_trajectory(seed=seed, end_rate=0.2)
    ended, index = trajectory.terminated | trajectory.truncated, np.array(env_index, np.int32)
    found = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        scaling = RewardScaling(5, 0.9)
        scaling.discounted_return.assign(np.arange(5.0))
        scaling.scale(trajectory.reward[:, order], ended[:, order], trajectory.valid[:, order], index[order])
        found.append([ops.convert_to_numpy(variable) for variable in scaling.variables])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_empty_batch_changes_no_statistics():
    scaling = RewardScaling(2, 0.9)
    rows = np.ones((3, 2), np.float32)
    no, index = np.zeros((3, 2), bool), np.arange(2)
    scaling.scale(rows, no, ~no, index)
    before = [ops.convert_to_numpy(variable).copy() for variable in scaling.variables]
    scaling.scale(rows, no, no, index)
    for variable, value in zip(scaling.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


def test_scaled_rewards_are_clipped():
    scaling = RewardScaling(1, 0.0)
    reward = np.zeros((1000, 1), np.float32)
    reward[0] = 1000.0
    no = np.zeros((1000, 1), bool)
    assert float(np.max(ops.convert_to_numpy(scaling.scale(reward, no, ~no, np.arange(1))))) == 10.0


def test_clip_reward():
    reward = np.array([-3.0, 0.0, 0.5], np.float32)
    np.testing.assert_array_equal(clip_reward(reward, None), reward)
    np.testing.assert_array_equal(clip_reward(reward, "sign"), [-1, 0, 1])
    np.testing.assert_array_equal(clip_reward(reward, 2.0), [-2, 0, 0.5])
