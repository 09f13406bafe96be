"""Updates that aren't finite are undone to the last bit, whatever their cause."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from keras import layers, ops

import actor_learner as al
from tests.support.small_networks import linear_network, trace_count
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


def variables_of(learner):
    scaling = learner._reward_scaling.variables if learner._reward_scaling else []
    return [*learner.network.variables, *learner.optimizer.variables, *scaling]


def state_of(learner):
    """Return every bit that an update may change."""
    return (
        [variable.numpy().tobytes() for variable in variables_of(learner)],
        learner._rng.bit_generator.state,
        (learner.updates, learner.env_steps),
    )


def set_state(learner, state):
    """Restore the learner to a state that `state_of` returned."""
    contents, learner._rng.bit_generator.state, (learner.updates, learner.env_steps) = state
    for variable, content in zip(variables_of(learner), contents, strict=True):
        variable.assign(np.frombuffer(content, variable.dtype).reshape(variable.shape))


def compiled(learner, xla):
    batch = random_trajectory(learner.action_space)
    learner._check_first_batch(batch)
    learner._compile(batch, xla)
    return learner


def scheduled_ppo(xla):
    """Return a learner with every kind of state that survives an update."""
    network = al.default_network(VECTOR, TORQUES, normalize_observation=True, hidden_sizes=(16,), seed=1)
    algorithm = al.PPO(epochs=2, minibatch_size=32, normalize_reward=True, learning_rate="linear", clip_range="linear")
    return compiled(al.Learner(network, algorithm, action_space=TORQUES, total_steps=10_000), xla)


def with_target_kl():
    algorithm = al.PPO(epochs=2, minibatch_size=32, target_kl=0.5, desired_kl=0.01)
    return compiled(al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS), False)


def a2c(xla):
    return compiled(al.Learner(linear_network(), al.A2C(), action_space=TWO_ACTIONS), xla)


def mixed_precision(policy, xla=False, **options):
    keras.mixed_precision.set_global_policy(policy)
    try:
        network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(16,), activation="relu", seed=1)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return compiled(al.Learner(network, al.PPO(epochs=1, **options), action_space=TWO_ACTIONS), xla)


def poisoned(trajectory, field, value):
    """Return the trajectory with `value` in a valid row."""
    array = getattr(trajectory, field).copy()
    array[tuple(np.argwhere(trajectory.valid)[5])] = value
    return trajectory._replace(**{field: array})


WRONG = [("reward", 3e38), ("observation", -3e38), ("behaviour_log_prob", math.nan), ("behaviour_log_prob", -math.inf)]
"""Fields of a batch that spoil an update; NaN from an environment is refused before."""


MAKERS = {
    "ppo": lambda: scheduled_ppo(False),
    "a2c-xla": lambda: a2c(True),
    "bfloat16-target-kl": lambda: mixed_precision("mixed_bfloat16", minibatch_size=16, target_kl=0.5),
}
FURTHER = {"ppo-target-kl": with_target_kl, "bfloat16-xla": lambda: mixed_precision("mixed_bfloat16", xla=True)}


@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in MAKERS.items()),
        *(pytest.param(make, id=name, marks=pytest.mark.thorough) for name, make in FURTHER.items()),
    ],
)
def test_an_undone_update_never_was(make):
    """Later updates are equal, bit for bit, with and without it."""
    learner = make()
    good = [random_trajectory(learner.action_space, seed=seed, invalid_rate=0.1) for seed in range(4)]
    for batch in good[:2]:
        learner.update(batch)
    before = state_of(learner)
    expected = [learner.update(batch) for batch in good[2:]]
    after = state_of(learner)
    set_state(learner, before)
    for field, value in WRONG:
        metrics = learner.update(poisoned(random_trajectory(learner.action_space, seed=9), field, value))
        assert metrics["undone"] == 1.0
        assert learner.not_finite
        wrong = {name for name, number in metrics.items() if not math.isfinite(number)} - {"explained_variance"}
        assert wrong <= set(learner.not_finite)
        assert state_of(learner) == before
    assert [learner.update(batch) for batch in good[2:]] == expected
    assert "undone" not in expected[-1]
    assert learner.not_finite == ()
    assert state_of(learner) == after != before
    assert trace_count(learner) == 1


def test_a_learning_rate_that_explodes_and_nan_from_an_environment():
    """Of the rate only the new weights are wrong: an update's metrics precede its only step. NaN is refused before."""
    learner = a2c(False)
    for rate in (1e30, math.inf, math.nan):
        learner.optimizer.learning_rate = rate
        before = state_of(learner)
        metrics = learner.update(random_trajectory())
        assert metrics["undone"] == 1.0
        assert math.isfinite(metrics["loss"])
        assert metrics["learning_rate"] == pytest.approx(rate, nan_ok=True)
        assert "weights" in learner.not_finite
        assert state_of(learner) == before
    learner.optimizer.learning_rate = 1e-3
    assert "undone" not in learner.update(random_trajectory())
    before = state_of(learner)
    for field in ("reward", "observation"):
        with pytest.raises(ValueError, match=f"`{field}` must be finite in valid rows"):
            learner.update(poisoned(random_trajectory(), field, math.nan))
    assert state_of(learner) == before


