from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from actor_learner.distributions import Categorical, Gaussian, distribution_for


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 9), rows=st.integers(1, 5), scale=st.floats(0.1, 20), seed=st.integers(0, 2**16))
def test_categorical_equals_scipy(n, rows, scale, seed):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, n))).astype(np.float32)
    action = rng.integers(0, n, rows).astype(np.int32)
    probability = scipy.special.softmax(logits.astype(np.float64), axis=-1)
    log_prob = scipy.special.log_softmax(logits.astype(np.float64), axis=-1)[np.arange(rows), action]
    entropy = [scipy.stats.entropy(p) for p in probability]
    np.testing.assert_allclose(numpy(Categorical(n).log_prob(logits, action)), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(numpy(Categorical(n).entropy(logits)), entropy, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(shape=st.sampled_from([(1,), (3,), (2, 2), ()]), rows=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_gaussian_equals_scipy(shape, rows, seed):
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    mean, log_std = rng.normal(size=(2, rows, size)).astype(np.float32)
    parameters = np.concatenate([mean, log_std], axis=-1)
    action = rng.normal(size=(rows, *shape)).astype(np.float32)
    normal = scipy.stats.norm(mean, np.exp(log_std))
    gaussian = Gaussian(shape)
    expected = normal.logpdf(action.reshape(rows, size)).sum(-1)
    np.testing.assert_allclose(numpy(gaussian.log_prob(parameters, action)), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(numpy(gaussian.entropy(parameters)), normal.entropy().sum(-1), rtol=1e-5, atol=1e-5)


def test_categorical_samples_follow_the_probabilities():
    rng = np.random.default_rng(0)
    logits = np.log(np.array([0.5, 0.2, 0.3], np.float32))
    noise = (1 - rng.random(60_000)).astype(np.float32)
    samples = numpy(Categorical(3).sample(np.tile(logits, (60_000, 1)), noise))
    counts = np.bincount(samples, minlength=3)
    assert scipy.stats.chisquare(counts, 60_000 * np.array([0.5, 0.2, 0.3])).pvalue > 1e-3


@pytest.mark.parametrize("noise", [2.0**-32, 2.0**-24, 0.5, 1 - 2.0**-24, 1.0])
@pytest.mark.parametrize("forbidden", [0, 1, 3, 4])
def test_an_impossible_action_is_never_sampled(noise, forbidden):
    logits = np.random.default_rng(forbidden).normal(size=(64, 5)).astype(np.float32)
    for value in (-np.inf, -1e9):
        logits[:, forbidden] = value
        samples = numpy(Categorical(5).sample(logits, np.full(64, noise, np.float32)))
        assert forbidden not in samples
        assert samples.min() >= 0
        assert samples.max() <= 4


def test_an_impossible_action_makes_neither_nan_log_prob_nor_nan_entropy():
    logits = np.array([[0.0, -np.inf, 0.0]], np.float32)
    assert numpy(Categorical(3).log_prob(logits, np.array([2])))[0] == pytest.approx(np.log(0.5))
    assert numpy(Categorical(3).entropy(logits))[0] == pytest.approx(np.log(2))


def test_the_mode_is_the_first_highest_logit():
    logits = np.array([[0.0, 3.0, 3.0], [-1.0, -2.0, -3.0], [-0.0, 0.0, -1.0], [1, 2, 3]], np.float32)
    np.testing.assert_array_equal(numpy(Categorical(3).mode(logits)), [1, 0, 0, 2])


def test_gaussian_sample_is_mean_plus_std_times_noise():
    parameters = np.array([[1.0, 2.0, 0.0, np.log(3.0)]], np.float32)
    noise = np.array([[0.5, -1.0]], np.float32)
    np.testing.assert_allclose(numpy(Gaussian((2,)).sample(parameters, noise)), [[1.5, -1.0]], rtol=1e-6)
    np.testing.assert_array_equal(numpy(Gaussian((2,)).mode(parameters)), [[1.0, 2.0]])


def test_distribution_by_space():
    assert distribution_for(Discrete(3, start=5)) == Categorical(3)
    assert distribution_for(Box(-1, 1, (2, 3))) == Gaussian((2, 3))
    assert Gaussian((2, 3)).noise == ("normal", (2, 3))
    with pytest.raises(ValueError, match="Received: distribution='beta'"):
        distribution_for(Discrete(3), "beta")
