"""Exported graphs follow each weight, whatever the converter folds; what LiteRT can't express runs on TensorFlow."""

from __future__ import annotations

import dataclasses
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete
from keras import layers, ops

from actor_learner import networks
from actor_learner.distributions import distribution_for
from actor_learner.policy.export import (
    _agree,
    _Exporter,
    _find_constants,
    _other_variables,
    _pattern_values,
    _permutation,
    _Probe,
    _scaled,
    _to_litert,
    export_policy,
)
from actor_learner.policy.policy import Policy

ACTIONS = Discrete(3)
VECTOR = Box(-3, 3, (6,), np.float32)
IMAGE = Box(0, 255, (16, 16, 3), np.uint8)
BATCH = 8


@keras.saving.register_keras_serializable(package="test_export")
class OneCell(layers.Layer):
    """One step of a recurrent cell from a constant state."""

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell

    def build(self, input_shape):
        self.cell.build(input_shape)

    def call(self, x):
        sizes = self.cell.state_size
        sizes = [sizes] if isinstance(sizes, int) else sizes
        states = [ops.zeros((x.shape[0] or 1, size)) + 0.1 for size in sizes]
        return self.cell(x, states)[0]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.cell.units)


class Scale(layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale


class Softplus(layers.Layer):
    """Multiplies by softplus(weight), which the converter computes once and for all."""

    def build(self, input_shape):
        self.raw = self.add_weight(shape=(input_shape[-1], 5), name="raw")

    def call(self, x):
        return ops.matmul(x, ops.softplus(self.raw))


class Counter(layers.Layer):
    """Reads one integer weight, and has another that it doesn't read."""

    def build(self, input_shape):
        self.used = self.add_weight(shape=(), dtype="int32", initializer="ones", trainable=False, name="used")
        self.unused = self.add_weight(shape=(), dtype="int64", initializer="ones", trainable=False, name="unused")

    def call(self, x):
        return x / ops.cast(self.used + 1, "float32")


class RawAndExponential(layers.Layer):
    """One weight both as it is and inside a function that the converter folds."""

    def build(self, input_shape):
        self.raw = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="raw")

    def call(self, x):
        return (x + self.raw) * ops.exp(self.raw)


class Inexpressible(layers.Layer):
    """LiteRT has no BitwiseAnd, which keras.ops.argmax needs."""

    def call(self, x):
        return x + ops.cast(ops.argmax(x, axis=-1, keepdims=True), "float32")


class Untracked(layers.Layer):
    """A TensorFlow variable that Keras doesn't know of."""

    def build(self, input_shape):
        self.variable = tf.Variable(2.0)

    def call(self, x):
        return x * self.variable


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16, "tanh")
        self.heads = [layers.Dense(3), layers.Dense(1), layers.Dense(4)]

    def call(self, observation):
        features = self.hidden(observation)
        parameters, value, further = (head(features) for head in self.heads)
        return {"parameters": parameters, "value": value[:, 0], "further": further}


def heads(observation, features):
    return keras.Model(observation, (layers.Dense(3)(features), layers.Dense(1)(features)))


def vector_network(*stack):
    observation = keras.Input((6,))
    features = observation
    for layer in stack:
        features = layer(features)
    return heads(observation, features)


def image_network(*stack, scale=lambda x: x / 255.0):
    observation = keras.Input((16, 16, 3), dtype="uint8")
    features = scale(ops.cast(observation, "float32"))
    for layer in stack:
        features = layer(features)
    return heads(observation, layers.Flatten()(features))


def attention():
    observation = keras.Input((6,))
    tokens = layers.Reshape((3, 2))(observation)
    return heads(observation, layers.Flatten()(layers.MultiHeadAttention(2, 4)(tokens, tokens)))


def siamese(scale=1.0):
    observation = keras.Input((6,))
    shared = layers.Dense(8, "tanh")
    return heads(observation, layers.Concatenate()([shared(observation[:, :3]), shared(observation[:, 3:] * scale)]))