def test_a_finite_network_whose_outputs_are_beyond_what_can_be_learned():
    """Weights of 1e15 are finite, and so are their squares; three layers of them aren't."""
    x = keras.Input((4,))
    h = layers.Dense(16, "relu")(layers.Dense(16, "relu")(x))
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = compiled(al.Learner(network, al.A2C(learning_rate=1e15), action_space=TWO_ACTIONS), False)
    before = state_of(learner)
    assert learner.update(random_trajectory())["undone"] == 1.0
    assert learner.not_finite == ("outputs",)
    assert state_of(learner) == before


@dataclass(frozen=True, kw_only=True)
class RootOfReward(al.PPO):
    """A loss with a further term, which has no gradient where all rewards are 0."""

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        return loss + ops.sqrt(ops.sum(ops.square(outputs["value"] * minibatch["reward"]))), metrics


def test_a_loss_of_ones_own_whose_gradient_is_not_finite():
    learner = compiled(al.Learner(linear_network(), RootOfReward(epochs=1), action_space=TWO_ACTIONS), False)
    assert "undone" not in learner.update(random_trajectory())
    before = state_of(learner)
    nothing = random_trajectory()._replace(reward=np.zeros((16, 4), np.float32))
    metrics = learner.update(nothing)
    assert metrics["undone"] == 1.0
    assert math.isfinite(metrics["loss"])
    assert "gradient_norm" in learner.not_finite
    assert state_of(learner) == before


class Counting(layers.Layer):
    """A layer with state that no gradient moves: a count of its calls, and random numbers."""

    def __init__(self):
        super().__init__()
        self.noise = keras.random.SeedGenerator(3)

    def build(self, input_shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + 1e-3 * keras.random.normal(ops.shape(x), seed=self.noise)


def test_state_of_the_networks_own_is_put_back():
    x = keras.Input((4,))
    embedded = layers.Flatten()(layers.Embedding(3, 2)(ops.cast(ops.clip(ops.abs(x), 0, 2), "int32")))  # sparse
    h = layers.Concatenate()([Counting()(x), embedded])
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = compiled(al.Learner(network, al.PPO(epochs=1), action_space=TWO_ACTIONS), False)
    learner.update(random_trajectory())
    before = state_of(learner)
    assert len(before[0]) > len(network.weights)  # the random state isn't one of the weights
    assert learner.update(poisoned(random_trajectory(), "reward", 3e38))["undone"] == 1.0
    assert state_of(learner) == before
    learner.update(random_trajectory())
    changed = [a != b for a, b in zip(before[0], state_of(learner)[0], strict=True)]
    names = [variable.path for variable in learner.network.variables]
    assert {name.split("/")[-1] for name, is_other in zip(names, changed, strict=False) if is_other} >= {
        "calls",
        "seed_generator_state",
        "embeddings",
    }


def test_statistics_that_the_first_batch_would_spoil():
    network = al.default_network(VECTOR, TWO_ACTIONS, normalize_observation=True, hidden_sizes=(8,))
    algorithm = al.PPO(epochs=1, normalize_reward=True)
    learner = compiled(al.Learner(network, algorithm, action_space=TWO_ACTIONS), False)
    metrics = learner.update(poisoned(random_trajectory(), "observation", 3e38))
    assert metrics["undone"] == 1.0
    assert "loss" not in metrics
    assert "statistics" in learner.not_finite
    assert (learner.updates, learner.env_steps) == (0, 0)
    assert float(network.get_layer("observation_normalization").count) == 0.0
    assert "policy_loss" not in learner.update(random_trajectory())  # still the first: it only sets statistics
    assert "policy_loss" in learner.update(random_trajectory())


def test_the_learning_rate_is_not_adapted_after_an_undone_update():
    adapting = al.PPO(desired_kl=1e-9, learning_rate=1e-3, epochs=2)
    learner = compiled(al.Learner(linear_network(), adapting, action_space=TWO_ACTIONS), False)
    learner.update(random_trajectory())
    rate = float(learner.optimizer.learning_rate)
    assert rate == pytest.approx(1e-3 / 1.5)
    learner.update(poisoned(random_trajectory(), "reward", 3e38))
    assert float(learner.optimizer.learning_rate) == rate


def test_returns_that_do_not_vary_are_nothing_wrong():
    """explained_variance has no value then."""
    learner = compiled(al.Learner(linear_network(), al.A2C(gamma=0.0), action_space=TWO_ACTIONS), False)
    learner.network.set_weights([np.zeros_like(weight) for weight in learner.get_weights()])
    same = random_trajectory(end_rate=0.0)._replace(reward=np.ones((16, 4), np.float32))
    metrics = learner.update(same)
    assert "undone" not in metrics
    assert "explained_variance" not in metrics


def test_frozen_layers_may_hold_any_finite_number():
    """The lowest number, which masks are made of, has a square that isn't finite."""
    x = keras.Input((4,))
    frozen = layers.Dense(4, trainable=False, kernel_initializer="zeros", bias_initializer=constant(np.finfo("f4").min))
    h = ops.maximum(x, frozen(x))
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = compiled(al.Learner(network, al.A2C(), action_space=TWO_ACTIONS), False)
    assert "undone" not in learner.update(random_trajectory())


def constant(value):
    return keras.initializers.Constant(float(value))
