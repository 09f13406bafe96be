from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, MultiDiscrete
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.returns import gae
from tests.support.small_networks import linear_network, same_weights, weights_of
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


def expected_gradients(trajectory, policy, value, *, gamma, gae_lambda, vf_coef, ent_coef, normalize):
    """Return gradients of the loss at the first step, where PPO's ratio is 1 and its gradient is A2C's, in NumPy."""
    x = trajectory.observation[:-1].reshape(-1, 4).astype(np.float64)
    action = trajectory.action.reshape(-1)
    values = (trajectory.observation.astype(np.float64) @ value)[..., 0].astype(np.float32)
    advantage = ops.convert_to_numpy(
        gae(
            trajectory.reward,
            values,
            trajectory.terminated,
            trajectory.truncated,
            trajectory.truncation_value,
            trajectory.valid,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
    ).reshape(-1)
    returns = advantage + values[:-1].reshape(-1)
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    logits = x @ policy
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows = len(x)
    log_probability = np.log(probability)
    entropy = -(probability * log_probability).sum(-1, keepdims=True)
    gradient_of_log_prob = np.eye(2)[action] - probability
    gradient_of_entropy = -probability * (log_probability + entropy)
    d_logits = -(advantage[:, None] * gradient_of_log_prob + ent_coef * gradient_of_entropy) / rows
    d_value = vf_coef * 2 * (values[:-1].reshape(-1) - returns) / rows
    return x.T @ d_logits, x.T @ d_value[:, None]


def on_policy(trajectory, network):
    """Return the trajectory with the network's own log-probabilities."""
    logits = ops.convert_to_numpy(network(trajectory.observation[:-1].reshape(-1, 4))[0])
    log_prob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_prob, trajectory.action.reshape(-1, 1), 1)
    return trajectory._replace(behaviour_log_prob=chosen.reshape(trajectory.reward.shape).astype(np.float32))


@pytest.mark.parametrize(
    "algorithm",
    [
        al.A2C(optimizer=keras.optimizers.SGD(0.1), ent_coef=0.01),
        pytest.param(
            al.PPO(optimizer=keras.optimizers.SGD(0.1), ent_coef=0.01, epochs=1, minibatch_size=None),
            marks=pytest.mark.xla,
        ),
    ],
    ids=["a2c", "ppo"],
)
def test_one_step_of_plain_sgd_by_hand(algorithm):
    network = linear_network()
    trajectory = on_policy(random_trajectory(), network)
    policy, value = weights_of(network)
    gradients = expected_gradients(
        trajectory,
        policy,
        value,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        vf_coef=algorithm.vf_coef,
        ent_coef=algorithm.ent_coef,
        normalize=algorithm.normalize_advantage,
    )
    metrics = al.Learner(network, algorithm, action_space=TWO_ACTIONS).update(trajectory)
    for before, after, gradient in zip((policy, value), network.get_weights(), gradients, strict=True):
        np.testing.assert_allclose(after, before - 0.1 * gradient, rtol=1e-4, atol=1e-5)
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_invalid_rows_change_nothing():
    """An update from a batch with NaN in invalid rows equals one with harmless numbers there."""
    action_space = TORQUES
    trajectory = random_trajectory(action_space, invalid_rate=0.3)
    filled = trajectory._replace(
        **{
            name: np.nan_to_num(getattr(trajectory, name), nan=0.37)
            for name in ("observation", "action", "reward", "behaviour_log_prob")
        }
    )
    weights = []
    for batch in (trajectory, filled):
        network = al.default_network(VECTOR, action_space, normalize_observation=True, hidden_sizes=(8,))
        learner = al.Learner(network, al.PPO(minibatch_size=13, epochs=2), action_space=action_space)
        learner.update(random_trajectory(action_space))
        learner.update(batch)
        weights.append(weights_of(network))
        assert all(np.isfinite(weight).all() for weight in weights[-1])
    assert same_weights(*weights)