def with_policy(policy):
    observation = keras.Input((6,))
    hidden = layers.Dense(16, "tanh", dtype=policy)(observation)
    normalized = layers.LayerNormalization(dtype=policy)(hidden)
    return keras.Model(observation, (layers.Dense(3, dtype=policy)(normalized), layers.Dense(1, dtype=policy)(hidden)))


def conv(**kwargs):
    return layers.Conv2D(8, 3, 2, **kwargs)


VECTOR_NETWORKS = {
    "dense": lambda: vector_network(layers.Dense(16, "relu")),
    "dense, dense": lambda: vector_network(layers.Dense(16), layers.Dense(8)),
    "layer normalization": lambda: vector_network(layers.Dense(16, "tanh"), layers.LayerNormalization()),
    "batch normalization after dense": lambda: vector_network(layers.Dense(16), layers.BatchNormalization()),
    "batch normalization before dense": lambda: vector_network(layers.BatchNormalization(), layers.Dense(8)),
    "gru cell": lambda: vector_network(OneCell(layers.GRUCell(7))),
    "lstm cell": lambda: vector_network(OneCell(layers.LSTMCell(7))),
    "lstm over a sequence": lambda: vector_network(layers.Reshape((3, 2)), layers.LSTM(5)),
    "attention": attention,
    "prelu": lambda: vector_network(layers.Dense(9), layers.PReLU()),
    "siamese": siamese,
    "siamese, one side scaled": lambda: siamese(3.0),
    "softplus(weight)": lambda: vector_network(Softplus()),
    "scale before dense": lambda: vector_network(Scale(), layers.Dense(8)),
    "scale after dense": lambda: vector_network(layers.Dense(8), Scale()),
    "weight raw and folded": lambda: vector_network(layers.Dense(8), RawAndExponential()),
    "integer weights": lambda: vector_network(Counter()),
    "untracked variable": lambda: vector_network(Untracked()),
    "dropout": lambda: vector_network(layers.Dense(8), layers.Dropout(0.5)),
    "1D convolution": lambda: vector_network(layers.Reshape((3, 2)), layers.Conv1D(5, 2), layers.Flatten()),
    "subclassed": Subclassed,
    "mixed precision": lambda: with_policy("mixed_bfloat16"),
    "float16": lambda: with_policy("float16"),
    "float64": lambda: with_policy("float64"),
}
IMAGE_NETWORKS = {
    "convolution of x / 255": lambda: image_network(conv(activation="relu")),
    "convolution of x / 127.5 - 1": lambda: image_network(conv(activation="relu"), scale=lambda x: x / 127.5 - 1),
    "depthwise": lambda: image_network(layers.DepthwiseConv2D(3, depth_multiplier=2)),
    "batch normalization after convolution": lambda: image_network(conv(), layers.BatchNormalization()),
}


def changed_weights(network):
    """Other values for all weights, of usual sizes; variances stay positive."""
    generator = np.random.default_rng(5)

    def change(weight):
        other = weight + 0.2 * generator.standard_normal(weight.shape)
        if not np.issubdtype(weight.dtype, np.floating):
            return weight + 2
        return (np.abs(other) if (weight > 0).all() else other).astype(weight.dtype)

    return [change(weight) for weight in network.get_weights()]


def observations(space, rows):
    generator = np.random.default_rng(6)
    if space.dtype == np.uint8:
        return generator.integers(0, 256, (rows, *space.shape), np.uint8)
    return generator.standard_normal((rows, *space.shape)).astype(np.float32)


