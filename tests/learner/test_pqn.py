"""PQN: its targets by the recursion, with masks, truncations and memory; what it warns of and refuses."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.base import Evaluated
from actor_learner.learner.batch import fields_of, without_invalid
from actor_learner.learner.network_calls import NetworkCalls
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.spaces.validate import validate_trajectory
from tests.support.small_networks import same_weights
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")

FOUR = Discrete(4)
SEEN = Dict({"observation": VECTOR, MASK_KEY: MultiBinary(4)})


def linear_values(space=VECTOR, actions=4):
    """Action values that are linear in the observation, of which forbidden ones are the largest."""
    x = keras.Input((4,), name="observation")
    values = layers.Dense(actions, use_bias=False)(x)
    network = keras.Model(x, (al.ActionDistribution("greedy")(values), ops.max(values, axis=-1)))
    network.layers[1].set_weights([np.random.default_rng(7).normal(size=(4, actions)).astype(np.float32)])
    return network


def values_of(network, observation):
    return np.asarray(observation, np.float64) @ network.layers[1].get_weights()[0]


def q_lambda_by_loop(reward, value, ended, *, gamma, q_lambda):
    """The recursion of CleanRL's pqn.py: value `[T + 1, B]` of the best actions, ended `[T, B]` after each row."""
    returns = np.zeros_like(reward)
    for t in reversed(range(len(reward))):
        if t == len(reward) - 1:
            returns[t] = reward[t] + gamma * value[t + 1] * (1 - ended[t])
        else:
            mixed = q_lambda * returns[t + 1] + (1 - q_lambda) * value[t + 1]
            returns[t] = reward[t] + gamma * mixed * (1 - ended[t])
    return returns


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
def test_targets_are_those_of_the_recursion(q_lambda):
    rng = np.random.default_rng(1)
    trajectory = random_trajectory(steps=24, columns=6, end_rate=0.2)._replace(truncated=np.zeros((24, 6), bool))
    value = rng.normal(size=(25, 6)).astype(np.float32)
    batch = {name: field for name, field in trajectory._asdict().items() if field is not None}
    found = al.PQN(gamma=0.9, q_lambda=q_lambda).rows(batch, lambda batch: Evaluated(value, None, value[:-1]))
    expected = q_lambda_by_loop(
        trajectory.reward.astype(np.float64), value, trajectory.terminated, gamma=0.9, q_lambda=q_lambda
    )
    np.testing.assert_allclose(ops.convert_to_numpy(found["return"]), expected, atol=1e-6)


def learned_rows(trajectory, masks_in):
    """Which rows are learned: bool `[T, B]`."""
    if masks_in is None:
        return trajectory.valid
    last = np.arange(len(trajectory.valid))[:, None] == len(trajectory.valid) - 1
    unknown = trajectory.truncated | last if masks_in == "rows" else trajectory.truncated
    return trajectory.valid & (trajectory.terminated | ~unknown)


def masked_trajectory(masks_in):
    space = SEEN if masks_in == "observation" else VECTOR
    trajectory = random_trajectory(FOUR, masked=masks_in is not None, observation_space=space, end_rate=0.2)
    if masks_in in (None, "rows"):
        return trajectory
    last = np.random.default_rng(3).random((1, 4, 4)) < 0.5
    last[..., 1] = True
    mask = np.concatenate([trajectory.action_mask, last])
    if masks_in == "field":
        return trajectory._replace(action_mask=mask)
    trajectory.observation[MASK_KEY] = mask.astype(np.int8)
    return trajectory


@pytest.mark.filterwarnings("ignore:PQN has no targets")
@pytest.mark.parametrize("masks_in", [None, "rows", "field", "observation"])
def test_one_step_of_plain_sgd_by_hand(masks_in):
    """Targets never have the value of a forbidden action, and rows without a known mask after them aren't learned."""
    algorithm = al.PQN(
        optimizer=keras.optimizers.SGD(0.1), epochs=1, minibatch_size=None, q_lambda=0.7, exploration_fraction=0.0
    )
    trajectory, network = masked_trajectory(masks_in), linear_values()
    seen = trajectory.observation["observation"] if masks_in == "observation" else trajectory.observation
    values, before = values_of(network, seen), network.layers[1].get_weights()[0]
    allowed = np.ones_like(values, bool)
    if masks_in == "observation":
        allowed = trajectory.observation[MASK_KEY] > 0
    elif masks_in is not None:
        allowed[: len(trajectory.action_mask)] = trajectory.action_mask
    value, learned = np.where(allowed, values, -np.inf).max(axis=-1), learned_rows(trajectory, masks_in)
    target, following = np.zeros(trajectory.reward.shape), None
    for t in reversed(range(len(target))):
        mixed = value[t + 1] if following is None else np.where(following[1], following[0], value[t + 1])
        mixed = 0.7 * mixed + 0.3 * value[t + 1]
        mixed = np.where(trajectory.truncated[t], trajectory.truncation_value[t], mixed)
        target[t] = trajectory.reward[t] + algorithm.gamma * np.where(trajectory.terminated[t], 0.0, mixed)
        following = target[t], learned[t]
    chosen = np.take_along_axis(values[:-1], trajectory.action[..., None], -1)[..., 0]
    error = np.where(learned, target - chosen, 0.0)
    one_hot = np.eye(4)[trajectory.action]
    gradient = -np.einsum("tb,tbi,tba->ia", error, seen[:-1], one_hot) / learned.sum()

    observation_space = SEEN if masks_in == "observation" else VECTOR
    learner = al.Learner(network, algorithm, action_space=FOUR, total_steps=100, observation_space=observation_space)
    metrics = learner.update(trajectory)
    np.testing.assert_allclose(network.layers[1].get_weights()[0], before - 0.1 * gradient, rtol=1e-4, atol=1e-5)
    assert metrics["loss"] == pytest.approx(0.5 * np.square(error).sum() / learned.sum(), rel=1e-4)
    assert metrics["td_error"] == pytest.approx(np.abs(error).sum() / learned.sum(), rel=1e-4)
    assert metrics["epsilon"] == algorithm.exploration_final_eps