def test_later_batches_that_are_refused_move_nothing():
    network = linear_network()
    learner = al.Learner(network, al.PPO(normalize_reward=True), action_space=TWO_ACTIONS)
    learner.update(random_trajectory())
    before, iterations = weights_of(network), int(learner.optimizer.iterations)
    wide = np.zeros((17, 4, 5), np.float32)
    for batch, message in (
        (random_trajectory(invalid_rate=1.0), r"^`valid` must be True .*, skip it. Received: no valid row of 16 x 4$"),
        (random_trajectory(columns=5), r"must come from the 4 environments of the first. Received: 5"),
        (
            random_trajectory()._replace(observation=wide),
            r"`observation` must have rows of shape \(4,\). Received: \(5,\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            learner.update(batch)
    assert same_weights(before, network.get_weights())
    assert int(learner.optimizer.iterations) == iterations
    assert learner.updates == 1


def test_minibatches_cover_each_valid_row_once_an_epoch():
    learner = al.Learner(linear_network(), al.PPO(minibatch_size=13, epochs=3), action_space=TWO_ACTIONS)
    valid = random_trajectory(invalid_rate=0.3).valid
    order, count = learner._minibatch_order(valid)
    rows = np.flatnonzero(valid.reshape(-1))
    per_epoch = math.ceil(len(rows) / 13)
    assert count == 3 * per_epoch
    for epoch in range(3):
        indices = order[epoch * per_epoch : (epoch + 1) * per_epoch].reshape(-1)
        assert sorted(indices[indices >= 0]) == list(rows)
        assert (indices[len(rows) :] == -1).all()
    assert not np.array_equal(order[0], order[per_epoch])


def test_a_last_minibatch_that_is_not_full_is_a_mean_over_its_own_rows():
    """Two minibatches of 3 and 1 rows under SGD equal two learners' steps on these rows alone."""
    trajectory = random_trajectory(steps=1, columns=4, end_rate=1.0)
    algorithm = al.PPO(
        optimizer=keras.optimizers.SGD(0.1), epochs=1, minibatch_size=3, normalize_advantage=False, gae_lambda=0.0
    )
    network = linear_network()
    learner = al.Learner(network, algorithm, action_space=TWO_ACTIONS)
    learner._minibatch_order = lambda valid: (np.array([[[2, 0, 3]], [[1, -1, -1]]], np.int32), 2)
    learner.update(trajectory)

    by_hand = linear_network()
    old_value = ops.convert_to_numpy(by_hand(trajectory.observation[0])[1])[:, 0]
    target = trajectory.reward[0] + algorithm.gamma * trajectory.truncation_value[0]
    for rows in ([2, 0, 3], [1]):
        step_by_hand(by_hand, algorithm, trajectory, np.array(rows), target, old_value)
    for found, expected in zip(network.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def acted_by(network, actions):
    """A trajectory of valid rows, with the actions of a network."""
    trajectory = random_trajectory(actions, steps=2, columns=4)
    policy = al.Policy.from_network(network, actions)
    for step in range(2):
        trajectory.action[step], trajectory.behaviour_log_prob[step] = policy.step(trajectory.observation[step])
    trajectory.valid[:] = True
    return trajectory


PPO = al.PPO(minibatch_size=3, epochs=1)


def test_no_ratio_of_an_invalid_row_overflows():
    """Zeros are so improbable under 24 narrow Gaussians that their ratio is infinite, and 0 x inf is NaN."""
    actions = Box(-1, 1, (24,), np.float32)
    network = al.default_network(VECTOR, actions, hidden_sizes=(4,), initial_log_std=-5.0)
    trajectory = acted_by(network, actions)
    trajectory.valid[0, 0] = False
    learner = al.Learner(network, al.Impala(), action_space=actions)
    assert "undone" not in learner.update(trajectory)


def test_no_ratio_of_a_row_that_only_fills_a_minibatch_overflows():
    """Many choices are so improbable together that 1 over their probability is infinite."""
    actions = MultiDiscrete([8] * 60)
    network = al.default_network(VECTOR, actions, hidden_sizes=(4,))
    trajectory = acted_by(network, actions)
    trajectory.valid[1, 3] = False
    assert trajectory.behaviour_log_prob[0, 0] < -100
    learner = al.Learner(network, PPO, action_space=actions)
    assert "undone" not in learner.update(trajectory)


def step_by_hand(network, algorithm, trajectory, rows, target, old_value):
    """Make one SGD step on some rows, from the definition of the loss."""
    with tf.GradientTape() as tape:
        logits, value = network(trajectory.observation[0][rows])
        log_prob = tf.gather(tf.nn.log_softmax(logits), trajectory.action[0][rows], batch_dims=1)
        ratio = tf.exp(log_prob - trajectory.behaviour_log_prob[0][rows])
        advantage = target[rows] - old_value[rows]
        clipped = tf.clip_by_value(ratio, 0.8, 1.2)
        policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
        loss = policy_loss + 0.5 * tf.reduce_mean(tf.square(value[:, 0] - target[rows]))
    for weight, gradient in zip(network.trainable_weights, tape.gradient(loss, network.trainable_weights), strict=True):
        weight.assign_sub(0.1 * gradient)


def test_target_kl_ends_the_update_without_the_step_that_exceeds_it():
    def learner(target_kl):
        algorithm = al.PPO(learning_rate=0.05, epochs=20, minibatch_size=16, target_kl=target_kl)
        return al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS)

    bounded, closed = learner(0.01), learner(1e-12)
    trajectory = on_policy(random_trajectory(), bounded.network)
    for each in (bounded, closed):
        each.update(trajectory)
    assert 0 < int(bounded.optimizer.iterations) < 20 * 4
    # The first minibatch's KL is 0 but for rounding, so at least one step is made; then the update ends.
    assert int(closed.optimizer.iterations) <= 2


def test_a_minibatch_beyond_the_batch_takes_it_whole():
    learner = al.Learner(linear_network(), al.PPO(minibatch_size=1000, epochs=1), action_space=TWO_ACTIONS)
    assert learner.algorithm.minibatch_size == 1000
    with pytest.warns(UserWarning, match=r"taken whole. Received: minibatch_size=1000"):
        learner.update(random_trajectory())
    assert int(learner.optimizer.iterations) == 1


def test_the_first_batch_only_sets_the_statistics_with_which_the_second_was_collected():
    network = al.default_network(VECTOR, TWO_ACTIONS, normalize_observation=True, hidden_sizes=(8,))
    learner = al.Learner(network, al.PPO(epochs=1, minibatch_size=None), action_space=TWO_ACTIONS)
    trainable = [weight.numpy() for weight in network.trainable_weights]
    first, second = (random_trajectory(seed=seed) for seed in (1, 2))
    assert "policy_loss" not in learner.update(first)
    assert learner.env_steps == first.valid.sum()
    for before, weight in zip(trainable, network.trainable_weights, strict=True):
        np.testing.assert_array_equal(before, weight.numpy())
    mean = network.get_layer("observation_normalization").mean.numpy()
    np.testing.assert_allclose(mean, first.observation[:-1].mean((0, 1)), rtol=1e-4, atol=1e-5)
    metrics = learner.update(on_policy(second, network))
    assert "policy_loss" in metrics
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)  # the ratio is 1


@dataclass(frozen=True, kw_only=True)
class PPOWithPrediction(al.PPO):
    """PPO plus an auxiliary head that predicts the reward."""

    prediction_coef: float = 1.0

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        error = ops.mean(ops.square(outputs["prediction"][:, 0] - minibatch["reward"]))
        return loss + self.prediction_coef * error, {**metrics, "prediction_error": error}


def test_a_loss_of_ones_own_with_a_further_output_and_a_head_that_it_ignores():
    x = keras.Input((4,))
    sizes = {"parameters": 2, "value": 1, "prediction": 1, "unused": 1}
    network = keras.Model(x, {name: layers.Dense(size, name=name)(x) for name, size in sizes.items()})
    unused = network.get_layer("unused").get_weights()
    learner = al.Learner(network, PPOWithPrediction(learning_rate=0.01), action_space=TWO_ACTIONS)
    trajectory = random_trajectory()
    errors = [learner.update(trajectory)["prediction_error"] for _ in range(10)]
    assert errors[-1] < errors[0]
    assert same_weights(unused, network.get_layer("unused").get_weights())


def test_regularization_losses_of_the_network_are_added():
    x = keras.Input((4,))
    head = layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5), kernel_initializer="ones")
    network = keras.Model(x, (head(x), layers.Dense(1, kernel_initializer="ones")(x)))
    found = al.Learner(network, al.A2C(vf_coef=0.5), action_space=TWO_ACTIONS).update(random_trajectory())
    assert found["loss"] - (found["policy_loss"] + 0.5 * found["value_loss"]) == pytest.approx(0.5 * 8, rel=1e-4)


