"""V-trace against the sum of products that defines it, and at its simpler limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from keras import ops

from actor_learner.algorithms import returns
from tests.algorithms.test_returns import SHAPES, gae_of, values_for
from tests.support.trajectories import random_trajectory

FIELDS = ("reward", "terminated", "truncated", "truncation_value", "valid")


def bootstrap_of(trajectory, value, t, b):
    """Return V(x_{t+1}): 0 after a terminal state, the value of the true last state after a truncation."""
    if trajectory.terminated[t, b]:
        return 0.0
    return trajectory.truncation_value[t, b] if trajectory.truncated[t, b] else value[t + 1, b]


def naive_vtrace(trajectory, value, log_rho, *, gamma, gae_lambda, rho_clip, c_clip, pg_rho_clip):
    """Sum eq. 1 of arXiv:1802.01561 for each row over its episode's later rows; then 4.2's advantage. O(T^2)."""
    steps, columns = trajectory.reward.shape
    rho = np.exp(log_rho.astype(np.float64))
    target = value[:-1].astype(np.float64)
    for b in range(columns):
        for s in range(steps):
            for t in range(s, steps):
                if not trajectory.valid[t, b]:
                    break
                products = np.prod([gae_lambda * min(c_clip, rho[i, b]) for i in range(s, t)])
                error = trajectory.reward[t, b] + gamma * bootstrap_of(trajectory, value, t, b) - value[t, b]
                target[s, b] += gamma ** (t - s) * products * min(rho_clip, rho[t, b]) * error
                if trajectory.terminated[t, b] or trajectory.truncated[t, b]:
                    break
    advantage = np.zeros_like(target)
    for b in range(columns):
        for s in range(steps):
            if not trajectory.valid[s, b]:
                continue
            following = bootstrap_of(trajectory, value, s, b)
            ended = trajectory.terminated[s, b] or trajectory.truncated[s, b]
            if not ended and s + 1 < steps:
                following = gae_lambda * target[s + 1, b] + (1 - gae_lambda) * following
            advantage[s, b] = trajectory.reward[s, b] + gamma * following - value[s, b]
    return target, advantage, np.minimum(pg_rho_clip, rho) * advantage


def vtrace_of(trajectory, value, log_rho, **keywords):
    reward, terminated, truncated, truncation_value, valid = (
        np.nan_to_num(getattr(trajectory, name)) for name in FIELDS
    )
    found = returns.vtrace(reward, value, terminated, truncated, truncation_value, valid, log_rho, **keywords)
    return returns.VTrace(*map(ops.convert_to_numpy, found))


def log_weights(trajectory, seed=2, scale=0.7):
    weights = np.random.default_rng(seed).normal(scale=scale, size=trajectory.reward.shape).astype(np.float32)
    return np.where(trajectory.valid, weights, np.nan)


@settings(max_examples=80, deadline=None)
@given(
    shape=st.fixed_dictionaries(SHAPES),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    clips=st.tuples(*[st.floats(0.1, 1.5)] * 3),
)
def test_vtrace_is_the_papers_sum(shape, gamma, gae_lambda, clips):
    trajectory = random_trajectory(**shape)
    value, log_rho = values_for(trajectory), log_weights(trajectory, shape["seed"])
    keywords = {"gamma": gamma, "gae_lambda": gae_lambda}
    keywords |= dict(zip(("rho_clip", "c_clip", "pg_rho_clip"), clips, strict=True))
    expected = naive_vtrace(trajectory, value, log_rho, **keywords)
    found = vtrace_of(trajectory, value, log_rho, **keywords)
    for name, one, other in zip(found._fields, found, expected, strict=True):
        one, other = (np.where(trajectory.valid, array, 0) for array in (one, other))
        np.testing.assert_allclose(one, other, rtol=5e-4, atol=5e-4, err_msg=name)
    np.testing.assert_array_equal(found.target[~trajectory.valid], value[:-1][~trajectory.valid])
    assert not np.abs(found.policy_gradient_advantage[~trajectory.valid]).any()


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_on_policy_it_is_gae(gae_lambda):
    trajectory = random_trajectory(steps=33, end_rate=0.1, invalid_rate=0.1)
    value = values_for(trajectory)
    advantage = gae_of(trajectory, value, 0.97, gae_lambda)
    found = vtrace_of(trajectory, value, np.zeros_like(value[:-1]), gamma=0.97, gae_lambda=gae_lambda)
    np.testing.assert_allclose(found.advantage, advantage, atol=2e-5)
    np.testing.assert_allclose(found.policy_gradient_advantage, advantage, atol=2e-5)
    np.testing.assert_allclose(found.target, advantage + value[:-1], atol=2e-5)


def test_actions_that_the_target_policy_never_takes_teach_nothing():
    trajectory = random_trajectory()
    value = values_for(trajectory)
    found = vtrace_of(trajectory, value, np.full_like(value[:-1], -1e30), gamma=0.9)
    np.testing.assert_array_equal(found.target, value[:-1])
    assert not found.policy_gradient_advantage.any()


def test_actions_that_it_takes_far_more_often_are_clipped_to_the_on_policy_targets():
    trajectory = random_trajectory()
    value = values_for(trajectory)
    far, on = (vtrace_of(trajectory, value, np.full_like(value[:-1], weight), gamma=0.9) for weight in (200.0, 0.0))
    for one, other in zip(far, on, strict=True):  # e^200 is infinite in float32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_three_rows_by_hand(ending):
    reward = np.array([[1.0], [2.0], [3.0]], np.float32)
    value = np.array([[10.0], [20.0], [30.0], [40.0]], np.float32)
    no, yes, end = np.zeros((3, 1), bool), np.ones((3, 1), bool), np.array([[False], [True], [False]])
    ends = {"terminated": no, "truncated": no, ending: end}
    cut_value = np.array([[0.0], [7.0], [0.0]], np.float32)
    log_rho = np.log(np.array([[0.5], [2.0], [0.25]], np.float32))
    found = returns.vtrace(
        reward, value, ends["terminated"], ends["truncated"], cut_value, yes, log_rho, gamma=0.5, rho_clip=1.5
    )
    # One-step errors 1, -18 or -14.5, -7; times min(rho, 1.5) = 0.5, 1.5, 0.25; c = 0.5 carries row 1 into row 0.
    error = {"terminated": -18.0, "truncated": -14.5}[ending]
    target = [10 + 0.5 * 1 + 0.5 * 0.5 * 1.5 * error, 20 + 1.5 * error, 30 + 0.25 * -7]
    advantage = [1 + 0.5 * target[1] - 10, error, -7]
    np.testing.assert_allclose(ops.convert_to_numpy(found.target)[:, 0], target, rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(found.advantage)[:, 0], advantage, rtol=1e-6)
    weighted = np.array([0.5, 1.0, 0.25]) * advantage
    np.testing.assert_allclose(ops.convert_to_numpy(found.policy_gradient_advantage)[:, 0], weighted, rtol=1e-6)
