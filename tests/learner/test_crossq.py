"""CrossQ: batch renormalization and losses against NumPy, which statistics move, and what is refused."""

from __future__ import annotations

import math
from collections import Counter

import keras
import numpy as np
import pytest
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK
from actor_learner.spaces.structure import action_structure
from tests.learner.test_replay import OFTEN, batch, make_learner, models_and_minibatch, sac, squashed, tensors
from tests.support.trajectories import TWO_ACTIONS

pytestmark = pytest.mark.usefixtures("without_xla")


def crossq(**fields):
    return al.CrossQ(**{**OFTEN, "updates_per_step": 1 / 32, **fields})


def array(variable):
    return np.asarray(ops.convert_to_numpy(variable)).astype(np.float64)


def test_batches_are_renormalized_after_the_warm_up():
    layer, rng = al.BatchRenormalization(warm_up=2), np.random.default_rng(0)
    x = rng.normal([3, -90, 0], [2, 0.1, 30], (64, 3)).astype(np.float32)
    np.testing.assert_allclose(array(layer(x)), x / math.sqrt(1.001), rtol=1e-5)
    for call in range(4):
        mean, variance = array(layer.moving_mean), array(layer.moving_variance)
        std, running = np.sqrt(x.var(axis=0) + 1e-3), np.sqrt(variance + 1e-3)
        ratio = np.clip(std / running, 1 / 3, 3) if call >= 2 else 1.0
        distance = np.clip((x.mean(axis=0) - mean) / running, -5, 5) if call >= 2 else 0.0
        expected = (x - x.mean(axis=0)) / std * ratio + distance
        np.testing.assert_allclose(array(layer(x, training=True)), expected, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(array(layer.moving_mean), 0.99 * mean + 0.01 * x.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(array(layer.moving_variance), 0.99 * variance + 0.01 * x.var(axis=0), rtol=1e-4)
    layer.trainable = False
    layer(x, training=True)
    assert float(layer.count) == 4


def test_renormalization_is_over_any_axis_and_refuses_what_it_has_not():
    x, last = np.random.default_rng(0).normal(5, 2, (8, 6, 6)), al.BatchRenormalization(0)
    second = al.BatchRenormalization(0, axis=1)
    for _ in range(2):
        expected, found = last(x, training=True), second(x.swapaxes(1, 2), training=True)
        np.testing.assert_allclose(array(found).swapaxes(1, 2), array(expected), rtol=1e-5)
    with pytest.raises(ValueError, match="`renorm` must be left out"):
        al.BatchRenormalization(renorm=True)


def test_each_loss_is_traced_once_that_of_a_delayed_step_too():
    traced = Counter()

    class Counted(al.CrossQ):
        def groups(self):
            def counted(group):
                def loss(models, minibatch):
                    traced[group.name] += 1
                    return group.loss(models, minibatch)

                return group._replace(loss=loss)

            return tuple(map(counted, super().groups()))

    learner = make_learner(Counted(**{**OFTEN, "updates_per_step": 1 / 32}))
    for seed in range(4):
        assert "critic_loss" in learner.update(batch(learner, seed))
    assert set(traced) == {group.name for group in al.CrossQ().groups()}
    assert set(traced.values()) == {1}


def normalized(layer, x, training):
    statistics = (x.mean(axis=0), x.var(axis=0)) if training else map(array, (layer.moving_mean, layer.moving_variance))
    mean, variance = statistics
    return (x - mean) / np.sqrt(variance + 1e-3) * array(layer.gamma) + array(layer.beta)


def outputs_of(model, x, trunk, heads, *, training=False):
    """The outputs of the models of `make_learner`, which have one hidden layer, by NumPy in 64 bits."""

    def dense(name, x):
        return x @ array(model.get_layer(name).kernel) + array(model.get_layer(name).bias)

    x = normalized(model.get_layer(f"{trunk}_input_batch_norm"), x, training)
    x = np.maximum(dense(f"{trunk}_hidden_1", x), 0)
    x = normalized(model.get_layer(f"{trunk}_hidden_1_batch_norm"), x, training)
    return np.concatenate([dense(name, x) for name in heads], axis=1)


def policy(learner, observation, noise, *, training):
    return squashed(outputs_of(learner.network, observation, "policy", ["mean", "log_std"], training=training), noise)


def values(learner, observation, action, *, training=False):
    x = np.concatenate([observation, action], axis=1)
    return np.stack([outputs_of(critic, x, "critic", ["value"], training=training)[:, 0] for critic in learner.critics])


def test_the_losses_are_those_of_the_reference():
    learner = make_learner(crossq(critic_units=8, ent_coef="auto_0.5"), critics=one_hidden_layer)
    models, rows = models_and_minibatch(learner)
    rng = np.random.default_rng(3)
    for model in (learner.network, *learner.critics):
        model.set_weights([weight + rng.uniform(0.1, 0.4, weight.shape) for weight in model.get_weights()])
    groups = {group.name: group for group in learner.algorithm.groups()}
    assert [(name, group.every) for name, group in groups.items()] == [(CRITICS, 1), (NETWORK, 3), ("log_ent_coef", 3)]
    first, second = np.split(rows["noise"].astype(np.float64), 2, axis=1)

    action, log_prob = policy(learner, rows["next_observation"], first, training=False)
    observation = np.concatenate([rows["observation"], rows["next_observation"]])
    taken = np.concatenate([np.tanh(rows["action"].astype(np.float64)), action])
    now, following = np.split(values(learner, observation, taken, training=True), 2, axis=1)
    error = rows["reward"] + rows["discount"] * (following.min(axis=0) - 0.5 * log_prob) - now
    means = [array(critic.get_layer("critic_input_batch_norm").moving_mean) for critic in learner.critics]
    of_policy = learner.network.get_weights()
    loss = groups[CRITICS].loss(models, tensors(rows))
    np.testing.assert_allclose(float(loss.value), 0.5 * np.mean(error**2, axis=1).sum(), rtol=1e-3)
    for critic, mean in zip(learner.critics, means, strict=True):
        joint = np.concatenate([observation, taken], axis=1).mean(axis=0)
        moved = array(critic.get_layer("critic_input_batch_norm").moving_mean)
        np.testing.assert_allclose(moved, 0.99 * mean + 0.01 * joint, rtol=1e-4, atol=1e-6)
    assert all(map(np.array_equal, of_policy, learner.network.get_weights()))

    of_critics = [critic.get_weights() for critic in learner.critics]
    mean = array(learner.network.get_layer("policy_input_batch_norm").moving_mean)
    action, log_prob = policy(learner, rows["observation"], second, training=True)
    expected = np.mean(0.5 * log_prob - values(learner, rows["observation"], action).min(axis=0))
    loss = groups[NETWORK].loss(models, tensors(rows | loss.outputs))
    np.testing.assert_allclose(float(loss.value), expected, rtol=1e-3)
    moved = array(learner.network.get_layer("policy_input_batch_norm").moving_mean)
    np.testing.assert_allclose(moved, 0.99 * mean + 0.01 * rows["observation"].mean(axis=0), rtol=1e-4, atol=1e-6)
    for critic, before in zip(learner.critics, of_critics, strict=True):
        assert all(map(np.array_equal, before, critic.get_weights()))
    temperature = groups["log_ent_coef"].loss(models, tensors({**rows, **loss.outputs}))
    np.testing.assert_allclose(float(temperature.value), -math.log(0.5) * (log_prob - 3).mean(), rtol=1e-3)


def one_hidden_layer(*spaces):
    return al.default_critic(*spaces, hidden_sizes=(8,), batch_norm=True)


def test_policy_and_temperature_are_stepped_together_each_third_time():
    learner = make_learner(crossq(critic_units=8))
    assert learner.critics[0].get_layer("critic_hidden_2").units == 8
    assert "policy_loss" not in learner.update(batch(learner))
    for step in range(2, 7):
        before = [learner._models.variables["log_ent_coef"].numpy(), *learner.get_weights()]
        metrics = learner.update(batch(learner, step))
        after = [learner._models.variables["log_ent_coef"].numpy(), *learner.get_weights()]
        changed = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        assert (changed[0], any(changed)) == (step % 3 == 0, step % 3 == 0)
        assert ("policy_loss" in metrics, "ent_coef_loss" in metrics) == (step % 3 == 0, step % 3 == 0)
    assert learner.optimizer.beta_1 == 0.5
    assert learner._models.targets == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minibatch_size": 1}, "`minibatch_size` must be above 1 for CrossQ, which normalizes by minibatches"),
        ({"tau": 0.01}, "`tau` must be left out for CrossQ, which has no targets. Received: tau=0.01"),
        ({"target_update_interval": 2}, "`target_update_interval` must be left out for CrossQ"),
        ({"policy_delay": 0}, "`policy_delay` must be an integer of at least 1"),
        ({"critic_units": 0}, "`critic_units` must be an integer of at least 1"),
    ],
)
def test_hyperparameters_that_do_not_fit_are_one_line(fields, message):
    with pytest.raises(ValueError, match=message):
        al.CrossQ(**fields)


