"""Distributions over Box leaves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf
from hypothesis import given, settings, strategies as st
from keras import ops

from actor_learner.networks.distribution_parts import Gaussian, SquashedGaussian
from tests.support.litert import run_litert

seeds = st.integers(0, 2**16)


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


@settings(max_examples=25, deadline=None)
@given(shape=st.sampled_from([(1,), (3,), (2, 2), ()]), rows=st.integers(1, 5), seed=seeds)
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


@pytest.mark.parametrize("distribution", [Gaussian((2,)), SquashedGaussian((2,), (1.0, 5.0))])
def test_samples_are_mean_plus_std_times_noise(distribution):
    """The sample isn't squashed: that is left to the environment's side."""
    parameters = np.array([[1.0, 2.0, 0.0, np.log(3.0)]], np.float32)
    noise = np.array([[0.5, -1.0]], np.float32)
    assert (distribution.columns.uniform, distribution.columns.normal) == (0, 2)
    np.testing.assert_allclose(numpy(distribution.sample(parameters, noise)), [[1.5, -1.0]], rtol=1e-6)
    np.testing.assert_array_equal(numpy(distribution.mode(parameters)), [[1.0, 2.0]])


def squashed_density(action, mean, std, low, high):
    """Computes the density of low + (high - low) (tanh(u) + 1) / 2, u normal, by the textbook's change of variables."""
    unit = 2 * (action - low) / (high - low) - 1
    return scipy.stats.norm(mean, std).pdf(np.arctanh(unit)) / (1 - unit**2) / ((high - low) / 2)


@settings(max_examples=40, deadline=None)
@given(
    mean=st.floats(-2, 2), log_std=st.floats(-3, 1), u=st.floats(-4, 4), low=st.floats(-5, 0), width=st.floats(0.1, 9)
)
def test_squashed_log_prob_is_that_of_what_the_environment_gets(mean, log_std, u, low, width):
    action = low + width * (np.tanh(u) + 1) / 2
    density = squashed_density(action, mean, np.exp(log_std), low, low + width)
    parameters = np.array([[mean, log_std]], np.float32)
    found = numpy(SquashedGaussian((1,), (width / 2,)).log_prob(parameters, np.array([[u]], np.float32)))
    if density > 1e-200:
        assert found[0] == pytest.approx(np.log(density), rel=1e-3, abs=2e-3)


def test_the_squashed_density_integrates_to_one():
    low, high = -1.0, 4.0
    action = np.linspace(low, high, 200_003)[1:-1]
    u = np.arctanh(2 * (action - low) / (high - low) - 1).astype(np.float32)[:, None]
    parameters = np.tile(np.array([[0.3, -0.4]], np.float32), (len(u), 1))
    density = np.exp(numpy(SquashedGaussian((1,), (2.5,)).log_prob(parameters, u)))
    assert np.trapezoid(density, action) == pytest.approx(1.0, abs=1e-4)


def test_squashed_log_prob_is_exact_where_tanh_rounds_to_one():
    u = np.float32([[0.0], [8.0], [-8.0], [20.0], [-300.0]])
    parameters = np.concatenate([u, 0 * u], axis=1)
    slope = 2 * (np.log(2) - abs(u) - np.log1p(np.exp(-2 * abs(u))))
    expected = (scipy.stats.norm.logpdf(0.0) - slope)[:, 0]
    squashed = SquashedGaussian((1,), (1.0,))
    np.testing.assert_allclose(numpy(squashed.log_prob(parameters, u)), expected, rtol=1e-6)
    (found,) = run_litert(lambda p, a: [squashed.log_prob(p, a)], parameters, u)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def exact_entropy(mean, std, scale):
    """Integrates one element: the normal's entropy + the expectation of log |d action / d u|, by quadrature."""
    normal = scipy.stats.norm(mean, std)

    def integrand(u):
        return normal.pdf(u) * 2 * (np.log(2) - abs(u) - np.log1p(np.exp(-2 * abs(u))))

    ends = mean - 9 * std, mean + 9 * std
    points = sorted({*np.clip([0.0, mean, -1.0, 1.0], *ends)})
    return normal.entropy() + scipy.integrate.quad(integrand, *ends, points=points, limit=400)[0] + np.log(scale)


@pytest.mark.parametrize("mean", [0.0, 0.3, -1.0, 2.5, 8.0])
@pytest.mark.parametrize(("std", "tolerance"), [(1e-3, 1e-4), (0.1, 1e-4), (0.6, 1e-4), (1.5, 1e-4), (4.0, 0.01)])
def test_squashed_entropy_is_the_integral(mean, std, tolerance):
    parameters = np.array([[mean, np.log(std)]], np.float32)
    found = numpy(SquashedGaussian((1,), (2.0,)).entropy(parameters))[0]
    assert found == pytest.approx(exact_entropy(mean, std, 2.0), abs=tolerance, rel=1e-5)


def test_squashed_entropy_is_minus_the_mean_log_prob_of_samples():
    rows = 400_000
    rng = np.random.default_rng(0)
    parameters = np.array([[0.2, -1.5, -0.5, 0.3]], np.float32)
    squashed = SquashedGaussian((2,), (1.0, 3.0))
    many = np.repeat(parameters, rows, axis=0)
    samples = squashed.sample(many, rng.normal(size=(rows, 2)).astype(np.float32))
    log_prob = numpy(squashed.log_prob(many, samples))
    error = 4 * log_prob.std() / np.sqrt(rows)
    assert numpy(squashed.entropy(parameters))[0] == pytest.approx(-log_prob.mean(), abs=error)


def test_squashed_entropy_has_the_gradient_of_the_integral():
    parameters = tf.Variable([[0.4, -0.7]])
    with tf.GradientTape() as tape:
        entropy = SquashedGaussian((1,), (1.0,)).entropy(parameters)[0]
    found = tape.gradient(entropy, parameters).numpy()[0]
    step = 1e-4
    of_mean = (exact_entropy(0.4 + step, np.exp(-0.7), 1.0) - exact_entropy(0.4 - step, np.exp(-0.7), 1.0)) / (2 * step)
    of_std = (exact_entropy(0.4, np.exp(-0.7 + step), 1.0) - exact_entropy(0.4, np.exp(-0.7 - step), 1.0)) / (2 * step)
    np.testing.assert_allclose(found, [of_mean, of_std], rtol=1e-3)
