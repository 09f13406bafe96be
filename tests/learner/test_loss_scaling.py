"""Loss scaling: gradients of a larger loss give the same step, and a step that overflows is skipped, not undone."""

from __future__ import annotations

import contextlib
import itertools
import math

import keras
import numpy as np
import pytest
from keras import layers
from keras.optimizers import SGD, Adam, LossScaleOptimizer

import actor_learner as al
from tests.learner.test_rollback import RootOfReward, compiled, poisoned, state_of
from tests.support.small_networks import linear_network, same_weights, weights_of
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


@contextlib.contextmanager
def dtype_policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def network_in(policy, **options):
    with dtype_policy(policy):
        return al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(16,), seed=1, **options)


def learner_in(policy, algorithm, xla=False, **options):
    return compiled(al.Learner(network_in(policy, **options), algorithm, action_space=TWO_ACTIONS), xla)


def linear_learner(optimizer):
    return compiled(al.Learner(linear_network(), al.A2C(optimizer=optimizer), action_space=TWO_ACTIONS), False)


SCALING = {
    "factor": lambda **settings: SGD(0.1, loss_scale_factor=1024, **settings),
    "dynamic": lambda **settings: LossScaleOptimizer(SGD(0.1, **settings)),
}


def test_scaling_changes_neither_the_step_nor_what_is_reported():
    plain, *others = (linear_learner(optimizer) for optimizer in (SGD(0.1), *(make() for make in SCALING.values())))
    for seed in range(2):
        expected = plain.update(random_trajectory(seed=seed))
        for scaled in others:
            found = scaled.update(random_trajectory(seed=seed))
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
            for one, other in zip(plain.get_weights(), scaled.get_weights(), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("make", [SGD, *SCALING.values()], ids=["plain", *SCALING.keys()])
def test_the_norm_that_is_clipped_is_that_of_the_gradient_itself(make):
    learner = linear_learner(make(global_clipnorm=0.01))
    learner.optimizer.learning_rate = 1.0
    before = weights_of(learner.network)
    assert learner.update(random_trajectory())["gradient_norm"] > 0.1
    moved = np.sqrt(sum(np.square(a - b).sum() for a, b in zip(learner.get_weights(), before, strict=True)))
    assert moved == pytest.approx(0.01, rel=1e-4)


def test_networks_that_compute_in_float16_get_a_loss_scale_optimizer():
    learner = learner_in("mixed_float16", al.PPO())
    assert isinstance(learner.optimizer, LossScaleOptimizer)
    assert learner.network.optimizer is learner.optimizer
    assert (type(learner.optimizer.inner_optimizer), learner.optimizer.inner_optimizer.epsilon) == (Adam, 1e-5)
    for policy in ("float32", "mixed_bfloat16"):
        assert type(learner_in(policy, al.PPO()).optimizer) is Adam
    x = keras.Input((4,))
    network = keras.Model(x, (layers.Dense(2)(x), layers.Dense(1, dtype="mixed_float16")(x)))
    assert isinstance(al.Learner(network, al.A2C(), action_space=TWO_ACTIONS).optimizer, LossScaleOptimizer)


@pytest.mark.parametrize(
    "optimizer",
    [LossScaleOptimizer(SGD(0.1), initial_scale=64.0, dynamic_growth_steps=3), SGD(0.1, loss_scale_factor=64.0)],
    ids=["dynamic", "factor"],
)
def test_an_optimizer_that_scales_by_itself_is_not_wrapped(optimizer):
    learner = learner_in("mixed_float16", al.A2C(optimizer=optimizer))
    assert learner.optimizer.get_config() == optimizer.get_config()
    assert learner.optimizer is not optimizer


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_step_that_overflows_is_skipped_and_halves_the_scale(xla):
    """Gradients beyond 65504 in float16, of a finite loss."""
    learner = learner_in("mixed_float16", al.PPO(epochs=2, minibatch_size=16), xla)
    batch = random_trajectory()
    batch = batch._replace(reward=batch.reward * 1e2)
    before = weights_of(learner.network)
    metrics = [learner.update(batch) for _ in range(3)]
    skipped = [row.get("skipped_steps", 0) for row in metrics]
    assert 1 <= skipped[0] < 8
    assert skipped[-1] == 0
    assert [row["loss_scale"] for row in metrics] == [2.0 ** (15 - total) for total in itertools.accumulate(skipped)]
    assert learner.optimizer.iterations == 24 - sum(skipped)
    assert learner.updates == 3
    assert not any("undone" in row for row in metrics)
    assert all(math.isfinite(value) for row in metrics for value in row.values())
    assert not same_weights(before, learner.get_weights())


def test_an_update_of_skipped_steps_alone_is_an_update_and_one_of_an_infinite_loss_is_none():
    learner = linear_learner(LossScaleOptimizer(SGD(0.1), initial_scale=2.0**127))
    batch = random_trajectory()
    batch = batch._replace(reward=batch.reward * 1e3)
    before = weights_of(learner.network)
    metrics = learner.update(batch)
    assert (metrics["skipped_steps"], metrics["loss_scale"], metrics["gradient_norm"]) == (1.0, 2.0**126, 0.0)
    assert same_weights(before, learner.get_weights())
    assert learner.updates == 1
    before = state_of(learner)
    assert learner.update(poisoned(random_trajectory(), "reward", 3e38))["undone"] == 1.0
    assert "loss" in learner.not_finite
    assert state_of(learner) == before


def test_a_gradient_that_is_infinite_at_every_scale_is_undone_once_the_scale_is_1():
    optimizer = LossScaleOptimizer(SGD(0.1), initial_scale=4.0)
    algorithm = RootOfReward(epochs=1, minibatch_size=None, optimizer=optimizer)
    learner = compiled(al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS), False)
    nothing = random_trajectory()._replace(reward=np.zeros((16, 4), np.float32))
    assert [learner.update(nothing)["loss_scale"] for _ in range(2)] == [2.0, 1.0]
    before = state_of(learner)
    for _ in range(2):
        metrics = learner.update(nothing)
        assert metrics["undone"] == 1.0
        assert math.isfinite(metrics["loss"])
        assert "gradient_norm" in learner.not_finite
        assert state_of(learner) == before