def test_critics_that_share_statistics_are_refused():
    normalization = layers.BatchNormalization(center=False, scale=False)

    def sharing(*spaces):
        own = al.default_critic(*spaces, hidden_sizes=(4,))
        return keras.Model(own.input, layers.Dense(1)(normalization(own.output)))

    with pytest.raises(ValueError, match="sharing weights with the network or another critic"):
        make_learner(crossq(), critics=sharing).update(batch(make_learner(crossq())))


def test_other_actions_and_critics_without_batches_are_refused(tmp_path):
    with pytest.raises(ValueError, match="CrossQ needs actions that are Boxes with finite bounds"):
        crossq().check_action_space(action_structure(TWO_ACTIONS))
    learner = make_learner(sac())
    learner.update(batch(learner))
    learner.save(tmp_path / "saved")
    expected = "CrossQ needs critics with layers that normalize by batches, .* those of SAC and others have none"
    with pytest.raises(ValueError, match=expected):
        al.Learner.load(tmp_path / "saved", algorithm=crossq())

    def frozen(*spaces):
        critic = al.default_critic(*spaces, hidden_sizes=(4,))
        normalized = layers.BatchNormalization(trainable=False)(critic.output)
        return keras.Model(critic.input, layers.SpectralNormalization(layers.Dense(1))(normalized))

    with (
        pytest.warns(UserWarning, match="nor do noise and augmentation; spectral norms stay as they are"),
        pytest.raises(ValueError, match=expected),
    ):
        make_learner(crossq(), critics=frozen).update(batch(make_learner(crossq())))
