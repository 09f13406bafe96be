"""Networks that are hard to export, and checks of exported ones."""

from __future__ import annotations

import keras
import numpy as np
from gymnasium.spaces import Box, Discrete
from keras import layers, ops

from actor_learner.networks import contract
from actor_learner.networks.layers import BatchRenormalization
from actor_learner.policy.export.verify import draw_leaf
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces

ACTIONS = Discrete(3)
VECTOR = Box(-3, 3, (6,), np.float32)
IMAGE = Box(0, 255, (16, 16, 3), np.uint8)
BATCH = 8
COARSE = 1e-3
"""Tolerance beyond which the most probable actions themselves may differ."""


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


@keras.saving.register_keras_serializable(package="test_export")
class Noisy(layers.Dense):
    """Adds noise to its kernel at each call, as NoisyNet does."""

    def __init__(self, units, seed=7, **kwargs):
        super().__init__(units, **kwargs)
        self.seed, self.generator = seed, keras.random.SeedGenerator(seed)

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}

    def call(self, x):
        return super().call(x) + ops.matmul(x, keras.random.normal(self.kernel.shape, seed=self.generator))


class Softplus(layers.Layer):
    """Multiplies by softplus(weight), which the converter folds."""

    def build(self, input_shape):
        self.raw = self.add_weight(shape=(input_shape[-1], 5), name="raw")

    def call(self, x):
        return ops.matmul(x, ops.softplus(self.raw))


class Half(layers.Layer):
    """Uses a part of its kernel: the whole weight can't be written where the graph holds it."""

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 12), name="kernel")

    def call(self, x):
        return ops.matmul(x, self.kernel[:, :6])


class Counter(layers.Layer):
    """Reads one integer weight, and has another that it doesn't read."""

    def build(self, input_shape):
        self.used = self.add_weight(shape=(), dtype="int32", initializer="ones", trainable=False, name="used")
        self.unused = self.add_weight(shape=(), dtype="int64", initializer="ones", trainable=False, name="unused")

    def call(self, x):
        return x / ops.cast(self.used + 1, "float32")


class RawAndExponential(layers.Layer):
    """Uses one weight directly and inside a function that the converter folds."""

    def build(self, input_shape):
        self.raw = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="raw")

    def call(self, x):
        return (x + self.raw) * ops.exp(self.raw)


class Inexpressible(layers.Layer):
    """LiteRT has no BitwiseAnd, which keras.ops.argmax needs."""

    def call(self, x):
        return x + ops.cast(ops.argmax(x, axis=-1, keepdims=True), "float32")


class Untracked(layers.Layer):
    """Uses a TensorFlow variable that Keras doesn't track."""

    def build(self, input_shape):
        import tensorflow as tf

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


def siamese():
    observation = keras.Input((6,))
    shared = layers.Dense(8, "tanh")
    return heads(observation, layers.Concatenate()([shared(observation[:, :3]), shared(observation[:, 3:] * 3.0)]))


def with_policy(policy):
    observation = keras.Input((6,))
    hidden = layers.Dense(16, "tanh", dtype=policy)(observation)
    normalized = layers.LayerNormalization(dtype=policy)(hidden)
    return keras.Model(observation, (layers.Dense(3, dtype=policy)(normalized), layers.Dense(1, dtype=policy)(hidden)))


def zeros(network):
    """Returns the network with weights of zero: no change before a policy head of zeros shows in any output."""
    network.set_weights([np.zeros_like(weight) for weight in network.get_weights()])
    return network


def conv(**kwargs):
    return layers.Conv2D(8, 3, 2, **kwargs)