def assert_agrees(policy, network, action_space, observation, tolerance=1e-5):
    """The policy's log-probabilities, modes and values are Keras's."""
    outputs = networks.call_network(network, ops.convert_to_tensor(observation))
    distribution = distribution_for(action_space)
    action, log_prob = policy.step(observation)
    expected = distribution.log_prob(outputs["parameters"], ops.convert_to_tensor(action))
    np.testing.assert_allclose(log_prob, expected, atol=tolerance, rtol=0)
    np.testing.assert_allclose(policy.value(observation), outputs["value"], atol=tolerance, rtol=1e-5)
    mode = policy.to_env(np.asarray(distribution.mode(outputs["parameters"])))
    np.testing.assert_allclose(policy.act(observation), mode, atol=tolerance)


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
    # Half precision in Keras itself: the exported graph computes in float32.
    tolerance = 0.05 if name in ("mixed precision", "float16") else 1e-5
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
    ],
)
@pytest.mark.filterwarnings("ignore:You are using a softmax:UserWarning")
@pytest.mark.parametrize("batch_size", [1, 5])
def test_default_networks(observation_space, action_space, options, batch_size):
    network = networks.default_network(observation_space, action_space, **options)
    policy = Policy(export_policy(network, action_space, batch_size, observation_space))
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    samples = np.stack([observation_space.sample() for _ in range(batch_size)])
    if isinstance(observation_space, Discrete):
        samples = samples - observation_space.start
    samples = samples.astype(policy.exported.observation_dtype)
    assert_agrees(policy, network, action_space, samples, tolerance=3e-5)


def test_kernels_of_default_networks_stay_constants():
    for space, options in ((VECTOR, {"normalize_observation": True}), (Box(0, 255, (40, 40, 2), np.uint8), {})):
        exported = export_policy(networks.default_network(space, ACTIONS, **options), ACTIONS, BATCH, space)
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
    network = networks.default_network(VECTOR, ACTIONS)
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    in_step = {exported.weight_names[constant.weight] for constant in exported.step_graph.constants}
    in_value = {exported.weight_names[constant.weight] for constant in exported.value_graph.constants}
    assert {name.split("/")[0] for name in in_step} == {"policy_hidden_1", "policy_hidden_2", "logits"}
    assert {name.split("/")[0] for name in in_value} == {"value_hidden_1", "value_hidden_2", "value"}


def test_a_constant_that_looks_like_a_weight_is_left_alone():
    """1/32 is where patterns would start, were they not odd."""
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
    """With a policy head of zeros, no change before it would show in any output."""
    network = vector_network(Scale(), layers.Dense(8))
    network.set_weights([np.zeros_like(weight) for weight in network.get_weights()])
    assert_follows_new_weights(network, VECTOR)


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


def test_fallback_freezes_what_keras_does_not_know():
    network = vector_network(Untracked(), Inexpressible())
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        policy = Policy.from_network(network, ACTIONS, batch_size=4)
    assert_agrees(policy, network, ACTIONS, observations(VECTOR, 4))


@pytest.mark.parametrize("batch_size", [1, 8, 20])
def test_resizable_graphs_are_right_at_other_sizes(batch_size):
    network = networks.default_network(VECTOR, ACTIONS)
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
    assert (exported.observation_shape, exported.observation_dtype) == ((16, 16, 3), "uint8")
    with pytest.raises(ValueError, match=r"`observation_space` must be given.*Received: network='subclassed"):
        export_policy(Subclassed(), ACTIONS, 2)


def test_noise_hold_is_the_networks_and_only_for_normals():
    box = Box(-1, 1, (2,), np.float32)
    assert export_policy(networks.default_network(VECTOR, box, noise_hold=4), box, 2, VECTOR).noise_hold == 4
    assert export_policy(networks.default_network(VECTOR, ACTIONS, noise_hold=4), ACTIONS, 2, VECTOR).noise_hold == 1