def evaluated(network, trajectory, space=VECTOR):
    calls = NetworkCalls(network, Spaces(space, FOUR), 1, list)
    checked = validate_trajectory(trajectory, Spaces(space, FOUR))
    batch = without_invalid(fields_of(checked, greedy=True))
    apart = ("final_observation", "final_row", "final_action_mask", "shown_mask")
    final = {name: batch.pop(name) for name in apart if name in batch}
    return calls.evaluate(batch, final)[0]


def test_a_truncated_row_has_the_value_of_the_best_allowed_action_after_it():
    trajectory, network = masked_trajectory("observation"), linear_values()
    row, column = np.argwhere(trajectory.truncated)[0]
    last = {"observation": np.ones((4, 4), np.float32), MASK_KEY: np.zeros((4, 4), np.int8)}
    last[MASK_KEY][:, 2] = 1
    final_row = np.full(4, -1, np.int32)
    final_row[column] = row
    found = evaluated(network, trajectory._replace(final_observation=last, final_row=final_row), SEEN)
    expected = values_of(network, np.ones(4))[2]
    assert ops.convert_to_numpy(found.truncation_value)[row, column] == pytest.approx(expected, rel=1e-5)
    known = ops.convert_to_numpy(found.known)
    assert known[row, column]
    others = trajectory.truncated.copy()
    others[row, column] = False
    assert not known[others].any()
    assert known[~others].all()


def test_a_row_before_an_observation_that_allows_nothing_is_not_learned():
    """Its episode was cut off there, so that nobody had to act on it."""
    trajectory, network = masked_trajectory("observation"), linear_values()
    row, column = np.argwhere(trajectory.truncated)[0]
    last = {"observation": np.ones((4, 4), np.float32), MASK_KEY: np.zeros((4, 4), np.int8)}
    final_row = np.full(4, -1, np.int32)
    final_row[column] = row
    found = evaluated(network, trajectory._replace(final_observation=last, final_row=final_row), SEEN)
    assert not ops.convert_to_numpy(found.known)[row, column]


def make_learner(algorithm=None, network=None, total_steps=256):
    network = network or al.default_network(VECTOR, TWO_ACTIONS, layer_norm=True, distribution="greedy", seed=0)
    algorithm = algorithm or al.PQN(minibatch_size=32, exploration_fraction=0.5, exploration_final_eps=0.2)
    return al.Learner(network, algorithm, action_space=TWO_ACTIONS, total_steps=total_steps)


def epsilon_of(learner):
    return float(learner.network.get_layer("parameters").epsilon[0])


def test_epsilon_falls_with_the_run_and_is_kept(tmp_path):
    learner = make_learner()
    assert epsilon_of(learner) == 1.0
    names = learner.trace(random_trajectory())
    metrics = learner.update(random_trajectory())
    assert set(names) == set(metrics)
    assert metrics["epsilon"] == pytest.approx(1.0 - 0.8 * 0.5)
    assert epsilon_of(learner) == pytest.approx(0.6)
    broken = random_trajectory(seed=1)
    broken.reward[0, 0] = 1e30
    assert learner.update(broken)["undone"] == 1.0
    assert epsilon_of(learner) == pytest.approx(0.6)

    learner.save(tmp_path / "saved")
    again = al.Learner.load(tmp_path / "saved")
    assert epsilon_of(again) == pytest.approx(0.6)
    for each in (learner, again):
        assert each.update(random_trajectory(seed=2))["epsilon"] == pytest.approx(0.2)
    assert same_weights(learner.network.get_weights(), again.network.get_weights())


