"""TensorFlow runs the graphs that LiteRT can't express; a warning names the layer."""

from __future__ import annotations

import pickle

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box
from keras import layers, ops

from actor_learner.networks.layers import LogStd
from actor_learner.policy.export.exporting import _convert_elsewhere, export_policy
from actor_learner.policy.export.litert import convert_network
from actor_learner.policy.policy import Policy
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import (
    ACTIONS,
    VECTOR,
    Inexpressible,
    Noisy,
    Untracked,
    assert_agrees,
    changed_weights,
    heads,
    observations,
    vector_network,
)

pytestmark = pytest.mark.slow


def test_fallback_names_the_layer_and_acts_like_keras():
    network = vector_network(layers.Dense(8), Inexpressible(name="puzzling"))
    with pytest.warns(UserWarning, match=r"layer 'puzzling'.*tf\.BitwiseAnd.*TensorFlow"):
        exported = export_policy(network, ACTIONS, 4, VECTOR)
    assert exported.fallback
    policy = Policy(pickle.loads(pickle.dumps(exported)))
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    for rows in (4, 1, 9):
        assert_agrees(policy, network, ACTIONS, observations(VECTOR, rows))


def test_fallback_of_one_graph_leaves_the_other_to_litert():
    observation = keras.Input((6,))
    value = layers.Dense(1)(Inexpressible()(observation))
    network = keras.Model(observation, (layers.Dense(3)(observation), value))
    with pytest.warns(UserWarning, match="value graph"):
        exported = export_policy(network, ACTIONS, 4, VECTOR)
    assert (exported.step_graph.format, exported.value_graph.format) == ("litert", "tensorflow")


def test_a_network_that_draws_numbers_draws_them_anew_at_each_step_the_same_in_all_actors():
    observation = keras.Input((6,))
    features = Noisy(8)(observation)
    network = keras.Model(observation, (LogStd()(layers.Dense(2)(features)), layers.Dense(1)(features)))
    with pytest.warns(UserWarning, match="LiteRT can't run the step graph"):
        exported = export_policy(network, Box(-np.inf, np.inf, (2,), np.float32), 4, VECTOR)
    first, later = Policy(exported, 3), Policy(exported, 3, first_stream=2)
    rows, values, actions = observations(VECTOR, 6), [], []
    for _ in range(40):
        np.testing.assert_allclose(first.step(rows)[0][2:], later.step(rows[2:])[0], atol=1e-5)
        values.append(first.value(rows[0]))
        actions.append(first.act(rows[0])[0])
        np.testing.assert_allclose(later.act(rows[0])[0], actions[-1], atol=1e-5)
    assert len(np.unique(values)) == len(np.unique(actions)) == 40


def test_a_process_that_converts_a_network_has_its_seeds_which_keras_does_not_save():
    """Keras on JAX converts so. A fresh seed in each run's process would give each run other weights."""
    observation = keras.Input((6,))
    features = Noisy(8, seed=None)(observation)
    network = keras.Model(observation, (layers.Dense(3)(features), layers.Dense(1)(features)))
    spaces, rows = Spaces(VECTOR, ACTIONS), observations(VECTOR, 4)
    here = Policy(convert_network(network, spaces, 4).exported, 3)
    elsewhere = Policy(_convert_elsewhere(network, spaces, 4).exported, 3)
    np.testing.assert_allclose(elsewhere.value(rows), here.value(rows), atol=1e-5)


@pytest.mark.thorough
def test_fallback_freezes_what_keras_does_not_know():
    network = vector_network(Untracked(), Inexpressible())
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        policy = Policy.from_network(network, ACTIONS, batch_size=4)
    assert_agrees(policy, network, ACTIONS, observations(VECTOR, 4))


def test_fallback_where_no_layer_is_to_blame_names_the_operation():
    observation = keras.Input((6,))
    chosen = ops.cast(ops.argmax(observation, axis=-1, keepdims=True), "float32")
    network = heads(observation, observation + chosen)
    with pytest.warns(UserWarning, match=r"BitwiseAnd', outside its layers: .*tf\.BitwiseAnd"):
        export_policy(network, ACTIONS, 4, VECTOR)
