"""The learner with masks, and with observations and actions of several leaves."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from keras import layers, ops, tree

import actor_learner as al
from actor_learner.learner import backend, batch as rows_module
from actor_learner.learner.backend import map_chunks
from actor_learner.learner.batch import fields_of, in_chunks, packed, packed_fields, side_by_side, without_invalid
from actor_learner.networks import contract
from actor_learner.networks.contract import network_distribution
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import action_structure
from actor_learner.spaces.trajectory import map_leaves
from actor_learner.spaces.validate import validate_trajectory
from tests.support.small_networks import linear_network, same_weights, trace_count, weights_of
from tests.support.trajectories import HYBRID, SENSES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = [pytest.mark.usefixtures("without_xla"), pytest.mark.slow]

SMALL_SENSES = Dict({key: space for key, space in SENSES.spaces.items() if key != "camera"})


@dataclass(frozen=True, kw_only=True)
class Watching(al.PPO):
    """Reports how far the learner's log-probabilities are from the behaviour's, before the update and in its loss."""

    epochs: int = 1
    minibatch_size: int | None = None

    def targets(self, batch, value):
        off = ops.where(batch["valid"], ops.abs(batch["target_log_prob"] - batch["behaviour_log_prob"]), 0.0)
        return {**super().targets(batch, value), "off": off}

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        ratio = ops.exp(outputs["log_prob"] - minibatch["behaviour_log_prob"])
        off_ratio = ops.max(ops.where(minibatch["valid"], ops.abs(ratio - 1.0), 0.0))
        return loss, {**metrics, "off_by": ops.max(minibatch["off"]), "ratio_off_by": off_ratio}


def on_policy(trajectory, network, action_space):
    """Return the trajectory with the network's own log-probabilities."""
    steps, columns = trajectory.reward.shape

    def flat(leaf):
        return np.nan_to_num(leaf[:steps]).reshape(steps * columns, *leaf.shape[2:])

    parameters = contract.call_network(network, map_leaves(flat, trajectory.observation))["parameters"]
    action = action_structure(action_space).flatten(map_leaves(flat, trajectory.action))
    mask = None
    if trajectory.action_mask is not None:
        mask = flat(trajectory.action_mask) | ~flat(trajectory.valid)[:, None]
    log_prob = network_distribution(network, Spaces(None, action_space)).log_prob(parameters, action, mask)
    return trajectory._replace(behaviour_log_prob=ops.convert_to_numpy(log_prob).reshape(steps, columns))


@pytest.mark.parametrize(
    ("action_space", "masked", "distribution"),
    [
        (HYBRID, True, "squashed"),
        pytest.param(HYBRID, False, "gaussian", marks=[pytest.mark.xla, pytest.mark.thorough]),
    ],
)
def test_the_ratio_of_ones_own_actions_is_1(action_space, masked, distribution):
    network = al.default_network(SMALL_SENSES, action_space, distribution=distribution, hidden_sizes=(8,))
    trajectory = random_trajectory(action_space, observation_space=SMALL_SENSES, invalid_rate=0.2, masked=masked)
    before = weights_of(network)
    learner = al.Learner(network, Watching(), action_space=action_space)
    metrics = learner.update(on_policy(trajectory, network, action_space))
    assert metrics["off_by"] <= 1e-5
    assert metrics["ratio_off_by"] <= 1e-5
    assert not same_weights(before, network.get_weights())
    assert all(np.isfinite(weight).all() for weight in network.get_weights())


@pytest.mark.thorough
def test_what_stands_in_invalid_rows_changes_nothing():
    """Invalid rows with NaN, empty masks and forbidden actions equal invalid rows with harmless numbers."""
    trajectory = random_trajectory(HYBRID, observation_space=SMALL_SENSES, invalid_rate=0.3, masked=True)
    invalid = ~trajectory.valid

    def other(leaf):
        leaf = leaf.copy()
        leaf[: len(invalid)][invalid] = 0.37 if leaf.dtype.kind == "f" else 1
        return leaf

    filled = trajectory._replace(
        observation=map_leaves(other, trajectory.observation),
        action=map_leaves(other, trajectory.action),
        action_mask=trajectory.action_mask | invalid[..., None],
        reward=other(trajectory.reward),
        behaviour_log_prob=other(trajectory.behaviour_log_prob),
    )
    weights = []
    for batch in (trajectory, filled):
        network = al.default_network(SMALL_SENSES, HYBRID, normalize_observation=True, hidden_sizes=(8,))
        learner = al.Learner(network, al.PPO(minibatch_size=32, epochs=1), action_space=HYBRID)
        for _ in range(2):  # the first update only sets the statistics
            learner.update(batch)
        weights.append(weights_of(network))
        assert all(np.isfinite(weight).all() for weight in weights[-1])
    assert same_weights(*weights)