def test_frozen_layers_stay_byte_identical_and_frozen():
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(8,))
    frozen = network.get_layer("policy_hidden_1")
    frozen.trainable = False
    before, trained = frozen.get_weights(), network.get_layer("logits").get_weights()
    learner = al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    learner.update(random_trajectory())
    assert same_weights(before, frozen.get_weights())
    assert not same_weights(trained, network.get_layer("logits").get_weights())
    frozen.trainable = True
    with pytest.raises(ValueError, match="must not change after the Learner was built"):
        learner.update(random_trajectory())


def test_a_network_without_a_trainable_weight_is_refused():
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(8,))
    network.trainable = False
    with pytest.raises(ValueError, match="must be trainable, or nothing is learned.*'actor_critic', all of its layers"):
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS).update(random_trajectory())


@keras.saving.register_keras_serializable()
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = layers.Dense(8, "tanh")
        self.logits, self.critic = layers.Dense(2), layers.Dense(1)

    def call(self, observation):
        h = self.hidden(observation)
        return self.logits(h), self.critic(h)


def test_layers_that_depend_on_training_are_named():
    x = keras.Input((4,))
    h = layers.Dropout(0.5, name="my_dropout")(x)
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    learner = al.Learner(network, al.PPO(epochs=1), action_space=TWO_ACTIONS)
    with pytest.warns(UserWarning, match="my_dropout"):
        learner.update(random_trajectory())


