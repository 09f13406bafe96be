"""Learners of quantiles: QR-DQN and TQC against NumPy, what they converge to, and what they refuse."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK
from actor_learner.networks.contract import building_in
from actor_learner.spaces.structure import action_structure
from tests.algorithms.test_quantiles import loss_and_slope
from tests.learner.test_replay import (
    OFTEN,
    SGD,
    SMALL,
    batch,
    dqn,
    gradients_of,
    make_learner,
    mlp,
    models_and_minibatch,
    outputs_of,
    squashed,
    tensors,
)
from tests.support.trajectories import TWO_ACTIONS, VECTOR

pytestmark = pytest.mark.usefixtures("without_xla")


def qrdqn(**fields):
    return al.QRDQN(**{**OFTEN, "quantiles": 5, **fields})


def tqc(**fields):
    return al.TQC(**{**OFTEN, "quantiles": 5, "dropped_quantiles": 2, **fields})


def losses_of(target, current):
    """The loss of each quantile, by loops. target: `[M, T]`; current: `[M, Q]`."""
    return np.stack([loss_and_slope(*rows)[0] for rows in zip(target, current, strict=True)])


@pytest.mark.parametrize(("double", "masked"), [(False, False), (True, True)])
def test_the_loss_of_qrdqn_is_that_of_the_paper(double, masked):
    learner = make_learner(qrdqn(double=double))
    models, rows = models_and_minibatch(learner)
    rng = np.random.default_rng(2)
    rows["weight"] = rng.random(32).astype(np.float32)
    if masked:
        rows["next_action_mask"] = np.eye(2, dtype=bool)[rng.integers(0, 2, 32)]
    loss = learner.algorithm.loss(models, tensors(rows))

    online = [np.asarray(w.value) for w in learner.network.trainable_weights]
    target = [np.asarray(copy.value) for copy in models.targets][: len(online)]
    following = mlp(target, rows["next_observation"]).reshape(32, 2, 5)
    preferred = mlp(online, rows["next_observation"]).reshape(32, 2, 5) if double else following
    values = np.where(rows.get("next_action_mask", True), preferred.mean(axis=-1), -np.inf)
    best = following[np.arange(32), values.argmax(axis=1)]
    chosen = mlp(online, rows["observation"]).reshape(32, 2, 5)[np.arange(32), rows["action"]]
    of_row = losses_of(rows["reward"][:, None] + rows["discount"][:, None] * best, chosen).sum(axis=-1)
    np.testing.assert_allclose(float(loss.value), np.mean(rows["weight"] * of_row), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(loss.outputs["error"]), of_row, rtol=1e-4, atol=1e-5)
    assert np.asarray(loss.outputs["error"]).min() > 0  # priorities, which a right mean doesn't lower to nothing
    assert float(loss.metrics["q_value"]) == pytest.approx(chosen.mean(), rel=1e-4)


@pytest.mark.parametrize("dueling", [False, True])
def test_quantiles_are_float32_whatever_the_layers_compute_in(dueling):
    algorithm = qrdqn(dueling=dueling)
    with building_in("bfloat16"):
        network = al.default_network(
            VECTOR, TWO_ACTIONS, **SMALL, **algorithm.network_options(action_structure(TWO_ACTIONS))
        )
    assert {output.dtype for output in network.outputs} == {"float32"}
    learner = al.Learner(network, algorithm, action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=1000)
    assert np.isfinite(learner.update(batch(learner))["loss"])


def test_the_losses_of_tqc_are_those_of_the_paper():
    learner = make_learner(tqc(num_critics=3, ent_coef=0.2))
    models, rows = models_and_minibatch(learner)
    rows["weight"] = np.random.default_rng(2).random(32).astype(np.float32)
    groups = {group.name: group for group in learner.algorithm.groups()}
    critic_loss = groups[CRITICS].loss(models, tensors(rows))

    first, second = np.split(rows["noise"].astype(np.float64), 2, axis=1)
    critics = [[np.asarray(w.value) for w in critic.weights] for critic in learner.critics]
    copies = np.split(np.array([np.asarray(copy.value) for copy in models.targets], object), 3)

    def quantiles(weights, observation, action):
        return np.stack([mlp(w, np.concatenate([observation, action], axis=1)) for w in weights])

    action, log_prob = squashed(outputs_of(learner.network, rows["next_observation"]), first)
    following = np.sort(np.concatenate(quantiles(copies, rows["next_observation"], action), axis=1), axis=1)
    value = following[:, : 3 * (5 - 2)] - 0.2 * log_prob[:, None]
    target = rows["reward"][:, None] + rows["discount"][:, None] * value
    current = quantiles(critics, rows["observation"], np.tanh(rows["action"].astype(np.float64)))
    expected = sum(np.mean(rows["weight"] * losses_of(target, critic).mean(axis=-1)) for critic in current)
    np.testing.assert_allclose(float(critic_loss.value), expected, rtol=1e-4)

    policy_loss = groups[NETWORK].loss(models, tensors({**rows, **critic_loss.outputs}))
    action, log_prob = squashed(outputs_of(learner.network, rows["observation"]), second)
    expected = np.mean(0.2 * log_prob - quantiles(critics, rows["observation"], action).mean(axis=(0, 2)))
    np.testing.assert_allclose(float(policy_loss.value), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", [dqn, qrdqn, tqc])
def test_a_gradient_step_is_the_optimizer_s_on_the_loss(algorithm):
    """On that of the first group, before which nothing else moves but the targets of DQN."""
    learner = make_learner(algorithm(updates_per_step=1 / 32, optimizer=SGD, target_update_interval=1))
    learner.update(batch(learner))
    models, state, group = learner._models, learner._replay_update.state, learner.algorithm.groups()[0]
    variables, before = models.trained(group.name), [np.asarray(variable.value) for variable in state]
    drawn, noise = (rng.bit_generator.state for rng in (learner.buffer._sampler.rng, learner._rng))
    assert learner.update(batch(learner, seed=1))["gradient_steps"] == 2
    after = [np.asarray(variable.value) for variable in variables]

    learner.buffer._sampler.rng.bit_generator.state, learner._rng.bit_generator.state = drawn, noise
    rows = {name: value for name, value in learner.buffer.sample(16)._asdict().items() if value is not None}
    rows |= {name: value[0] for name, value in learner._noise(1, 16).items()}
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    if group.name == NETWORK:
        models.move_targets(1.0)
    gradients = gradients_of(lambda: group.loss(models, tensors(rows)).value, variables)
    for variable, new, gradient in zip(variables, after, gradients, strict=True):
        np.testing.assert_allclose(new, np.asarray(variable.value) - 0.1 * gradient, rtol=1e-5, atol=1e-6)


def test_values_are_means_of_the_quantiles_which_actors_never_see():
    options = {**SMALL, **qrdqn(dueling=True).network_options(TWO_ACTIONS)}
    network = al.default_network(VECTOR, TWO_ACTIONS, **options)
    observation = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    outputs = {name: np.asarray(value) for name, value in network(observation).items()}
    assert outputs["quantiles"].shape == (6, 2, 5)
    np.testing.assert_allclose(outputs["parameters"][:, :-1], outputs["quantiles"].mean(axis=-1), rtol=1e-5, atol=1e-6)
    heads = keras.Model(network.input, [network.get_layer(name).output for name in ("state_value", "advantages")])
    of_state, advantages = (np.asarray(value).reshape(6, -1, 5) for value in heads(observation))
    expected = of_state + advantages - advantages.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs["quantiles"], expected, rtol=1e-5, atol=1e-6)


def own_network(quantiles):
    inputs = keras.Input((4,))
    found = layers.Reshape((2, quantiles))(layers.Dense(2 * quantiles)(inputs))
    outputs = {"parameters": al.ActionDistribution("greedy")(ops.mean(found, axis=-1)), "quantiles": found}
    return keras.Model(inputs, outputs, name="own")


class OwnNetwork(keras.Model):
    """A network that is built by its first call."""

    def __init__(self):
        super().__init__(name="own")
        self.dense, self.distribution = layers.Dense(2), al.ActionDistribution("greedy")

    def call(self, observation):
        return {"parameters": self.distribution(self.dense(observation))}


def learner_of(network, algorithm):
    return al.Learner(network, algorithm, action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=1000)


def test_a_network_of_one_s_own_returns_quantiles():
    learner = learner_of(own_network(5), qrdqn())
    assert "loss" in learner.update(batch(learner))


def test_networks_without_these_quantiles_are_refused():
    needed = r"QRDQN needs a network with an output `quantiles` of shape \[B, 2, 5\]"
    for network in (OwnNetwork(), al.default_network(VECTOR, TWO_ACTIONS, distribution="greedy")):
        with pytest.raises(ValueError, match=rf"{needed}. Received: outputs \['parameters'.* of '{network.name}'$"):
            learner_of(network, qrdqn()).update(batch(learner_of(own_network(5), qrdqn())))
    with pytest.raises(ValueError, match=rf"{needed}. Received: \[B, 2, 7\] from 'own'$"):
        learner_of(own_network(7), qrdqn())


def test_critics_of_another_size_are_refused():
    learner = make_learner(tqc(), critics=al.default_critic)
    expected = r"A critic must return 5 quantiles of the value, \[N, 5\]. Received: shape \(2, 1\) for 2 rows, from 'cr"
    with pytest.raises(ValueError, match=expected):
        learner.update(batch(learner))


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (al.QRDQN, {"quantiles": 0}, "`quantiles` must be an integer of at least 1. Received: quantiles=0"),
        (al.QRDQN, {"loss_function": "squared"}, "`loss_function` must be 'huber' for QRDQN. Received: loss_fun"),
        (al.TQC, {"num_critics": 0}, "`num_critics` must be an integer of at least 1. Received: num_critics=0"),
        (al.TQC, {"dropped_quantiles": 25}, "`dropped_quantiles` must be at most 24. Received: dropped_quantiles=25"),
        (al.TQC, {"dropped_quantiles": -1}, "`dropped_quantiles` must be an integer of at least 0. Received: dropped"),
    ],
)
def test_hyperparameters_out_of_range_are_one_line(cls, fields, message):
    with pytest.raises(ValueError, match=message):
        cls(**fields)


def test_the_optimizer_is_that_of_the_paper():
    adam = al.QRDQN().make_optimizer()
    assert (adam.epsilon, adam.global_clipnorm, float(adam.learning_rate)) == (0.01 / 32, None, pytest.approx(5e-5))
