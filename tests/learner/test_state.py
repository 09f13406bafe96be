"""The learning rate in force, and the state of a learner that survives a file."""

from __future__ import annotations

import json
import os

import keras
import numpy as np
import pytest

import actor_learner as al
from actor_learner.learner.state import restore
from tests.support.small_networks import linear_network, same_weights, trace_count, weights_of
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


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


def test_updates_with_changing_schedules_trace_once_for_each_shape_of_batch():
    algorithm = al.PPO(
        learning_rate="linear_1e-3", clip_range="linear", ent_coef=lambda left: left, epochs=1, minibatch_size=16
    )
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=10_000)
    columns = [4 if update % 5 else 2 for update in range(12)]
    for update in range(12):
        batch = random_trajectory(seed=update, columns=columns[update], invalid_rate=0.1 * (update % 3))
        learner.update(batch)
        learner.get_weights()
    assert trace_count(learner) == 2


def test_weights_are_read_as_the_network_gives_them():
    network = linear_network()
    steps = network.add_weight(name="steps", shape=(3,), dtype="int32", initializer="ones", trainable=False)
    learner = al.Learner(network, al.PPO(epochs=1), action_space=TWO_ACTIONS)
    before = learner.get_weights()
    kept = [array.copy() for array in before]
    learner.update(random_trajectory())
    steps.assign([1, 2, 3])
    after = learner.get_weights()
    assert [array.dtype for array in after] == [array.dtype for array in network.get_weights()]
    assert same_weights(after, network.get_weights())
    assert same_weights(before, kept)
    assert not same_weights(before, after)


@pytest.mark.parametrize("counts", [False, True], ids=["float32", "with-integers"])
def test_flat_weights_are_the_weights_side_by_side(counts):
    network = linear_network()
    if counts:
        network.add_weight(name="steps", shape=(3,), dtype="int32", initializer="ones", trainable=False)
    learner = al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    flat = learner.flat_weights()
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, np.concatenate([weight.ravel() for weight in network.get_weights()]))
    flat[:] = 0.0
    assert not same_weights(learner.get_weights(), [np.zeros_like(weight) for weight in network.get_weights()])


def test_a_network_that_is_not_built_has_no_weights_yet():
    network = keras.Sequential([keras.layers.Dense(2)])
    learner = al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    assert learner.get_weights() == []
    with pytest.raises(ValueError, match="has weights once it is built"):
        learner.flat_weights()


ALGORITHMS = {
    "ppo-schedules": al.PPO(
        normalize_reward=True, learning_rate="linear_1e-3", clip_range="linear", epochs=2, minibatch_size=24
    ),
    "ppo-desired-kl": al.PPO(desired_kl=0.01, epochs=2, minibatch_size=24),
}


@pytest.mark.parametrize("name", ["ppo-schedules", pytest.param("ppo-desired-kl", marks=pytest.mark.thorough)])
def test_updates_a_file_and_more_updates_are_as_many_without_it_byte_for_byte(tmp_path, name):
    """Network, optimizer, statistics, counters, random state and metrics."""
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(8,), normalize_observation=True)
    straight = al.Learner(network, ALGORITHMS[name], action_space=TWO_ACTIONS, total_steps=3_000, seed=5)
    for seed in range(4):
        straight.update(random_trajectory(seed=seed, invalid_rate=0.1))
    straight.save(tmp_path / "saved")
    resumed = al.Learner.load(tmp_path / "saved")
    assert (resumed.updates, resumed.total_steps) == (4, 3_000)
    for seed in range(4, 8):
        batch = random_trajectory(seed=seed, invalid_rate=0.1)
        assert resumed.update(batch) == straight.update(batch)
    for learner in (straight, resumed):
        learner.save(tmp_path / str(learner is resumed))
    assert same_weights(straight.get_weights(), resumed.get_weights())
    for file in ("learner.json", "learner.npz"):
        assert (tmp_path / "True" / file).read_bytes() == (tmp_path / "False" / file).read_bytes()


@pytest.mark.filterwarnings("error:Skipping variable loading")
def test_a_network_that_was_trained_here_takes_a_saved_learners_place(tmp_path):
    """One process may train, and continue with the same network object."""
    network, trajectory = linear_network(), random_trajectory(steps=2, columns=2)
    learner = al.Learner(network, al.PPO(minibatch_size=None), action_space=TWO_ACTIONS)
    learner.update(trajectory)
    learner.save(tmp_path / "learner")
    saved = [variable.numpy() for variable in learner.optimizer.variables]
    learner.update(trajectory)
    again = al.Learner.load(tmp_path / "learner", network=network)
    assert again.optimizer is not learner.optimizer
    assert again.optimizer.iterations > 0
    np.testing.assert_equal([variable.numpy() for variable in again.optimizer.variables], saved)


