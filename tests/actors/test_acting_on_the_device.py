"""`acting="device"`: the learner's device acts for the actors, with the actions that they would have chosen."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import gymnasium as gym
import keras
import numpy as np
import pytest

from actor_learner.actors.device_acting import ActingError, SharedStep
from actor_learner.actors.pool import ActorPool
from actor_learner.learner.acting import DeviceStep
from actor_learner.networks import default
from tests.support.counting_env import CountingEnv
from tests.support.processes import patience

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

ROWS, ENVS = 24, 6


def make_pool(env, network=None, **kwargs):
    sizes = {"num_envs": ENVS, "unroll_length": ROWS, "vectorization": "sync", "device": "cpu"}
    return ActorPool(env, network, **sizes | kwargs)


def collected(env, network, batches=3, **kwargs):
    """Batches by weights that change, as the learner's would."""
    random, found = np.random.default_rng(0), []
    with make_pool(env, network, **kwargs) as pool:
        weights = pool.network.get_weights()
        for _ in range(batches):
            found.append(pool.collect().copy())
            changes = [random.normal(0, 0.05, weight.shape).astype(np.float32) for weight in weights]
            pool.publish([weight + change for weight, change in zip(weights, changes, strict=True)])
    return found


def fields_of(trajectory):
    """Every array of a trajectory by its name; those of a nested field are numbered."""
    nested = {name: keras.tree.flatten(field) for name, field in trajectory._asdict().items() if field is not None}
    return {f"{name}/{index}": leaf for name, leaves in nested.items() for index, leaf in enumerate(leaves)}


def network_for(env, **options):
    example = gym.make(env) if isinstance(env, str) else env()
    return default.default_network(example.observation_space, example.action_space, hidden_sizes=(8,), **options)


@pytest.mark.parametrize(
    ("env", "options", "lag", "actors"),
    [
        ("CartPole-v1", {}, 0, 0),
        pytest.param("CartPole-v1", {}, 1, 3, marks=pytest.mark.thorough),
        ("Pendulum-v1", {"noise_hold": 4, "normalize_observation": True}, 2, 2),
        ("actor_learner_envs:actor_learner/MaskedTreasure-v0", {}, 0, 2),
    ],
)
def test_trajectories_are_those_of_actors_that_act_by_themselves(env, options, lag, actors):
    network = network_for(env, **options)
    kwargs = {"max_policy_lag": lag, "num_actors": actors}
    expected = collected(env, network, **kwargs)
    found = collected(env, network, acting="device", **kwargs)
    for one, other in zip(expected, found, strict=True):
        for name, field in fields_of(one).items():
            np.testing.assert_allclose(field, fields_of(other)[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_in_free_running_each_actor_acts_by_the_version_of_its_columns():
    network = network_for(CountingEnv)
    other, versions = keras.models.clone_model(network), [network.get_weights()]
    with make_pool(CountingEnv, network, acting="device", num_actors=2, max_policy_lag=3, asynchronous=True) as pool:
        for batch in range(5):
            trajectory = pool.collect()
            for column, version in enumerate(trajectory.policy_version):
                other.set_weights(versions[version])
                logits = other(trajectory.observation[:-1, column])[0]
                log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
                expected = np.take_along_axis(log_probs, trajectory.action[:, column, None].astype(int), -1)[:, 0]
                valid = trajectory.valid[:, column]
                np.testing.assert_allclose(trajectory.behaviour_log_prob[:, column][valid], expected[valid], atol=1e-5)
            versions.append([weight + np.float32(0.1 * batch) for weight in network.get_weights()])
            pool.publish(versions[-1])
        assert pool.version == 5


def test_one_call_acts_for_half_of_the_environments_and_a_closed_pool_holds_no_weights_on_the_device(monkeypatch):
    rows = []

    def run(self, weights, inputs, original=DeviceStep.__call__):
        rows.append(len(inputs))
        return original(self, weights, inputs)

    monkeypatch.setattr(DeviceStep, "__call__", run)
    with make_pool(CountingEnv, network_for(CountingEnv), acting="device", num_actors=4, num_envs=8) as pool:
        pool.collect()
        held = [weakref.ref(step) for step in gc.get_objects() if isinstance(step, SharedStep)]
        assert held
    gc.collect()
    assert not any(step() for step in held)
    assert rows[:2] == [4, 4]  # compiled before the actors ask
    assert set(rows) == {4}
    assert len(rows) - 2 < 4 * ROWS  # fewer calls than if each actor's environments had one of their own


def test_actors_that_wait_for_a_slow_device_are_not_hung(monkeypatch):
    seconds = patience(1.0)

    def run(self, part, asking, original=SharedStep.run):
        time.sleep(1.5 * seconds)
        original(self, part, asking)

    monkeypatch.setattr(SharedStep, "run", run)
    options = {"num_actors": 2, "unroll_length": 1, "actor_timeout": seconds}
    with make_pool(CountingEnv, network_for(CountingEnv), acting="device", **options) as pool:
        pool.collect()
        assert pool.restart_count == 0


def test_an_error_of_the_device_ends_the_pool(monkeypatch):
    def run(self, part, asking):
        raise ArithmeticError("a bad\nday")

    monkeypatch.setattr(SharedStep, "run", run)
    pool = make_pool(CountingEnv, network_for(CountingEnv), acting="device", num_actors=2)
    with pytest.raises(ActingError, match="^The learner's device can't act: ArithmeticError: a bad day; acting='act"):
        pool.collect()


def test_closing_does_not_wait_for_the_device(monkeypatch):
    called, answers = threading.Event(), threading.Event()

    def run(self, part, asking):
        called.set()
        answers.wait()

    monkeypatch.setattr(SharedStep, "run", run)
    pool = make_pool(CountingEnv, network_for(CountingEnv), acting="device", num_actors=2)
    try:
        with pytest.raises(TimeoutError):
            pool.collect(timeout=0.3)
        assert called.wait(patience(60))
        pool.close()
    finally:
        answers.set()