def test_masks_are_in_log_prob_and_entropy_of_the_loss():
    """One step of A2C with an entropy bonus and plain SGD, by hand: forbidden logits are -inf."""
    network = linear_network(3)
    policy = weights_of(network)[0].astype(np.float64)
    trajectory = random_trajectory(Discrete(3), masked=True, end_rate=1.0)
    algorithm = al.A2C(optimizer=keras.optimizers.SGD(0.1), ent_coef=0.01, vf_coef=0.0)
    value = ops.convert_to_numpy(network(trajectory.observation[:-1].reshape(-1, 4))[1])[:, 0]
    metrics = al.Learner(network, algorithm, action_space=Discrete(3)).update(trajectory)

    x = trajectory.observation[:-1].reshape(-1, 4).astype(np.float64)
    target = (trajectory.reward + algorithm.gamma * trajectory.truncation_value).reshape(-1)
    exponential = np.exp(x @ policy) * trajectory.action_mask.reshape(-1, 3)
    probability = exponential / exponential.sum(-1, keepdims=True)
    log_probability = np.log(np.where(probability > 0, probability, 1.0))
    entropy = -(probability * log_probability).sum(-1, keepdims=True)
    of_log_prob = np.eye(3)[trajectory.action.reshape(-1)] - probability
    of_entropy = -probability * (log_probability + entropy)
    d_logits = -((target - value)[:, None] * of_log_prob + 0.01 * of_entropy) / len(x)
    np.testing.assert_allclose(network.get_weights()[0], policy - 0.1 * x.T @ d_logits, rtol=1e-4, atol=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy.mean(), rel=1e-4)


def test_the_mask_leaf_of_an_observation_is_the_mask():
    space = Dict(position=VECTOR, action_mask=MultiBinary(3))
    trajectory = random_trajectory(Discrete(3), masked=True, invalid_rate=0.2)
    mask = trajectory.action_mask
    leaf = np.concatenate([mask, np.zeros_like(mask[:1])]).astype(np.int8)
    leaf[:-1][~trajectory.valid] = 77
    observation = {"position": trajectory.observation, "action_mask": leaf}
    weights = []
    for given in (mask, None):
        network = al.default_network(space, Discrete(3), hidden_sizes=(8,))
        learner = al.Learner(network, al.PPO(epochs=1), action_space=Discrete(3))
        learner.update(trajectory._replace(observation=observation, action_mask=given))
        weights.append(weights_of(network))
    assert same_weights(*weights)


