"""The learning rate that is in force, and what of a learner survives a file."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import actor_learner as al
from tests.small_networks import linear_network, same_weights, weights_of
from tests.trajectories import TWO_ACTIONS, VECTOR, random_trajectory


@dataclass(frozen=True, kw_only=True)
class Halving(al.PPO):
    """Halves the rate after each update."""

    def adapted_learning_rate(self, learning_rate, metrics):
        return learning_rate / 2 if "policy_loss" in metrics else None


def test_the_learning_rate_in_force_is_the_optimizers_variable():
    network = linear_network()
    learner = al.Learner(network, al.PPO(learning_rate=1e-3), action_space=TWO_ACTIONS)
    assert learner.update(random_trajectory())["learning_rate"] == pytest.approx(1e-3)
    network.optimizer.learning_rate = 0.0  # as a callback does
    before = weights_of(network)
    assert learner.update(random_trajectory())["learning_rate"] == 0.0
    assert same_weights(before, network.get_weights())


def test_linear_schedules_go_from_their_value_towards_zero():
    algorithm = al.PPO(learning_rate="linear_1e-3", clip_range="linear")
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=4 * 64)
    rates = [learner.update(random_trajectory(seed=seed))["learning_rate"] for seed in range(4)]
    np.testing.assert_allclose(rates, [1e-3, 0.75e-3, 0.5e-3, 0.25e-3], rtol=1e-5)


def test_an_algorithm_may_adapt_the_learning_rate_from_what_an_update_reports():
    learner = al.Learner(linear_network(), Halving(learning_rate=1e-3), action_space=TWO_ACTIONS)
    rates = [learner.update(random_trajectory(seed=seed))["learning_rate"] for seed in range(3)]
    np.testing.assert_allclose(rates, [1e-3, 0.5e-3, 0.25e-3], rtol=1e-6)


def test_changing_schedules_trace_the_update_once():
    learner = al.Learner(
        linear_network(), al.PPO(clip_range="linear", epochs=1), action_space=TWO_ACTIONS, total_steps=10_000
    )
    for seed in range(20):
        learner.update(random_trajectory(seed=seed, invalid_rate=0.1 * (seed % 3)))
    assert learner._compiled.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("algorithm", [al.PPO(normalize_reward=True, learning_rate="linear"), al.A2C()])
def test_a_loaded_learner_goes_on_byte_for_byte(tmp_path, algorithm):
    def learner():
        network = al.default_network(VECTOR, TWO_ACTIONS, normalize_observation=True)
        return al.Learner(network, algorithm, action_space=TWO_ACTIONS, total_steps=10_000)

    straight, first = learner(), learner()
    for seed in range(4):
        straight.update(random_trajectory(seed=seed))
    for seed in range(2):
        first.update(random_trajectory(seed=seed))
    first.save(tmp_path)
    second = al.Learner.load(tmp_path)
    assert (second.env_steps, second.updates, second.total_steps) == (first.env_steps, 2, 10_000)
    for seed in range(2, 4):
        second.update(random_trajectory(seed=seed))
    assert same_weights(straight.get_weights(), second.get_weights())
    assert second.env_steps == straight.env_steps


def test_what_a_file_cannot_hold_is_asked_for(tmp_path):
    algorithm = al.PPO(learning_rate=lambda remaining: 1e-3 * remaining)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=1000)
    learner.update(random_trajectory())
    learner.save(tmp_path)
    assert json.loads((tmp_path / "learner.json").read_text())["algorithm"] is None
    with pytest.raises(ValueError, match="give it: Learner.load"):
        al.Learner.load(tmp_path)
    loaded = al.Learner.load(tmp_path, algorithm=algorithm)
    assert same_weights(loaded.get_weights(), learner.get_weights())


def test_loading_where_nothing_was_saved(tmp_path):
    with pytest.raises(ValueError, match="There is no learner"):
        al.Learner.load(tmp_path)