def test_wrong_heads_are_one_clear_error():
    observation = keras.Input((6,))
    wide = keras.Model(observation, (layers.Dense(4)(observation), layers.Dense(1)(observation)))
    with pytest.raises(ValueError, match=r"`parameters` must have 3 columns.*Received: shape=\(8, 4\)"):
        export_policy(wide, ACTIONS, BATCH, VECTOR)
    two_values = keras.Model(observation, (layers.Dense(3)(observation), layers.Dense(2)(observation)))
    with pytest.raises(ValueError, match=r"`value` must be one number.*Received: 16 for 8"):
        export_policy(two_values, ACTIONS, BATCH, VECTOR)
    with pytest.raises(ValueError, match=r"`batch_size` must be at least 1\. Received: batch_size=0"):
        export_policy(wide, ACTIONS, 0, VECTOR)


def test_export_is_silent(capfd):
    export_policy(networks.default_network(VECTOR, ACTIONS), ACTIONS, 3, VECTOR)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("permutation", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_permutation(permutation):
    shape = (2, 3, 4)
    index = np.arange(24).reshape(shape).transpose(permutation).reshape(-1)
    found = _permutation(index, shape)
    np.testing.assert_array_equal(np.arange(24).reshape(shape).transpose(found).reshape(-1), index)
    assert _permutation(index[::-1], shape) is None


@pytest.mark.parametrize("factor", [1 / 255, -3.0, 1e-4, 7.7])
def test_scaled(factor):
    pattern = _pattern_values(1000, 1600)
    values = pattern.reshape(20, 30).T.reshape(-1) * np.float32(factor)
    assert _scaled(values, pattern, (20, 30)) == ((1, 0), float(np.float32(factor)))
    assert _scaled(np.random.default_rng(0).random(600, np.float32), pattern, (20, 30)) is None


def test_pieces_of_weights_are_not_taken_for_weights():
    """A graph that only holds a slice of a kernel: nothing can be written there."""

    class Half(layers.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(6, 12), name="kernel")

        def call(self, x):
            return ops.matmul(x, self.kernel[:, :6])

    network = vector_network(Half(name="half"))
    exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    assert "half/kernel" in {exported.weight_names[index] for index in exported.step_graph.inputs}
    assert_follows_new_weights(network, VECTOR)


def test_constants_point_at_the_weights():
    network = vector_network(layers.Dense(16, "relu"))
    graph = export_policy(network, ACTIONS, BATCH, VECTOR).step_graph
    shapes = [weight.shape for weight in network.weights]
    assert set(_find_constants(graph.content, shapes, range(len(shapes)))) == set(graph.constants)


def test_agreement_forgives_a_rare_draw_but_no_float():
    actions, log_probs = np.array([0, 1, 2, 1]), np.array([-0.1, -0.2, -0.3, -0.4], np.float32)
    assert _agree([actions, log_probs], [np.array([0, 1, 2, 0]), log_probs + np.float32([0, 0, 0, 9])])
    assert not _agree([actions, log_probs], [actions, log_probs + np.float32([0, 0.01, 0, 0])])
    assert not _agree([actions, log_probs], [np.array([0, 0, 0, 0]), log_probs])
    assert not _agree([actions], [actions[:3]])


def probe_of(network, batch_size=BATCH):
    """(the exported step graph, what it is checked with, its traced function)."""
    shape, dtype = (6,), np.dtype(np.float32)
    exporter = _Exporter(network, ACTIONS, batch_size, VECTOR, shape, dtype, _other_variables(network))
    traced = exporter._trace("step", batch_size)
    probe = _Probe(traced, exporter._probe_inputs("step"), network)
    return _to_litert(traced, probe, network), probe, traced


def test_the_check_finds_each_weight_that_is_not_written():
    graph, probe, traced = probe_of(vector_network(layers.Dense(16, "tanh")))
    assert probe.failing_weights(graph, traced) == set()
    assert len(graph.constants) == 4
    for missing in graph.constants:
        kept = tuple(constant for constant in graph.constants if constant is not missing)
        assert missing.weight in probe.failing_weights(dataclasses.replace(graph, constants=kept), traced)


def test_the_check_finds_weights_written_wrongly():
    """Two kernels of one shape exchanged; a square kernel transposed; a wrong factor."""
    graph, probe, traced = probe_of(vector_network(layers.Dense(6, "tanh"), layers.Dense(6, "tanh")))
    first, second = (constant for constant in graph.constants if constant.weight in (0, 2))
    others = tuple(constant for constant in graph.constants if constant.weight not in (0, 2))
    swapped = (dataclasses.replace(first, weight=second.weight), dataclasses.replace(second, weight=first.weight))
    transposed = (dataclasses.replace(first, permutation=first.permutation[::-1]), second)
    scaled = (dataclasses.replace(first, factor=1.01), second)
    for wrong in (swapped, transposed, scaled):
        assert probe.failing_weights(dataclasses.replace(graph, constants=others + wrong), traced)


def test_weights_that_only_other_outputs_read_are_unused():
    network = Subclassed()
    network(np.zeros((1, 6), np.float32))
    _, _, traced = probe_of(network)
    policy_head = network.heads[0]
    expected = {id(weight) for weight in (*network.hidden.weights, *policy_head.weights)}
    assert {id(network.weights[index]) for index in traced.used} == expected


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_small_batches_are_checked_on_as_many_rows(batch_size):
    _, probe, _ = probe_of(vector_network(layers.Dense(4)), batch_size)
    assert sum(len(batch[0]) for batch in probe._inputs) >= 8


def test_fallback_where_no_layer_is_to_blame_names_the_operation():
    observation = keras.Input((6,))
    chosen = ops.cast(ops.argmax(observation, axis=-1, keepdims=True), "float32")
    network = heads(observation, observation + chosen)
    with pytest.warns(UserWarning, match=r"BitwiseAnd', outside its layers: .*tf\.BitwiseAnd"):
        export_policy(network, ACTIONS, 4, VECTOR)


def test_fallback_with_a_loop_inside():
    network = vector_network(layers.Reshape((3, 2)), layers.LSTM(5), Inexpressible())
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        policy = Policy.from_network(network, ACTIONS, batch_size=4)
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    assert_agrees(policy, network, ACTIONS, observations(VECTOR, 4))


def test_fallback_for_a_dtype_that_litert_does_not_know():
    space = Box(0, 10, (6,), np.uint64)
    network = networks.default_network(space, ACTIONS)
    with pytest.warns(UserWarning, match=r"tf\.Cast"):
        policy = Policy(export_policy(network, ACTIONS, 4, space))
    assert_agrees(policy, network, ACTIONS, np.arange(24, dtype=np.uint64).reshape(4, 6))


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
)
def test_observations_of_any_other_dtype_need_no_fallback(dtype):
    space = Box(0, 10, (6,), np.dtype(dtype).type)
    network = networks.default_network(space, ACTIONS)
    policy = Policy(export_policy(network, ACTIONS, 4, space))
    assert not policy.exported.fallback
    observation = np.arange(24).reshape(4, 6).astype(policy.exported.observation_dtype)
    assert_agrees(policy, network, ACTIONS, observation)


def test_actors_agree_with_the_learner_after_training():
    """Within the bound for continuous spaces: 1e-5 / min(1, smallest std)."""
    box = Box(-1, 1, (3,), np.float32)
    network = networks.default_network(VECTOR, box)
    policy = Policy.from_network(network, box, batch_size=64, observation_space=VECTOR)
    optimizer = keras.optimizers.Adam(0.01)
    observation = observations(VECTOR, 64)
    for _ in range(20):
        with tf.GradientTape() as tape:
            outputs = networks.call_network(network, observation)
            loss = ops.mean(ops.square(outputs["parameters"] + 1.5)) + ops.mean(ops.square(outputs["value"] - 3))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    policy.set_weights(network.get_weights())
    log_std = network.get_layer("log_std").log_std.numpy()
    assert (log_std < 0).all()
    assert_agrees(policy, network, box, observation, tolerance=1e-5 / min(1.0, float(np.exp(log_std).min())))