def test_each_leaf_has_statistics_of_its_own():
    space = Dict(near=VECTOR, far=Box(-np.inf, np.inf, (2,)), kind=Discrete(3))
    trajectory = random_trajectory(observation_space=space, invalid_rate=0.2)
    trajectory.observation["far"][:] = trajectory.observation["far"] * 100 + 1000
    network = al.default_network(space, TWO_ACTIONS, normalize_observation=True, hidden_sizes=(8,))
    al.Learner(network, al.PPO(), action_space=TWO_ACTIONS).update(trajectory)
    layer_of = {layer.leaf: layer for layer in contract.normalization_layers(network)}
    for name in ("near", "far"):
        seen = trajectory.observation[name][:-1][trajectory.valid]
        np.testing.assert_allclose(layer_of[name].mean.numpy(), seen.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(layer_of[name].variance.numpy(), seen.var(0), rtol=1e-3)


def test_a_layer_that_names_no_leaf_is_refused():
    inputs = {name: keras.Input((4,), name=name) for name in ("a", "b")}
    h = layers.Concatenate()([al.ObservationNormalization()(inputs["a"]), inputs["b"]])
    network = keras.Model(inputs, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    with pytest.raises(ValueError, match=r"must name its leaf.*one of \['a', 'b'\]"):
        learner.update(random_trajectory(observation_space=Dict(a=VECTOR, b=VECTOR)))


def test_a_composite_is_traced_once_and_later_batches_have_the_same_leaves():
    network = al.default_network(SMALL_SENSES, HYBRID, hidden_sizes=(8,))
    learner = al.Learner(network, al.PPO(epochs=1), action_space=HYBRID)
    for seed in range(3):
        batch = random_trajectory(HYBRID, observation_space=SMALL_SENSES, masked=True, invalid_rate=0.1, seed=seed)
        learner.update(batch)
    assert trace_count(learner) == 1
    other = random_trajectory(HYBRID, observation_space=Dict(switches=SMALL_SENSES["switches"]), masked=True)
    with pytest.raises(ValueError, match=r"rows of shape {'dials'.* Received: {'switches': \(2, 2\)}"):
        learner.update(other)


def test_leaves_reach_the_device_in_their_own_dtypes():
    trajectory = random_trajectory(HYBRID, observation_space=SENSES, invalid_rate=0.3, masked=True)
    trajectory = validate_trajectory(trajectory, Spaces(SENSES, HYBRID))
    join = backend.Compiled(lambda parts: {**parts[0], **parts[1]}, (), with_xla=False)
    sent, fields = join(packed_fields(trajectory, greedy=True)), fields_of(trajectory, greedy=True)
    for name, whole in fields.items():
        for found, leaf in zip(tree.flatten(sent[name]), tree.flatten(whole), strict=True):
            assert found.dtype == leaf.dtype
            np.testing.assert_array_equal(found, leaf)
    of_name = backend.Compiled(lambda parts: parts[0], (), with_xla=False)
    assert [list(of_name(packed(({name: np.zeros(3)}, None)))) for name in "ab"] == [["a"], ["b"]]
    batch = side_by_side(without_invalid(sent))
    observation = batch["observation"]
    assert observation["camera"].dtype == tf.uint8
    assert observation["camera"].shape == (17 * 4, 36, 40, 3)
    assert observation["switches"].dtype == tf.int8
    assert [leaf.dtype for leaf in observation["pair"]] == [tf.float32, tf.int32]
    assert bool(tf.reduce_all(batch["action_mask"] | batch["valid"][:, None]))
    assert "policy_version" not in batch


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_only_invalid_rows_are_zeroed_in_batches_small_and_large(threshold, monkeypatch):
    monkeypatch.setattr(rows_module, "_LARGE", threshold)
    replace = tf.function(without_invalid, autograph=False)
    for invalid_rate in (0.0, 0.3):
        trajectory = random_trajectory(HYBRID, observation_space=SENSES, invalid_rate=invalid_rate)
        camera, valid = trajectory.observation["camera"], np.concatenate([trajectory.valid, np.ones((1, 4), bool)])
        found = replace(backend.to_device(fields_of(trajectory, greedy=False)))["observation"]["camera"]
        np.testing.assert_array_equal(found, camera * valid[..., None, None, None])


@pytest.mark.parametrize(("total", "fitting"), [(1, 1), (7, 1), (8, 1), (20, 1), (20, 10)])
def test_chunks_give_what_the_whole_gives(total, fitting, monkeypatch):
    monkeypatch.setattr(rows_module, "CHUNK_NUMBERS", 16)
    sizes = []

    def function(rows):
        sizes.append(rows["x"].shape[0])
        return tf.reduce_sum(rows["x"], axis=1), rows["y"] * 2.0

    x = np.arange(2.0 * total, dtype=np.float32).reshape(total, 2)
    y = np.arange(total, dtype=np.float32)
    first, second = tf.function(lambda rows: in_chunks(function, rows, 2, [], fitting))({"x": x, "y": y})
    np.testing.assert_array_equal(first, x.sum(1))
    np.testing.assert_array_equal(second, 2 * y)
    assert max(sizes) <= max(8, fitting)
    assert fitting == 1 or sizes == [10]


@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize(("device", "rows"), [("/CPU:0", 8), ("/GPU:0", 16)])
def test_a_gpu_evaluates_as_many_rows_at_once_as_a_minibatch_has(device, rows, monkeypatch):
    monkeypatch.setattr(rows_module, "CHUNK_NUMBERS", 8 * 4)
    monkeypatch.setattr("actor_learner.learner.backend.resolve_device", lambda *_: device)
    monkeypatch.setattr("actor_learner.learner.backend.device", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("actor_learner.learner.backend.place", lambda *_: None)
    sizes = []

    def watched(function, index, state):
        sizes.append(index.shape)
        return map_chunks(function, index, state)

    monkeypatch.setattr("actor_learner.learner.backend.map_chunks", watched)
    learner = al.Learner(linear_network(), al.PPO(minibatch_size=16), action_space=TWO_ACTIONS)
    learner.trace(random_trajectory(steps=15, columns=4))
    assert sizes == [(64 // rows, rows)]


def test_mixed_precision_takes_its_own_log_probabilities_of_its_own_batches():
    """Actors compute in float32: at lag 0 the ratio would not be 1. Other columns keep the actors' numbers."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(16,))
    finally:
        keras.config.set_dtype_policy("float32")
    trajectory = random_trajectory()._replace(policy_version=np.zeros(4, np.int64))
    learner = al.Learner(network, Watching(learning_rate=1e-9), action_space=TWO_ACTIONS)
    for on_policy in (True, np.ones(4, bool)):
        assert learner.update(trajectory, on_policy=on_policy)["ratio_off_by"] <= 1e-5
    for on_policy in (False, np.arange(4) > 0):
        assert learner.update(trajectory, on_policy=on_policy)["ratio_off_by"] > 0.01


def test_tf32_is_refused_on_a_cpu_and_takes_its_own_log_probabilities(monkeypatch):
    def learner():
        network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(16,))
        algorithm = Watching(learning_rate=1e-9)
        return al.Learner(network, algorithm, action_space=TWO_ACTIONS, device="cpu", tf32=True)

    with pytest.raises(ValueError, match=r"^TF32 is .* use precision='float32' or .* Received: tf32 on /CPU:0$"):
        learner()
    monkeypatch.setattr("actor_learner.learner.base.check_tf32", lambda device: None)
    update, trajectory = learner().update, random_trajectory()
    assert update(trajectory, on_policy=True)["ratio_off_by"] <= 1e-5
    assert update(trajectory, on_policy=False)["ratio_off_by"] > 0.01
