"""The cache of exported policies."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from keras import layers

import actor_learner as al
from actor_learner.policy.export import cache, exporting, litert
from actor_learner.spaces.spaces import Spaces

pytestmark = pytest.mark.slow

KEY_OF = cache.key_of  # before this folder's fixture replaces it
SPACES = Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "key_of", KEY_OF)
    monkeypatch.setenv("ACTOR_LEARNER_CACHE", str(tmp_path))
    return tmp_path / "policies"


@pytest.fixture
def conversions(monkeypatch):
    """The networks that were converted, in order."""
    done, convert = [], litert.convert_network

    def counted(network, *arguments):
        done.append(network)
        return convert(network, *arguments)

    monkeypatch.setattr(litert, "convert_network", counted)
    return done


def network(seed=0, **options):
    return al.default_network(SPACES.observation_space, SPACES.action_space, hidden_sizes=(8,), seed=seed, **options)


def own(layer):
    x = keras.Input((3,))
    h = layer(x)
    return keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)), name="own")


@keras.saving.register_keras_serializable(package="test_export_cache")
class Doubled(layers.Layer):
    def call(self, x):
        return 2 * x


def doubled(x):
    return 2 * x


def test_another_network_of_the_same_architecture_is_not_converted_again(conversions, folder):
    first, second = network(seed=1), network(seed=2)
    exporting.export_network(first, SPACES, 4)
    exported = exporting.export_network(second, SPACES, 4)
    assert conversions == [first]
    observation = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    parameters, value = (keras.ops.convert_to_numpy(output) for output in second(observation))
    policy = al.Policy(exported)
    np.testing.assert_allclose(policy.value(observation), value[:, 0], atol=1e-5)
    np.testing.assert_array_equal(policy.act(observation), parameters.argmax(axis=1))
    assert exported.weight_names == tuple(weight.path for weight in second.weights)
    (weights,) = folder.glob("*/weights.npy")
    assert np.load(weights).size == 0


def test_what_the_graphs_depend_on_is_in_the_key():
    masked = Spaces(SPACES.observation_space, SPACES.action_space, masked=True)
    keys = {
        KEY_OF(network(), SPACES, 4),
        KEY_OF(network(), SPACES, 5),
        KEY_OF(network(), masked, 4),
        KEY_OF(network(activation="relu"), SPACES, 4),
        KEY_OF(network(normalize_observation=True), SPACES, 4),
    }
    assert len(keys) == 5


def test_names_that_keras_counts_on_are_not_in_the_key():
    assert KEY_OF(own(layers.Dense(4)), SPACES, 4) == KEY_OF(own(layers.Dense(4)), SPACES, 4)
    named = [KEY_OF(own(layers.Activation(kind, name=kind)), SPACES, 4) for kind in ("relu", "tanh")]
    assert len(set(named)) == 2
    images = Spaces(Box(0, 255, (40, 40, 3), np.uint8), Discrete(2))
    pixels = [al.default_network(images.observation_space, images.action_space, seed=0) for _ in range(2)]
    assert len({KEY_OF(network, images, 4) for network in pixels}) == 1


def test_outputs_are_in_the_key_by_the_numbers_of_their_layers():
    def chain(*names):
        x = h = keras.Input((3,))
        found = {name: (h := layers.Dense(2, name=name)(h)) for name in names}
        return keras.Model(x, {"parameters": found["a"], "value": layers.Dense(1)(h)})

    assert KEY_OF(chain("a", "b"), SPACES, 4) != KEY_OF(chain("b", "a"), SPACES, 4)
    assert KEY_OF(chain("a", "b"), SPACES, 4) == KEY_OF(chain("a", "b"), SPACES, 4)


def test_names_of_inputs_that_belong_to_leaves_are_in_the_key():
    nested = Spaces(Dict(near=Box(-1, 1, (3,)), far=Box(-1, 1, (3,))), Discrete(2))

    def minus(first, second):
        x, y = keras.Input((3,), name=first), keras.Input((3,), name=second)
        h = layers.Subtract()([x, y])
        return keras.Model([x, y], (layers.Dense(2)(h), layers.Dense(1)(h)))

    assert KEY_OF(minus("near", "far"), nested, 4) == KEY_OF(minus("near", "far"), nested, 4)
    assert KEY_OF(minus("near", "far"), nested, 4) != KEY_OF(minus("far", "near"), nested, 4)


@keras.saving.register_keras_serializable(package="test_export_cache")
class Scaled:
    def __call__(self, x):
        return 3 * x

    def get_config(self):
        return {}


class Operation(keras.Operation):
    def call(self, x):
        return 2 * x

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def adapted():
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(100.0, 10.0, (64, 3)))
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Doubled(),
        layers.Lambda(doubled),
        layers.Dense(4, activation=doubled),
        layers.Dense(4, activation=lambda x: 2 * x),
        layers.Activation(Scaled()),
        layers.Dense(4, kernel_regularizer=Scaled()),
        Operation(),
        keras.Sequential([Doubled()]),
        adapted(),
    ],
    ids=["class", "Lambda", "function", "lambda", "object", "regularizer", "operation", "nested", "statistics"],
)
def test_code_of_the_users_has_no_key(layer):
    """The same config may compute something else in the next run, or in the same one with other statistics."""
    assert KEY_OF(own(layer), SPACES, 4) is None
    assert KEY_OF(own(layers.Dense(4, activation="gelu")), SPACES, 4) is not None


def test_a_damaged_entry_is_converted_again(folder, conversions):
    exporting.export_network(network(), SPACES, 4)
    (graph,) = folder.glob("*/step.tflite")
    graph.write_bytes(graph.read_bytes()[:-8] + bytes(8))
    exporting.export_network(network(), SPACES, 4)
    assert len(conversions) == 2


def test_without_a_cache_nothing_is_kept(monkeypatch, exported):
    monkeypatch.setenv("ACTOR_LEARNER_CACHE", "")
    assert KEY_OF(network(), SPACES, 4) is None
    cache.write("key", exported)
    assert cache.read("key") is None


def test_a_folder_that_others_can_write_to_is_not_read(folder, exported):
    cache.write("key", exported)
    assert cache.read("key") is not None
    os.chmod(folder, 0o777)
    assert cache.read("key") is None


def test_the_oldest_entries_are_removed(folder, monkeypatch, exported):
    monkeypatch.setattr(cache, "MAX_KEPT", 2)
    for number, key in enumerate("abc"):
        cache.write(key, exported)
        os.utime(folder / key, (number, number))
    assert sorted(os.listdir(folder)) == ["b", "c"]
