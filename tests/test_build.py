"""What a config builds: the policy that a run saves, converted while the first batch is collected; the threads."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box
from keras import layers

import actor_learner as al
from actor_learner import build
from actor_learner.system import machine
from tests.support.exporting import OneCell
from tests.support.small_networks import Unserializable

pytestmark = pytest.mark.usefixtures("without_xla")

MASKED = "actor_learner_envs:actor_learner/MaskedTreasure-v0"


class Halves(keras.callbacks.Callback):
    """Halves all weights at the end."""

    def on_train_end(self, logs=None):
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


class ForbidsConverting(keras.callbacks.Callback):
    """Lets any conversion fail from the first update on."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.monkeypatch = monkeypatch

    def on_train_batch_end(self, batch, logs=None):
        self.monkeypatch.setattr(tf.lite.TFLiteConverter, "convert", self._refuse)

    def _refuse(self, *_):
        pytest.fail("a network is converted")


class Quantizes(keras.callbacks.Callback):
    """Replaces kernels at the end by others, of another dtype, and their scales."""

    def on_train_end(self, logs=None):
        self.model.quantize("int8")


def train(tmp_path, **changes):
    fields = {"num_actors": 0, "envs_per_actor": 3, "unroll_length": 8, "total_steps": 48, "quiet": True}
    algorithm = al.PPO(minibatch_size=8, epochs=1, learning_rate=0.1)
    return al.train(al.TrainConfig(algorithm=algorithm, run_dir=tmp_path / "run", **(fields | changes)))


def subclassed(observation_space, action_space):
    return Unserializable(al.parameter_size(action_space))


def not_resizable(observation_space, action_space):
    x = keras.Input(observation_space.shape)
    hidden = OneCell(layers.GRUCell(7))(x)
    return keras.Model(x, (layers.Dense(al.parameter_size(action_space))(hidden), layers.Dense(1)(hidden)))


FURTHER = "choices", "actors in processes"
CASES = {
    "choices": {"env": "CartPole-v1"},
    "choices with masks": {"env": MASKED},
    "actors in processes": {"env": "Pendulum-v1", "num_actors": 1},
    "subclassed network": {"env": "Pendulum-v1", "network": subclassed},
    "graphs that don't resize": {"env": "Pendulum-v1", "network": not_resizable},
    "one environment, weights of a callback": {"env": "Pendulum-v1", "envs_per_actor": 1, "callbacks": [Halves()]},
}


@pytest.mark.filterwarnings("ignore:Keras can't rebuild network", "ignore:This policy was trained with action masks")
@pytest.mark.parametrize(
    "fields", [pytest.param(CASES[case], id=case, marks=[pytest.mark.thorough] * (case in FURTHER)) for case in CASES]
)
def test_a_run_saves_the_policy_that_its_network_gives_and_converts_nothing_for_it(tmp_path, monkeypatch, fields):
    callbacks = [*fields.get("callbacks", ()), ForbidsConverting(monkeypatch)]
    result = train(tmp_path, **{**fields, "callbacks": callbacks})
    monkeypatch.undo()
    saved = al.load_policy(result.run_dir, seed=3)
    spaces = {"action_space": saved.action_space, "observation_space": saved.observation_space}
    expected = al.Policy.from_network(result.network, **spaces, seed=3)
    assert saved.batch_size == 1
    assert saved.exported.masked == expected.exported.masked
    assert saved.exported.trained_with_masks == (fields["env"] == MASKED)
    generator = np.random.default_rng(0)
    for shape in ((), (1,), (5,), ()):
        observation = generator.random((*shape, *saved.observation_space.shape), np.float32)
        for name in ("step", "act", "value"):
            ours, theirs = (tf.nest.flatten(getattr(policy, name)(observation)) for policy in (saved, expected))
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_callback_may_replace_the_networks_weights_by_others(tmp_path):
    result = train(tmp_path, env="CartPole-v1", hidden_sizes=(8,), callbacks=[Quantizes()])
    saved = al.load_policy(result.run_dir)
    expected = al.Policy.from_network(result.network, saved.action_space)
    observation = np.float32([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(saved.value(observation), expected.value(observation), atol=1e-5)


@pytest.mark.xla  # by the rule of which it is decided
@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({}, 1),
        ({"hidden_sizes": (1024, 1024), "max_policy_lag": 0}, 4),
        ({"unroll_length": 4096, "algorithm": al.A2C()}, 4),
        ({"network": subclassed, "max_policy_lag": 0}, 4),
        ({"hidden_sizes": (1024, 1024)}, 2),
    ],
)
def test_a_small_network_learns_on_one_core(monkeypatch, changes, cores):
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    config = al.TrainConfig(num_actors=2, **changes)
    assert build._learner_cores(config, Box(-1, 1, (4,))) == cores


@pytest.mark.parametrize("algorithm", [al.PPO(), al.DQN()])
def test_a_function_that_returns_no_network_is_named(tmp_path, algorithm):
    config = al.TrainConfig(
        env="CartPole-v1", algorithm=algorithm, network=lambda o, a: None, run_dir=tmp_path, num_actors=0, quiet=True
    )
    with pytest.raises(ValueError, match="`network` must be a keras.Model. Received: network=None"):
        al.train(config)


@pytest.mark.parametrize(
    ("name", "value", "needed", "missing"),
    [
        ("eval_episodes", 3, {"eval_every": 9}, {"eval_every": None}),
        ("memory_size", 8, {"memory": "gru"}, {"memory": None}),
        ("histogram_updates", 2, {"tensorboard": True}, {"tensorboard": False}),
    ],
)
def test_a_setting_that_needs_another_one_warns_without_it(name, value, needed, missing, tmp_path, recwarn):
    build.check_run(al.TrainConfig(run_dir=tmp_path / "run", **{name: value}, **needed), resume=False)
    assert not recwarn
    with pytest.warns(UserWarning, match=f"`{name}` has no effect without `{next(iter(needed))}`. Received: {name}="):
        build.check_run(al.TrainConfig(run_dir=tmp_path / "run", **{name: value}, **missing), resume=False)