def test_the_scale_never_becomes_infinite():
    optimizer = LossScaleOptimizer(SGD(1e-6), initial_scale=2.0**126, dynamic_growth_steps=1)
    learner = linear_learner(optimizer)
    learner.network.set_weights([weight * 0.01 for weight in learner.get_weights()])
    batch = random_trajectory()
    batch = batch._replace(reward=batch.reward * 1e-2, truncation_value=batch.truncation_value * 0)
    for _ in range(4):
        metrics = learner.update(batch)
        assert "undone" not in metrics
        assert metrics["loss_scale"] <= 2.0**127


def test_a_run_without_dynamic_loss_scaling_has_no_metrics_of_it():
    learner = linear_learner(SCALING["factor"]())
    assert not {"loss_scale", "skipped_steps"} & set(learner.trace(random_trajectory()))


def test_the_learning_rate_is_the_inner_optimizers():
    algorithm = al.PPO(learning_rate="linear_1e-3", epochs=1)
    learner = al.Learner(network_in("mixed_float16"), algorithm, action_space=TWO_ACTIONS, total_steps=128)
    rates = [learner.update(random_trajectory(seed=seed))["learning_rate"] for seed in range(2)]
    assert rates == pytest.approx([1e-3, 0.5e-3])
    assert float(learner.optimizer.inner_optimizer.learning_rate) == pytest.approx(0.5e-3)


@pytest.mark.thorough
def test_the_scale_is_saved_with_the_learner(tmp_path):
    learner = learner_in("mixed_float16", al.PPO(epochs=1, minibatch_size=16))
    batch = random_trajectory()
    learner.update(batch._replace(reward=batch.reward * 1e3))
    learner.save(tmp_path)
    resumed = al.Learner.load(tmp_path)
    assert 1.0 < float(resumed.optimizer.dynamic_scale) < 2.0**15
    assert resumed.update(batch) == learner.update(batch)
    assert same_weights(resumed.get_weights(), learner.get_weights())


def test_sparse_gradients_are_scaled_too():
    x = keras.Input((4,))
    with dtype_policy("mixed_float16"):
        index = keras.ops.cast(keras.ops.clip(keras.ops.abs(x), 0, 2), "int32")
        h = layers.Flatten()(layers.Embedding(3, 2)(index))
        network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = compiled(al.Learner(network, al.PPO(epochs=1), action_space=TWO_ACTIONS), False)
    before = weights_of(network)
    assert "undone" not in learner.update(random_trajectory())
    assert not any(np.array_equal(a, b) for a, b in zip(before[:1], learner.get_weights(), strict=False))


def test_16_bits_move_the_weights_as_32_do():
    """The gradients of single rows are below 6e-8, float16's smallest number."""
    batch = random_trajectory(steps=64, columns=32)
    small = {name: getattr(batch, name) * 1e-5 for name in ("reward", "truncation_value")}
    moved = []
    for name in ("float32", "mixed_float16"):
        learner = learner_in(name, al.A2C(optimizer=SGD(1.0)))
        learner.network.get_layer("value").set_weights([np.zeros((16, 1)), np.zeros(1)])
        before = learner.flat_weights()
        learner.update(batch._replace(**small, policy_version=np.zeros(32, int)))
        moved.append(learner.flat_weights() - before)
    assert np.linalg.norm(moved[1] - moved[0]) < 0.05 * np.linalg.norm(moved[0])


class Refusing(SGD):
    """An optimizer whose settings are final, while a LossScaleOptimizer takes its scale away."""

    def __setattr__(self, name, value):
        if name == "loss_scale_factor" and hasattr(self, name):
            raise AttributeError("settings are final")
        super().__setattr__(name, value)


REFUSED = r"^A network that computes in float16 needs .* refuses it \(.*\); .* Received: optimizer=Refusing$"


def test_an_optimizer_that_refuses_wrapping_is_refused():
    with pytest.raises(ValueError, match=REFUSED):
        learner_in("mixed_float16", al.PPO(optimizer=Refusing(0.1)))
    learner_in("float32", al.PPO(optimizer=Refusing(0.1)))


def test_a_run_with_such_an_optimizer_is_refused_before_anything_starts(tmp_path):
    config = al.TrainConfig(algorithm=al.PPO(optimizer=Refusing(0.1)), run_dir=tmp_path, total_steps=1, quiet=True)
    with dtype_policy("mixed_float16"), pytest.raises(ValueError, match=REFUSED):
        al.train(config)
    with pytest.raises(ValueError, match=REFUSED):
        al.train(config.replace(network=network_in("mixed_float16")))
    assert not list(tmp_path.iterdir())
