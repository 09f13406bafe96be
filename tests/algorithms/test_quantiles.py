"""The quantile loss: against loops, torch's formulation and distributions whose quantiles are known."""

from __future__ import annotations

import numpy as np
import pytest
from keras import Variable, ops

from actor_learner.algorithms.quantiles import quantile_loss
from actor_learner.learner import backend


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def loss_and_slope(target, current):
    """Equation 10 in loops: a row's losses `[Q]`, and their derivatives."""
    loss, slope = np.zeros((2, len(current)))
    for i, quantile in enumerate(current.astype(np.float64)):
        fraction = (i + 0.5) / len(current)
        for sample in target.astype(np.float64):
            error = sample - quantile
            weight = abs(fraction - (1.0 if error < 0 else 0.0)) / len(target)
            loss[i] += weight * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5)
            slope[i] -= weight * np.clip(error, -1, 1)
    return loss, slope


@pytest.mark.parametrize(("targets", "quantiles"), [(1, 3), (5, 1), (16, 4), (41, 7)])
def test_the_loss_and_its_gradient_are_those_of_loops(targets, quantiles):
    """For fewer targets than are passed at once, for as many, and for more."""
    target, current = samples(3, targets), samples(3, quantiles, seed=1)
    target[0, 0] = current[0, 0]  # an error of 0
    variable, aim = Variable(current), Variable(target)

    def loss():
        of_quantiles = quantile_loss(aim.value, variable.value)
        return ops.sum(of_quantiles), of_quantiles

    (gradient, of_target), found = backend.gradients(loss, [variable, aim], [variable, aim])
    expected = [loss_and_slope(*rows) for rows in zip(target, current, strict=True)]
    np.testing.assert_allclose(np.asarray(found), [loss for loss, _ in expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(gradient), [slope for _, slope in expected], rtol=1e-5, atol=1e-6)
    assert of_target is None or not np.asarray(of_target).any()


def test_a_target_serves_several_estimates():
    target, current = samples(4, 18), samples(2, 4, 5, seed=1)
    found = np.asarray(quantile_loss(ops.convert_to_tensor(target), ops.convert_to_tensor(current)))
    for critic in range(2):
        for row in range(4):
            expected = loss_and_slope(target[row], current[critic, row])[0]
            np.testing.assert_allclose(found[critic, row], expected, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_sb3_contrib():
    """Its `quantile_huber_loss` with `sum_over_quantiles`, in NumPy."""
    target, current = samples(6, 20), samples(6, 20, seed=1)
    cum_prob = ((np.arange(20) + 0.5) / 20).reshape(1, -1, 1)
    delta = target[:, None, :] - current[:, :, None]
    size = np.abs(delta)
    huber = np.where(size > 1, size - 0.5, delta**2 * 0.5)
    expected = (np.abs(cum_prob - (delta < 0)) * huber).sum(axis=-2).mean()
    found = quantile_loss(ops.convert_to_tensor(target), ops.convert_to_tensor(current))
    assert float(ops.mean(ops.sum(found, axis=-1))) == pytest.approx(expected, rel=1e-5)


def quantiles_of_two_values(count, share, high):
    """The minima of the loss for samples 0, and `high` with this share, by hand: the derivative is 0 there.

    Below the step of the distribution, f x share = (1 - f) x (1 - share) x quantile; above, the other way round.
    """
    fraction = (np.arange(count) + 0.5) / count
    odds = fraction * share / ((1 - fraction) * (1 - share))
    return np.where(odds < 1, odds, high - 1 / odds)


def gradient_of_the_sum(target, current):
    variable = Variable(current)
    found = backend.gradients(lambda: (ops.sum(quantile_loss(target, variable.value)), ()), [variable], [variable])
    return np.asarray(found[0][0])


def test_the_quantiles_of_a_known_distribution_are_the_minima():
    target = ops.convert_to_tensor(np.array([0.0] * 14 + [10.0] * 6, np.float32))
    expected = quantiles_of_two_values(8, 0.3, 10.0)
    assert expected[4] < 1 < 9 < expected[6]
    for change, sign in ((0.0, 0), (0.1, 1), (-0.1, -1)):
        gradient = gradient_of_the_sum(target, (expected + change).astype(np.float32))
        np.testing.assert_array_equal(np.sign(np.where(np.abs(gradient) < 1e-6, 0, gradient)), sign)
