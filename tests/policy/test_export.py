"""Exported graphs follow each weight, whatever the converter folds."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete
from keras import layers, ops

from actor_learner.networks.contract import call_network
from actor_learner.networks.default import default_network
from actor_learner.networks.layers import ActionDistribution
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.policy import Policy
from actor_learner.spaces.kinds import from_json
from actor_learner.spaces.structure import observation_structure, to_gymnasium
from tests.support.exporting import (
    ACTIONS,
    BATCH,
    IMAGE,
    IMAGE_NETWORKS,
    VECTOR,
    VECTOR_NETWORKS,
    OneCell,
    Scale,
    Subclassed,
    assert_agrees,
    changed_weights,
    conv,
    image_network,
    observations,
    vector_network,
    with_policy,
)

pytestmark = pytest.mark.slow


def assert_follows_new_weights(network, observation_space, tolerance=1e-5):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = export_policy(network, ACTIONS, BATCH, observation_space)
    assert not exported.fallback
    policy = Policy(exported)
    observation = observations(observation_space, BATCH)
    before = policy.value(observation)
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    assert not np.allclose(policy.value(observation), before, atol=1e-3)
    assert_agrees(policy, network, ACTIONS, observation, tolerance)


@pytest.mark.parametrize("name", VECTOR_NETWORKS)
def test_new_weights_are_followed(name):
    # Keras itself computes in half precision, the exported graph in float32.
    tolerance = 0.05 if name.startswith(("mixed precision", "float16")) else 1e-5
    assert_follows_new_weights(VECTOR_NETWORKS[name](), VECTOR, tolerance)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_new_weights_are_followed_by_image_networks(name):
    assert_follows_new_weights(IMAGE_NETWORKS[name](), IMAGE)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "options"),
    [
        (VECTOR, Discrete(2, start=3), {}),
        (VECTOR, Discrete(1), {}),
        (VECTOR, Box(-1, 1, (2, 3), np.float32), {"normalize_observation": True}),
        (VECTOR, Box(-2, 2, (), np.float32), {}),
        (Box(-1, 1, (3, 2), np.float64), Discrete(4), {"normalize_observation": True}),
        (Box(-4, 9, (5,), np.int16), Discrete(4), {}),
        (Discrete(5, start=2), Discrete(4), {}),
        (Box(0, 255, (36, 36), np.uint8), Discrete(6), {}),
        (Box(0, 255, (3, 20, 20), np.uint8), Discrete(6), {"image_network": "impala"}),
        (Box(0, 255, (7, 7, 3), np.uint8), Discrete(6), {}),
        (Box(0, 1, (10, 10, 4), np.bool_), Discrete(6), {}),
        (Box(np.zeros((3, 3), np.uint8), np.arange(9, dtype=np.uint8).reshape(3, 3), dtype=np.uint8), Discrete(6), {}),
    ],
)
@pytest.mark.filterwarnings("ignore:You are using a softmax:UserWarning")
@pytest.mark.parametrize("batch_size", [1, 5])
def test_default_networks(observation_space, action_space, options, batch_size):
    network = default_network(observation_space, action_space, **options)
    policy = Policy(export_policy(network, action_space, batch_size, observation_space))
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    assert_agrees(policy, network, action_space, observations(observation_space, batch_size), tolerance=3e-5)


def test_kernels_of_default_networks_stay_constants():
    for space, options in ((VECTOR, {"normalize_observation": True}), (Box(0, 255, (40, 40, 2), np.uint8), {})):
        exported = export_policy(default_network(space, ACTIONS, **options), ACTIONS, BATCH, space)
        assert exported.step_graph.inputs == ()
        assert exported.value_graph.inputs == ()


def test_what_is_folded_becomes_an_input_vectors_first():
    network = vector_network(Scale(name="scaling"), layers.Dense(8, "tanh", name="hidden"))
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    fed = {exported.weight_names[index] for index in exported.step_graph.inputs}
    assert "scaling/scale" in fed
    assert not any(name.endswith("kernel") for name in fed)


def test_a_constant_folded_into_a_kernel_is_recognized():
    exported = export_policy(IMAGE_NETWORKS["convolution of x / 255"](), ACTIONS, BATCH, IMAGE)
    factors = {constant.factor for constant in exported.step_graph.constants}
    assert factors == {1.0, float(np.float32(1 / 255))}


def test_weights_that_a_graph_does_not_use_are_in_neither_table():
    network = default_network(VECTOR, ACTIONS)
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    in_step = {exported.weight_names[constant.weight] for constant in exported.step_graph.constants}
    in_value = {exported.weight_names[constant.weight] for constant in exported.value_graph.constants}
    assert {name.split("/")[0] for name in in_step} == {"policy_hidden_1", "policy_hidden_2", "logits"}
    assert {name.split("/")[0] for name in in_value} == {"value_hidden_1", "value_hidden_2", "value"}


def test_a_constant_that_looks_like_a_weight_is_left_alone():
    """Patterns would start at 1/32, were they not odd."""
    network = vector_network(layers.Dense(8, "tanh"), layers.Rescaling(1 / 32))
    assert_follows_new_weights(network, VECTOR)


def test_the_network_is_left_as_it_is():
    network = with_policy("mixed_bfloat16")
    before = network.get_weights()
    policies = [layer.dtype_policy for layer in network.layers]
    export_policy(network, ACTIONS, BATCH, VECTOR)
    assert [layer.dtype_policy for layer in network.layers] == policies
    for old, new in zip(before, network.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_zero_weights_hide_nothing():
    """No change before a policy head of zeros shows in any output."""
    network = vector_network(Scale(), layers.Dense(8))
    network.set_weights([np.zeros_like(weight) for weight in network.get_weights()])
    assert_follows_new_weights(network, VECTOR)


@pytest.mark.parametrize("batch_size", [1, 8, 20])
def test_resizable_graphs_are_right_at_other_sizes(batch_size):
    network = default_network(VECTOR, ACTIONS)
    exported = export_policy(network, ACTIONS, batch_size, VECTOR)
    assert exported.step_graph.resizable
    assert exported.value_graph.resizable
    for rows in (1, 3, batch_size, 50):
        assert_agrees(Policy(exported), network, ACTIONS, observations(VECTOR, rows))


def test_graphs_that_do_not_resize_are_found_out():
    network = vector_network(OneCell(layers.GRUCell(7)))
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    assert not exported.step_graph.resizable
    for rows in (1, 3, 20):
        assert_agrees(Policy(exported), network, ACTIONS, observations(VECTOR, rows))


def test_shape_and_dtype_come_from_the_network_where_it_says_them():
    exported = export_policy(image_network(conv()), ACTIONS, 2)
    assert to_gymnasium(from_json(exported.observation_space)) == IMAGE
    with pytest.raises(ValueError, match=r"`observation_space` must be given.*Received: network='subclassed"):
        export_policy(Subclassed(), ACTIONS, 2)


def test_noise_hold_is_the_networks_and_only_for_normals():
    box = Box(-1, 1, (2,), np.float32)
    assert export_policy(default_network(VECTOR, box, noise_hold=4), box, 2, VECTOR).noise_hold == 4
    observation = keras.Input((6,))
    parameters = ActionDistribution(noise_hold=4)(layers.Dense(3)(observation))
    network = keras.Model(observation, (parameters, layers.Dense(1)(observation)))
    with pytest.raises(ValueError, match=r"must be 1 for an action space without a Box. Received: noise_hold=4"):
        export_policy(network, ACTIONS, 2, VECTOR)


def test_wrong_heads_are_one_clear_error():
    observation = keras.Input((6,))
    wide = keras.Model(observation, (layers.Dense(4)(observation), layers.Dense(1)(observation)))
    with pytest.raises(ValueError, match=r"`parameters` must have shape \[B, 3\].*Received: \[B, 4\]"):
        export_policy(wide, ACTIONS, BATCH, VECTOR)
    two_values = keras.Model(observation, (layers.Dense(3)(observation), layers.Dense(2)(observation)))
    with pytest.raises(ValueError, match=r"`value` must have shape \[B\] or \[B, 1\].*Received: \[16\]"):
        export_policy(two_values, ACTIONS, BATCH, VECTOR)
    with pytest.raises(ValueError, match=r"`batch_size` must be an integer of at least 1\. Received: batch_size=0"):
        export_policy(wide, ACTIONS, 0, VECTOR)


def test_export_is_silent(capfd):
    export_policy(default_network(VECTOR, ACTIONS), ACTIONS, 3, VECTOR)
    assert capfd.readouterr() == ("", "")


def test_pieces_of_weights_are_not_taken_for_weights():
    """The graph holds only a slice of a kernel: the whole weight can't be written there."""

    class Half(layers.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(6, 12), name="kernel")

        def call(self, x):
            return ops.matmul(x, self.kernel[:, :6])

    network = vector_network(Half(name="half"))
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    assert "half/kernel" in {exported.weight_names[index] for index in exported.step_graph.inputs}
    assert_follows_new_weights(network, VECTOR)


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_observations_of_any_other_dtype_need_no_fallback(dtype):
    space = Box(0, 10, (6,), np.dtype(dtype).type)
    network = default_network(space, ACTIONS)
    policy = Policy(export_policy(network, ACTIONS, 4, space))
    assert not policy.exported.fallback
    observation = np.arange(24).reshape(4, 6).astype(observation_structure(space).leaves[0].dtype)
    assert_agrees(policy, network, ACTIONS, observation)


def test_actors_agree_with_the_learner_after_training():
    """The bound for continuous spaces is 1e-5 / min(1, smallest std)."""
    box = Box(-1, 1, (3,), np.float32)
    network = default_network(VECTOR, box)
    policy = Policy.from_network(network, box, batch_size=64, observation_space=VECTOR)
    optimizer = keras.optimizers.Adam(0.01)
    observation = observations(VECTOR, 64)
    for _ in range(20):
        with tf.GradientTape() as tape:
            outputs = call_network(network, observation)
            loss = ops.mean(ops.square(outputs["parameters"] + 1.5)) + ops.mean(ops.square(outputs["value"] - 3))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    policy.set_weights(network.get_weights())
    log_std = network.get_layer("log_std").log_std.numpy()
    assert (log_std < 0).all()
    assert_agrees(policy, network, box, observation, tolerance=1e-5 / min(1.0, float(np.exp(log_std).min())))
