from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from keras import ops

from actor_learner.algorithms import returns
from tests.support.trajectories import random_trajectory


def naive_gae(reward, value, terminated, truncated, truncation_value, valid, gamma, gae_lambda):
    """Sum, for each row, over the later rows of its episode, as the definition does. O(T^2)."""
    steps, columns = reward.shape
    advantage = np.zeros((steps, columns))
    for b in range(columns):
        for t in range(steps):
            if not valid[t, b]:
                continue
            weight = 1.0
            for k in range(t, steps):
                if not valid[k, b]:
                    break
                if terminated[k, b]:
                    following = 0.0
                elif truncated[k, b]:
                    following = truncation_value[k, b]
                else:
                    following = value[k + 1, b]
                advantage[t, b] += weight * (reward[k, b] + gamma * following - value[k, b])
                if terminated[k, b] or truncated[k, b]:
                    break
                weight *= gamma * gae_lambda
    return advantage


def gae_of(trajectory, value, gamma, gae_lambda):
    clean = [np.nan_to_num(field) for field in (trajectory.reward, trajectory.truncation_value)]
    return ops.convert_to_numpy(
        returns.gae(
            clean[0],
            value,
            trajectory.terminated,
            trajectory.truncated,
            clean[1],
            trajectory.valid,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
    )


def values_for(trajectory, seed=1):
    steps, columns = trajectory.reward.shape
    return np.random.default_rng(seed).normal(size=(steps + 1, columns)).astype(np.float32)


RATES = {"end_rate": st.sampled_from([0.0, 0.1, 0.5]), "invalid_rate": st.sampled_from([0.0, 0.2, 1.0])}
SHAPES = {"steps": st.integers(1, 40), "columns": st.integers(1, 4), "seed": st.integers(0, 2**16), **RATES}


@settings(max_examples=60, deadline=None)
@given(shape=st.fixed_dictionaries(SHAPES), gamma=st.floats(0, 1), gae_lambda=st.floats(0, 1))
def test_gae_equals_the_naive_sum(shape, gamma, gae_lambda):
    trajectory = random_trajectory(**shape)
    value = values_for(trajectory)
    expected = naive_gae(
        trajectory.reward,
        value,
        trajectory.terminated,
        trajectory.truncated,
        trajectory.truncation_value,
        trajectory.valid,
        gamma,
        gae_lambda,
    )
    np.testing.assert_allclose(gae_of(trajectory, value, gamma, gae_lambda), expected, rtol=2e-4, atol=2e-4)


def test_three_rows_by_hand():
    reward = np.array([[1.0], [2.0], [3.0]], np.float32)
    value = np.array([[10.0], [20.0], [30.0], [40.0]], np.float32)
    no, yes = np.zeros((3, 1), bool), np.ones((3, 1), bool)
    end = np.array([[False], [True], [False]])
    cut_value = np.array([[0.0], [7.0], [0.0]], np.float32)
    keywords = {"gamma": 0.5, "gae_lambda": 0.5}
    terminated = ops.convert_to_numpy(returns.gae(reward, value, end, no, cut_value, yes, **keywords))
    truncated = ops.convert_to_numpy(returns.gae(reward, value, no, end, cut_value, yes, **keywords))
    # Deltas: 1 + 0.5 x 20 - 10 = 1; 2 - 20 = -18 (terminated) or 2 + 0.5 x 7 - 20 = -14.5; 3 + 0.5 x 40 - 30 = -7.
    np.testing.assert_allclose(terminated[:, 0], [1 + 0.25 * -18, -18, -7])
    np.testing.assert_allclose(truncated[:, 0], [1 + 0.25 * -14.5, -14.5, -7])


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 33])
def test_sums_equal_a_scalar_loop(steps):
    rng = np.random.default_rng(steps)
    term, decay = rng.normal(size=(2, steps, 3)).astype(np.float32)
    expected, running = np.zeros_like(term), np.zeros(3, np.float32)
    for t in range(steps):
        running = term[t] + decay[t] * running
        expected[t] = running
    found = ops.convert_to_numpy(returns.forward_sum(term, decay))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    backward = ops.convert_to_numpy(returns.backward_sum(term[::-1].copy(), decay[::-1].copy()))
    np.testing.assert_array_equal(backward[::-1], found)


def test_means_are_over_valid_rows():
    values = np.array([1.0, 2.0, 100.0], np.float32)
    valid = np.array([True, True, False])
    assert float(returns.mean_valid(values, valid)) == 1.5
    assert float(returns.mean_valid(values, np.zeros(3, bool))) == 0.0


def test_normalization_is_that_of_the_valid_rows():
    values = np.array([1.0, 2.0, 6.0, 1e6], np.float32)
    valid = np.array([True, True, True, False])
    found = ops.convert_to_numpy(returns.normalize_valid(values, valid))
    rows = values[:3]
    np.testing.assert_allclose(found[:3], (rows - rows.mean()) / (rows.std(ddof=1) + 1e-8), rtol=1e-5)
    assert found[3] == 0.0


def test_a_single_valid_row_is_not_normalized():
    values = np.array([3.0, 7.0], np.float32)
    found = ops.convert_to_numpy(returns.normalize_valid(values, np.array([True, False])))
    assert found[0] == 3.0


def test_explained_variance():
    target = np.array([1.0, 2.0, 3.0, 50.0], np.float32)
    valid = np.array([True, True, True, False])
    assert float(returns.explained_variance(target, target, valid)) == 1.0
    mean = np.full(4, 2.0, np.float32)
    assert float(returns.explained_variance(mean, target, valid)) == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(float(returns.explained_variance(target, mean, valid)))


def test_a_shape_that_only_the_graph_knows_is_not_refused():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    specs = [tf.TensorSpec(shape, "float32") for shape in (None, [None])]
    if keras.backend.backend() == "tensorflow":
        assert float(tf.function(returns.mean_valid, specs)(tf.constant([1.0, 3.0]), tf.ones(2))) == 2.0
        specs[0] = tf.TensorSpec([None, 1], "float32")
        with pytest.raises(ValueError, match=r"shape of `valid`, \[None\]. Received: values=\[None, 1\]"):
            tf.function(returns.mean_valid, specs).get_concrete_function()