class Noisy(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x):
        return x + keras.random.normal(ops.shape(x), seed=self.seed)


def test_noise_in_a_network_whose_ratio_is_taken_is_warned_of():
    x = keras.Input((4,))
    h = Noisy(name="my_noise")(x)
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    with pytest.warns(
        UserWarning, match=r"Layers \['my_noise'\] draw numbers at each call, and the learner draws others"
    ):
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS).update(random_trajectory())


def test_noise_of_a_subclassed_network_s_own_is_warned_of():
    class Drawing(Noisy, keras.Model):
        def __init__(self):
            super().__init__(name="drawing")
            self.heads = [layers.Dense(2), layers.Dense(1)]

        def call(self, x):
            return tuple(head(super(Drawing, self).call(x)) for head in self.heads)

    with pytest.warns(UserWarning, match=r"Layers \['drawing'\] draw numbers at each call"):
        al.Learner(Drawing(), al.PPO(), action_space=TWO_ACTIONS).update(random_trajectory())


def test_what_a_network_was_compiled_with_is_told_not_to_learn():
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(8,))
    network.compile("sgd", "mse")
    with pytest.warns(
        UserWarning, match=r"The algorithm's loss and optimizer \(Adam\) learn, not.*Received: network='.*', SGD"
    ):
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)


def test_normalization_anywhere_but_first_is_refused():
    x = keras.Input((4,))
    h = al.ObservationNormalization()(layers.Dense(7)(x))
    network = keras.Model(x, (layers.Dense(2)(h), layers.Dense(1)(h)))
    with pytest.raises(ValueError, match=r"must be the first layer.*shape \(7,\)"):
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS).update(random_trajectory())


@dataclass(frozen=True, kw_only=True)
class RatioPPO(al.PPO):
    """Reports how far the first minibatch's ratio is from 1."""

    def loss(self, outputs, minibatch):
        loss, metrics = super().loss(outputs, minibatch)
        ratio = ops.exp(outputs["log_prob"] - minibatch["behaviour_log_prob"])
        off = ops.where(minibatch["valid"], ops.abs(ratio - 1.0), 0.0)
        return loss, {**metrics, "ratio_off_by": ops.max(off)}


@pytest.mark.parametrize(
    ("env", "normalize"),
    [("Pendulum-v1", True), pytest.param("CartPole-v1", False, marks=[pytest.mark.xla, pytest.mark.thorough])],
)
def test_the_ratio_is_1_in_the_compiled_update(env, normalize):
    """One whole-batch step, so that the ratio of collected actions is that of the first minibatch."""

    def network(observation_space, action_space):
        options = {"normalize_observation": normalize, "hidden_sizes": (16,)}
        return al.default_network(observation_space, action_space, **options)

    with al.ActorPool(env, network, num_actors=0, envs_per_actor=4, unroll_length=64) as actors:
        algorithm = RatioPPO(epochs=1, minibatch_size=None, learning_rate=1e-2)
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space)
        reported = []
        for _ in range(5):
            reported.append(learner.update(actors.collect()).get("ratio_off_by", 0.0))
            actors.publish(learner.get_weights())
    # Discrete: 1e-5. Box: divided by the smallest std, which starts at 1 and stays above 0.9 here.
    assert max(reported) <= 1.2e-5
    assert len(reported) == 5


def test_a_subclassed_model_is_built_by_its_first_batch():
    network = Subclassed()
    learner = al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    learner.update(random_trajectory())
    before = weights_of(network)
    learner.update(random_trajectory())
    assert not same_weights(before, network.get_weights())


def test_any_keras_optimizer():
    network, optimizer = linear_network(), keras.optimizers.Lion(1e-3)
    before = weights_of(network)
    learner = al.Learner(network, al.PPO(optimizer=optimizer), action_space=TWO_ACTIONS)
    learner.update(random_trajectory())
    assert network.optimizer is learner.optimizer
    assert learner.optimizer is not optimizer
    assert not same_weights(before, network.get_weights())


