"""Noise: its kinds, its edges, and the steps for which it is held."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete
from scipy import stats

from actor_learner.networks import default
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.noise import Noise
from actor_learner.policy.policy import Policy
from tests.support.exporting import give_draws
from tests.support.policies import ACTIONS, BATCH, TORQUES, VECTOR, observations

pytestmark = pytest.mark.slow


def test_uniform_noise_is_above_zero_and_at_most_one(exported):
    noise = Noise(exported, 0)
    give_draws(noise, [0.0, 1 - 2**-24])
    drawn = noise.draw(4)
    assert drawn.min() == np.float32(2**-24)
    assert drawn.max() == 1.0


def test_a_row_has_the_same_noise_beside_any_number_of_others(hybrid):
    few, many = Noise(hybrid, 5), Noise(hybrid, 5)
    for _ in range(150):
        np.testing.assert_array_equal(few.draw(3), many.draw(900)[:3])
    later = Noise(hybrid, 5, first_stream=2)
    np.testing.assert_array_equal(later.draw(1), Noise(hybrid, 5).draw(3)[2:])


def test_rows_may_join_and_leave(exported):
    noise, steady = Noise(exported, 0), Noise(exported, 0)
    for rows in (3, 5, 2, 5):
        np.testing.assert_array_equal(noise.draw(rows)[:2], steady.draw(2))
    assert noise.draw(6000).shape == (6000, 1)
    assert len(np.unique(noise.draw(6000))) > 5900


def test_noise_is_held(gaussian):
    """Each row holds its noise for three steps; only a renewed row draws again, and starts its own three steps."""
    noise = Noise(gaussian, 0)
    draws = [noise.draw(BATCH).copy() for _ in range(4)]
    assert len(np.unique(draws[0])) == draws[0].size
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[2] != draws[3]).all()
    noise.renew(np.arange(BATCH) == 2)
    renewed = noise.draw(BATCH).copy()
    assert ((renewed == draws[3]).all(axis=1) == (np.arange(BATCH) != 2)).all()
    noise.draw(BATCH)
    later = noise.draw(BATCH)
    np.testing.assert_array_equal(later[2], renewed[2])
    assert (later[0] != renewed[0]).all()
    noise.renew()
    assert (noise.draw(BATCH)[2] != renewed[2]).all()


def test_noise_does_not_depend_on_the_exported_batch_size(network, exported):
    rows = observations(4)
    of_one = Policy.from_network(network, ACTIONS, seed=7, observation_space=VECTOR)
    np.testing.assert_array_equal(of_one.step(rows)[0], Policy(exported, seed=7).step(rows)[0])


@pytest.fixture(scope="module")
def hybrid():
    space = Dict({"aim": TORQUES, "kind": Discrete(3), "more": TORQUES})
    network = default.default_network(VECTOR, space, noise_hold=3)
    return export_policy(network, space, BATCH, VECTOR)


def test_uniforms_come_first_and_then_normals(hybrid):
    assert (hybrid.noise_uniform, hybrid.noise_normal) == (1, 4)
    noise = Noise(hybrid, 0)
    drawn = np.concatenate([noise.draw(500) for _ in range(4 * hybrid.noise_hold)][:: hybrid.noise_hold])
    assert drawn.shape == (2000, 5)
    assert stats.kstest(drawn[:, 0], stats.uniform.cdf).pvalue > 1e-3
    for column in drawn.T[1:]:
        assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-3
    correlations = np.corrcoef(drawn.T) - np.eye(5)
    assert np.abs(correlations).max() < 0.1


def test_only_normals_are_held(hybrid):
    noise = Noise(hybrid, 0)
    draws = [noise.draw(BATCH).copy() for _ in range(4)]
    for earlier, later in ((0, 1), (1, 2)):
        np.testing.assert_array_equal(draws[earlier][:, 1:], draws[later][:, 1:])
        assert (draws[earlier][:, 0] != draws[later][:, 0]).all()
    assert (draws[2][:, 1:] != draws[3][:, 1:]).all()


def test_renewing_no_rows_keeps_all(gaussian):
    noise = Noise(gaussian, 0)
    noise.renew(np.ones(BATCH, bool))  # before the first draw
    first = noise.draw(BATCH).copy()
    noise.renew(np.zeros(BATCH, bool))
    np.testing.assert_array_equal(noise.draw(BATCH), first)
