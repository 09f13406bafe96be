"""A small network with gradients by hand, one that Keras can't rebuild, and comparisons of weights."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers


def linear_network(columns=2):
    """Returns a network that is linear in the observation, so that its gradients can be computed by hand."""
    x = keras.Input((4,))
    rng = np.random.default_rng(7)
    parameters, value = layers.Dense(columns, use_bias=False), layers.Dense(1, use_bias=False)
    network = keras.Model(x, (parameters(x), value(x)))
    network.set_weights([rng.normal(size=weight.shape).astype(np.float32) for weight in network.weights])
    return network


def weights_of(network):
    return [weight.copy() for weight in network.get_weights()]


def same_weights(first, second):
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class Unserializable(keras.Model):
    """Keras can't rebuild it from a file: its argument is in no config."""

    def __init__(self, columns):
        super().__init__()
        self.heads = [keras.layers.Dense(columns), keras.layers.Dense(1)]

    def call(self, observation):
        return self.heads[0](observation), self.heads[1](observation)


def trace_count(learner):
    """The number of graphs of an update that TensorFlow has traced."""
    return len(learner._compiled._traced)