@pytest.mark.parametrize("options", [{"normalize_reward": True}, {"clip_reward": "sign"}], ids=str)
def test_reward_scaling_and_clipping_reach_the_targets_only(options):
    trajectory = random_trajectory()
    trajectory = trajectory._replace(reward=trajectory.reward * 100)
    raw = trajectory.reward.copy()
    assert np.square(raw).mean() > 5000
    learner = al.Learner(linear_network(), al.A2C(**options), action_space=TWO_ACTIONS)
    assert learner.update(trajectory)["value_loss"] < 100
    np.testing.assert_array_equal(trajectory.reward, raw)


def test_xla_and_plain_tensorflow_agree():
    weights = []
    for xla in (True, False):
        network = al.default_network(VECTOR, TORQUES, hidden_sizes=(8,))
        learner = al.Learner(network, al.PPO(epochs=2), action_space=TORQUES)
        learner._check_first_batch(random_trajectory(TORQUES))
        learner._compile(random_trajectory(TORQUES), xla)
        learner.update(random_trajectory(TORQUES))
        weights.append(network.get_weights())
    for first, second in zip(*weights, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "Received: device='tpu'"),
        ({"seed": -1}, "`seed` must be an integer of at least 0. Received: seed=-1"),
        ({"total_steps": 0}, "`total_steps` must be an integer of at least 1, or None. Received: total_steps=0"),
        ({"algorithm": al.PPO}, "`algorithm` must be an instance, such as al.PPO"),
        ({"algorithm": "ppo"}, "Received: algorithm='ppo'"),
        ({"action_space": None}, "`action` must be Discrete, MultiDiscrete.*Received: None"),
        ({"network": None}, "`network` must be a keras.Model. Received: network=None"),
        ({"algorithm": al.PPO(clip_range="linear")}, "`clip_range` is a schedule.*needs `total_steps`"),
    ],
)
def test_refused_arguments(options, message):
    algorithm = options.pop("algorithm", al.PPO())
    with pytest.raises(ValueError, match=message):
        al.Learner(**{"network": linear_network(), "algorithm": algorithm, "action_space": TWO_ACTIONS, **options})


def test_networks_and_critics_in_float16_are_refused():
    spaces = {"observation_space": VECTOR, "action_space": TORQUES}
    x = keras.Input((4,))
    network = keras.Model(x, (layers.Dense(2)(x), layers.Dense(1, dtype="mixed_float16")(x)))
    said = (
        r"^A model must compute in bfloat16 or float32 .*: float16 is no longer supported. Received: '.*' in float16$"
    )
    with pytest.raises(ValueError, match=said):
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)

    def critic(observation_space, action_space):
        inputs = x, keras.Input(action_space.shape)
        return keras.Model(inputs, layers.Dense(1, dtype="mixed_float16")(layers.Concatenate()(inputs)))

    policy = al.default_network(**spaces, distribution="squashed", state_dependent_std=True, hidden_sizes=(4,))
    learner = al.Learner(policy, al.SAC(), **spaces, critics=critic, total_steps=1000)
    with pytest.raises(ValueError, match=said):
        learner.update(random_trajectory(TORQUES))


def with_values(count):
    x = keras.Input((4,))
    return keras.Model(x, (layers.Dense(2)(x), layers.Dense(count)(x)))


@pytest.mark.parametrize(
    ("network", "batch", "message"),
    [
        (lambda: linear_network(3), {}, r"`parameters` must have shape \[B, 2\].*Received: \[B, 3\]"),
        (lambda: with_values(3), {}, r"`value` must have shape \[B\] or \[B, 1\].*\[B, 3\]"),
        (
            linear_network,
            {"observation": np.zeros((17, 4, 5), np.float32)},
            r"doesn't take observations of shape \(5,\).*[^.]\. Received: the network '",
        ),
        (linear_network, {"observation": np.zeros((17, 4), np.float32)}, r"doesn't take observations of shape \(\)"),
        (linear_network, {"reward": np.zeros(4)}, "`reward` must have shape"),
    ],
)
def test_a_batch_that_does_not_fit_the_network(network, batch, message):
    learner = al.Learner(network(), al.PPO(), action_space=TWO_ACTIONS)
    with pytest.raises(ValueError, match=message) as caught:
        learner.update(random_trajectory()._replace(**batch))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_nothing_is_kept_of_what_schedules_gave():
    """TensorFlow keeps a tensor of each Python number that it gets: gigabytes of learning rates in a day."""
    given = []

    def rate(remaining):
        given.append(random.random())
        return given[-1]

    algorithm = al.PPO(learning_rate=rate, clip_range=rate, epochs=1)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=10**6)
    learner.update(random_trajectory())
    given.clear()
    for seed in range(5):
        learner.update(random_trajectory(seed=seed))
    assert len(given) == 10
    assert set(map(sys.getrefcount, given)) == set(map(sys.getrefcount, [random.random()]))
