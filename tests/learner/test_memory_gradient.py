"""The gradient of an update through a memory, against backpropagation through time by hand."""

import keras
import numpy as np
import pytest
from gymnasium.spaces import Discrete

import actor_learner as al
from actor_learner.networks.unrolling import unroll_for

pytestmark = pytest.mark.usefixtures("without_xla")
STEPS, COLUMNS, UNITS, RATE = 6, 3, 4, 0.1
RNG = np.random.default_rng(3)


class Advantage(al.algorithms.Algorithm):
    """Minimizes -reward x log-probability + (value - reward)^2, as means over rows."""

    def loss(self, outputs, minibatch):
        from keras import ops

        policy_loss = -ops.mean(minibatch["reward"] * outputs["log_prob"])
        return policy_loss + ops.mean(ops.square(outputs["value"] - minibatch["reward"])), {}


def network_of(cell=keras.layers.SimpleRNNCell, memory=al.Recurrent, **options):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((2,))
    hidden = memory(cell(UNITS, bias_initializer="random_normal", **options))(inputs)
    return keras.Model(inputs, (keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)))


def trajectory_of(start, *state):
    rows = (STEPS, COLUMNS)
    return al.Trajectory(
        observation=RNG.standard_normal((STEPS + 1, COLUMNS, 2)).astype(np.float32),
        action=RNG.integers(0, 2, rows),
        reward=RNG.standard_normal(rows).astype(np.float32),
        terminated=start[1:].copy(),
        truncated=np.zeros(rows, bool),
        valid=np.ones(rows, bool),
        behaviour_log_prob=np.full(rows, np.log(0.5), np.float32),
        truncation_value=np.zeros(rows, np.float32),
        policy_version=np.zeros(COLUMNS, np.int64),
        start=start,
        initial_state=state,
    )


def by_hand(weights, trajectory):
    """Return the gradient of each weight of the network, in float64."""
    kernel, recurrent, bias, policy, policy_bias, value, value_bias = (np.asarray(w, np.float64) for w in weights)
    x, start, reward = trajectory.observation[:-1].astype(np.float64), trajectory.start, trajectory.reward
    before, after = np.zeros((STEPS, COLUMNS, UNITS)), np.zeros((STEPS, COLUMNS, UNITS))
    state = trajectory.initial_state[0].astype(np.float64)
    for t in range(STEPS):
        before[t] = np.where(start[t][:, None], 0.0, state)
        state = after[t] = np.tanh(x[t] @ kernel + before[t] @ recurrent + bias)
    logits = after @ policy + policy_bias
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    count = STEPS * COLUMNS
    of_logits = (probability - np.eye(2)[trajectory.action]) * reward[..., None] / count
    of_value = 2 * ((after @ value + value_bias)[..., 0] - reward)[..., None] / count
    of_output = of_logits @ policy.T + of_value @ value.T
    of_state, found = np.zeros((COLUMNS, UNITS)), [np.zeros_like(w) for w in (kernel, recurrent, bias)]
    for t in reversed(range(STEPS)):
        of_sum = (of_output[t] + of_state) * (1 - after[t] ** 2)
        found = [found[0] + x[t].T @ of_sum, found[1] + before[t].T @ of_sum, found[2] + of_sum.sum(axis=0)]
        of_state = np.where(start[t][:, None], 0.0, of_sum @ recurrent.T)
    heads = [
        *(np.einsum("tbu,tbk->uk", after, of_logits), of_logits.sum((0, 1))),
        *(np.einsum("tbu,tbk->uk", after, of_value), of_value.sum((0, 1))),
    ]
    return [*found, *heads]


@pytest.mark.parametrize("length", [3, pytest.param(STEPS, marks=[pytest.mark.xla, pytest.mark.thorough])])
def test_a_step_of_plain_gradient_descent(length):
    start = np.zeros((STEPS + 1, COLUMNS), bool)
    start[2, 0] = start[5, 0] = start[0, 2] = True
    if length < STEPS:
        start[length] = True  # so that nothing flows across the sequences' border anyway
    trajectory = trajectory_of(start, RNG.standard_normal((COLUMNS, UNITS)).astype(np.float32))
    network = network_of()
    before = network.get_weights()
    for found, gradient in zip(gradients(network, trajectory, length), by_hand(before, trajectory), strict=True):
        np.testing.assert_allclose(found, gradient, atol=2e-6)


def gradients(network, trajectory, length=STEPS):
    """Return the gradient of each weight, found by a step of plain gradient descent."""
    before = network.get_weights()
    algorithm = Advantage(optimizer=keras.optimizers.SGD(RATE))
    learner = al.Learner(network, algorithm, action_space=Discrete(2), sequence_length=length)
    learner.update(trajectory)
    return [(old - new) / RATE for old, new in zip(before, network.get_weights(), strict=True)]


class ScannedLSTMCell(keras.layers.LSTMCell):
    """A class of one's own: its steps are scanned as they are written."""


class ScannedGRUCell(keras.layers.GRUCell):
    """A class of one's own: its steps are scanned as they are written."""


@pytest.mark.parametrize(
    ("cell", "scanned", "options", "leaves"),
    [
        (keras.layers.LSTMCell, ScannedLSTMCell, {}, 2),
        (keras.layers.GRUCell, ScannedGRUCell, {}, 1),
        pytest.param(keras.layers.LSTMCell, ScannedLSTMCell, {"use_bias": False}, 2, marks=pytest.mark.thorough),
    ],
)
def test_written_out_gradients_are_those_of_the_scanned_cell(cell, scanned, options, leaves):
    start = np.zeros((STEPS + 1, COLUMNS), bool)
    start[2, 0] = start[5, 0] = start[0, 2] = True
    trajectory = trajectory_of(start, *RNG.standard_normal((leaves, COLUMNS, UNITS)).astype(np.float32))
    network, other = network_of(cell, **options), network_of(scanned, **options)
    assert unroll_for(network.layers[1].cell)
    assert not unroll_for(other.layers[1].cell)
    for found, gradient in zip(gradients(network, trajectory), gradients(other, trajectory), strict=True):
        np.testing.assert_allclose(found, gradient, atol=1e-6)


class Doubled(al.Recurrent):
    """Has steps of its own."""

    def step(self, x, state):
        output, state = super().step(x, state)
        return 2 * output, state


def test_a_subclass_is_unrolled_by_its_own_steps():
    networks = [network_of(cell, Doubled) for cell in (keras.layers.LSTMCell, ScannedLSTMCell)]
    trajectory = trajectory_of(np.zeros((STEPS + 1, COLUMNS), bool), *np.zeros((2, COLUMNS, UNITS), np.float32))
    for found, gradient in zip(*(gradients(network, trajectory) for network in networks), strict=True):
        np.testing.assert_allclose(found, gradient, atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        (keras.layers.LSTMCell, {"activation": "relu"}),
        (keras.layers.GRUCell, {"recurrent_activation": "hard_sigmoid"}),
        (keras.layers.GRUCell, {"reset_after": False}),
        (keras.layers.LSTMCell, {"dropout": 0.1}),
        (keras.layers.LSTMCell, {"dtype": "mixed_bfloat16"}),
    ],
)
def test_other_cells_are_scanned_as_they_are_written(cell, options):
    assert not unroll_for(cell(UNITS, **options))