@pytest.mark.parametrize("network", ["auto", "nature", "impala"])
def test_each_hidden_layer_of_the_default_networks_is_normalized(network):
    image = Box(0, 255, (44, 44, 2) if network != "auto" else (10, 10, 4), np.uint8)
    made = al.default_network(image, FOUR, image_network=network, layer_norm=True, distribution="greedy")
    kinds = [type(layer).__name__ for layer in made.layers]
    hidden = kinds.count("Conv2D") + kinds.count("Dense") - 1  # the head
    assert kinds.count("LayerNormalization") == hidden > 1
    assert all(layer.activation is keras.activations.linear for layer in made.layers if hasattr(layer, "kernel"))
    plain = al.default_network(image, FOUR, image_network=network, distribution="greedy")
    assert not any("Normalization" in type(layer).__name__ for layer in plain.layers)


def test_critics_may_have_layer_normalization():
    critic = al.default_critic(VECTOR, Box(-1, 1, (2,), np.float32), layer_norm=True, hidden_sizes=(8, 8))
    assert sum("LayerNormalization" in type(layer).__name__ for layer in critic.layers) == 2


def test_without_layer_normalization_it_warns():
    plain = al.default_network(VECTOR, TWO_ACTIONS, distribution="greedy")
    with pytest.warns(UserWarning, match="without layer normalization values often grow.* Received: a network of "):
        make_learner(network=plain)
    with warnings.catch_warnings(action="error"):
        make_learner()


def test_a_network_with_memory_learns_values_of_histories():
    """The gradient reaches back through the steps of a sequence."""
    options = {"memory": "gru", "memory_size": 4, "hidden_sizes": (8,), "layer_norm": True}
    network = al.default_network(VECTOR, TWO_ACTIONS, distribution="greedy", **options)
    learner = make_learner(al.PQN(minibatch_size=16, exploration_fraction=0.0), network)
    trajectory = random_trajectory()
    start = np.concatenate([np.zeros((1, 4), bool), trajectory.terminated | trajectory.truncated])
    cell = network.get_layer("memory").trainable_variables[1]
    before = ops.convert_to_numpy(cell).copy()
    metrics = learner.update(trajectory._replace(start=start, initial_state=(np.zeros((4, 4), np.float32),)))
    assert np.isfinite(metrics["loss"])
    assert np.abs(ops.convert_to_numpy(cell) - before).max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: al.PQN(q_lambda=1.1), r"`q_lambda` must be .* Received: q_lambda=1.1"),
        (lambda: al.PQN(epochs=0), r"`epochs` must be an integer of at least 1. Received: epochs=0"),
        (lambda: al.PQN(exploration_final_eps=-1), r"`exploration_final_eps` must be"),
        (lambda: make_learner(total_steps=None), r"`exploration_fraction` is about parts of a run.*total_steps=None"),
        (
            lambda: make_learner(network=al.default_network(VECTOR, TWO_ACTIONS, layer_norm=True)),
            "PQN needs a network whose `parameters` are values of actions.* Received: distribution='gaussian'",
        ),
        (
            lambda: al.TrainConfig(algorithm=al.PQN(), distribution="squashed"),
            "`distribution` must be left out for PQN",
        ),
        (lambda: al.TrainConfig(algorithm=al.PQN(), centralized_value=True), "`centralized_value` must be left out"),
        (
            lambda: al.TrainConfig(algorithm=al.PQN(dueling=True), network=linear_values),
            "`dueling` is for the default network; build it into yours",
        ),
        (
            lambda: al.train(al.TrainConfig(env="Pendulum-v1", algorithm=al.PQN(), num_actors=0, quiet=True)),
            "PQN needs a Discrete action space; SAC and TD3 take Boxes",
        ),
    ],
)
def test_bad_input(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.filterwarnings("ignore:PQN has no targets")
def test_a_single_step_is_learned_with_the_mask_of_what_follows():
    learner = al.Learner(linear_values(), al.PQN(q_lambda=0.0, minibatch_size=4), action_space=FOUR, total_steps=100)
    trajectory = random_trajectory(FOUR, steps=1, masked=True, end_rate=0.0)
    mask = np.concatenate([trajectory.action_mask, trajectory.action_mask])
    assert learner.update(trajectory._replace(action_mask=mask))["td_error"] > 0


def test_settings_that_seldom_learn_are_warned_of():
    with pytest.warns(UserWarning, match=r"lower `q_lambda` or `max_policy_lag`. Received: q_lambda=0.95"):
        al.TrainConfig(algorithm=al.PQN(q_lambda=0.95), max_policy_lag=2)
    with pytest.warns(UserWarning, match="`q_lambda` has no effect in unrolls of one step"):
        al.TrainConfig(algorithm=al.PQN(), unroll_length=1)
    with warnings.catch_warnings(action="error"):
        al.TrainConfig(algorithm=al.PQN(q_lambda=0.95), max_policy_lag=1)


def test_an_instance_takes_no_preset_of_ppo():
    with pytest.raises(ValueError, match="There is no preset of this name for PQN"):
        al.preset("Pendulum-v1", algorithm=al.PQN())
    assert dataclasses.replace(al.preset("CartPole-v1", algorithm=al.PQN()).algorithm) == al.PQN()