VECTOR_NETWORKS = {
    "dense": lambda: vector_network(layers.Dense(16, "relu")),
    "layer normalization": lambda: vector_network(layers.Dense(16, "tanh"), layers.LayerNormalization()),
    "batch normalization after dense": lambda: vector_network(layers.Dense(16), layers.BatchNormalization()),
    "batch normalization before dense": lambda: vector_network(layers.BatchNormalization(), layers.Dense(8)),
    "batch renormalization": lambda: vector_network(BatchRenormalization(), layers.Dense(8), BatchRenormalization()),
    "gru cell": lambda: vector_network(OneCell(layers.GRUCell(7))),
    "lstm cell": lambda: vector_network(OneCell(layers.LSTMCell(7))),
    "lstm over a sequence": lambda: vector_network(layers.Reshape((3, 2)), layers.LSTM(5)),
    "attention": attention,
    "prelu": lambda: vector_network(layers.Dense(9), layers.PReLU()),
    "siamese, one side scaled": siamese,
    "softplus(weight)": lambda: vector_network(Softplus()),
    "scale before dense": lambda: vector_network(Scale(), layers.Dense(8)),
    "scale after dense": lambda: vector_network(layers.Dense(8), Scale()),
    "half of a kernel": lambda: vector_network(Half()),
    "weights of zero": lambda: zeros(vector_network(Scale(), layers.Dense(8))),
    # Patterns of weights would start at this number, were they not odd.
    "a constant like a weight": lambda: vector_network(layers.Dense(8, "tanh"), layers.Rescaling(1 / 32)),
    "weight raw and folded": lambda: vector_network(layers.Dense(8), RawAndExponential()),
    "integer weights": lambda: vector_network(Counter()),
    "untracked variable": lambda: vector_network(Untracked()),
    "dropout": lambda: vector_network(layers.Dense(8), layers.Dropout(0.5)),
    "1D convolution": lambda: vector_network(layers.Reshape((3, 2)), layers.Conv1D(5, 2), layers.Flatten()),
    "subclassed": Subclassed,
    "mixed precision": lambda: with_policy("mixed_bfloat16"),
    "mixed precision of float16": lambda: with_policy("mixed_float16"),
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
    """Returns other values for all weights, of usual sizes; variances stay positive."""
    generator = np.random.default_rng(5)

    def change(weight):
        other = weight + 0.2 * generator.standard_normal(weight.shape)
        if not np.issubdtype(weight.dtype, np.floating):
            return weight + 2
        return (np.abs(other) if (weight > 0).all() else other).astype(weight.dtype)

    return [change(weight) for weight in network.get_weights()]


def observations(space, rows, seed=6):
    """Returns valid observations of a space as in a trajectory: a nest of arrays `[rows, ...]`."""
    generator = np.random.default_rng(seed)
    structure = spaces.observation_structure(space)
    return structure.unflatten([draw_leaf(leaf, generator, rows) for leaf in structure.leaves])


def assert_agrees(policy, network, action_space, observation, tolerance=1e-5, mask=None):
    """Compares the policy's log-probabilities, modes and values with Keras's."""
    structure = spaces.action_structure(action_space)
    outputs = contract.call_network(network, keras.tree.map_structure(ops.convert_to_tensor, observation))
    distribution = contract.network_distribution(network, Spaces(None, action_space))
    action, log_prob = policy.step(observation, mask)
    leaves = [ops.convert_to_tensor(leaf) for leaf in structure.flatten(action)]
    expected = distribution.log_prob(outputs["parameters"], leaves, mask)
    np.testing.assert_allclose(log_prob, expected, atol=tolerance, rtol=0)
    np.testing.assert_allclose(policy.value(observation), outputs["value"], atol=tolerance, rtol=1e-5)
    modes = distribution.mode(outputs["parameters"], mask)
    if tolerance > COARSE:  # in half precision two actions may be equally likely
        likeliest = policy.mode_leaves(structure_of(policy).flatten(observation), mask)
        log_probs = [distribution.log_prob(outputs["parameters"], leaves, mask) for leaves in (likeliest, modes)]
        np.testing.assert_allclose(*log_probs, atol=tolerance, rtol=0)
        return
    expected_leaves = structure.flatten(policy.to_env(structure.unflatten([np.asarray(leaf) for leaf in modes])))
    acted = structure.flatten(policy.act(as_the_environment_gives_it(policy, observation), action_mask=mask))
    for ours, theirs in zip(acted, expected_leaves, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)


def structure_of(policy):
    """Returns the structure of the policy's observations."""
    return spaces.observation_structure(policy.observation_space)


def as_the_environment_gives_it(policy, observation):
    """Converts observations of a trajectory, counted from 0, to the environment's, counted from the space's start."""
    structure = structure_of(policy)
    if all(leaf.start is None for leaf in structure.leaves):
        return observation
    leaves = zip(structure.leaves, structure.flatten(observation), strict=True)
    return structure.unflatten([value if leaf.start is None else value + leaf.start for leaf, value in leaves])


def logits_network(columns):
    """Returns a network whose logits are the observation itself."""
    observation = keras.Input((columns,))
    parameters = layers.Identity()(observation)
    return keras.Model(observation, (parameters, layers.Dense(1)(observation)))


def give_draws(noise, draws):
    """Have `noise` draw these uniforms; what it returns is 1 minus these."""
    noise._new_stream = lambda row: (_GivenDraws(draws[row % len(draws)]), None)
    noise.reseed(0)


class _GivenDraws:
    def __init__(self, draw):
        self.draw = np.float32(draw)

    def random(self, size, dtype):
        return np.full(size, self.draw)