def test_a_saved_learner_is_replaced_as_a_whole(tmp_path):
    learner = al.Learner(linear_network(), al.PPO(), action_space=TWO_ACTIONS)
    for learner.updates in (1, 2):
        learner.save(tmp_path / "saved")
        assert al.Learner.load(tmp_path / "saved").updates == learner.updates
    files = ["learner.json", "learner.npz", "manifest.json", "network.keras"]
    assert sorted(os.listdir(tmp_path / "saved")) == files
    assert os.listdir(tmp_path) == ["saved"]
    assert same_weights(al.load_network(tmp_path / "saved").get_weights(), learner.get_weights())


def test_a_network_that_cannot_be_rebuilt_is_given(tmp_path):
    class Forgetful(keras.Model):
        def __init__(self, columns):
            super().__init__()
            self.parameters_head, self.value_head = keras.layers.Dense(columns), keras.layers.Dense(1)

        def call(self, x):
            return self.parameters_head(x), self.value_head(x)

    first, second = Forgetful(2), Forgetful(2)
    learner = al.Learner(first, al.PPO(), action_space=TWO_ACTIONS)
    with pytest.raises(ValueError, match="once its network is built"):
        learner.save(tmp_path / "saved")
    for network in (first, second):
        network(np.zeros((1, 4), np.float32))
    al.Learner(first, al.PPO(), action_space=TWO_ACTIONS).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="give it as `network=` in Python"):
        al.Learner.load(tmp_path / "saved")
    loaded = al.Learner.load(tmp_path / "saved", network=second)
    assert loaded.network is second
    assert same_weights(first.get_weights(), second.get_weights())


def test_the_state_of_another_optimizer_is_one_line(tmp_path):
    al.Learner(linear_network(), al.PPO(), action_space=TWO_ACTIONS).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"doesn't fit this algorithm and network: optimizer/.*Received: directory="):
        al.Learner.load(tmp_path / "saved", algorithm=al.PPO(optimizer=keras.optimizers.SGD(1e-3)))


def test_integers_of_another_backend_are_taken():
    count, rate = keras.Variable(0, dtype="int64"), keras.Variable(0.0)
    variables = {"optimizer/0": count, "optimizer/1": rate}
    arrays = {"optimizer/0": np.array(7, np.int32), "optimizer/1": np.array(0.5, np.float32)}
    restore(variables, arrays, "saved")
    assert (int(count), float(rate)) == (7, 0.5)
    with pytest.raises(ValueError, match="optimizer/1 is .*float64"):
        restore(variables, {**arrays, "optimizer/1": np.array(0.5)}, "saved")


def test_what_a_file_cannot_hold_is_asked_for(tmp_path):
    algorithm = al.PPO(learning_rate=lambda remaining: 1e-3 * remaining)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=1000)
    learner.save(tmp_path)
    assert json.loads((tmp_path / "learner.json").read_text())["algorithm"] is None
    with pytest.raises(ValueError, match="give it: Learner.load"):
        al.Learner.load(tmp_path)
    loaded = al.Learner.load(tmp_path, algorithm=algorithm)
    assert same_weights(loaded.get_weights(), learner.get_weights())


def test_loading_where_nothing_was_saved(tmp_path):
    with pytest.raises(ValueError, match="There is no learner"):
        al.Learner.load(tmp_path)


def test_a_layer_in_float64_goes_on(tmp_path):
    """JAX holds it in float32."""
    x = keras.Input((4,))
    network = keras.Model(x, [keras.layers.Dense(size, dtype="float64")(x) for size in (2, 1)])
    learner = al.Learner(network, al.PPO(epochs=1), action_space=TWO_ACTIONS)
    learner.update(random_trajectory())
    learner.save(tmp_path)
    assert same_weights(al.Learner.load(tmp_path).get_weights(), learner.get_weights())


def test_variables_of_a_network_built_to_look_at_are_refused():
    """They would be excluded from nothing."""
    given = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    given.exclude_from_weight_decay(var_list=linear_network().trainable_variables)
    with pytest.raises(ValueError, match=r"take var_names=\[...\]. Received: 2 variables of another network"):
        al.Learner(linear_network(), al.PPO(optimizer=given), action_space=TWO_ACTIONS)
