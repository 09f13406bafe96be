"""Adam's step in one kernel is Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import actor_learner as al
from actor_learner.learner.tf.fused_adam import fuse
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.slow


def stepped(optimizer, steps=20):
    """Weights and moments after steps with one gradient each time for a matrix, a vector and rows of a table."""
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((5, 3), (3,), (4, 2))]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(matrix, vector, row):
        rows = tf.IndexedSlices(row, tf.constant([2]), tf.constant([4, 2]))
        optimizer.apply([matrix, vector, rows], variables)

    for _ in range(steps):
        step(*(tf.constant(rng.normal(size=shape), tf.float32) for shape in ((5, 3), (3,), (1, 2))))
    return [variable.numpy() for variable in (*variables, *optimizer.variables)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning_rate": 0.1, "beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-5},
        {"global_clipnorm": 0.5},
        {"weight_decay": 0.1},
        {"use_ema": True, "ema_momentum": 0.9},
        {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)},
    ],
    ids=["defaults", "Zoo", "clipped", "decayed", "averaged", "scheduled"],
)
def test_the_kernel_computes_what_keras_does(settings):
    plain, fused = keras.optimizers.Adam(**settings), keras.optimizers.Adam(**settings)
    fuse(fused)
    for expected, found in zip(stepped(plain), stepped(fused), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


def test_the_graph_holds_one_kernel_for_each_variable():
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable([1.0]), keras.Variable([[2.0]])]
    optimizer.build(variables)
    fuse(optimizer)
    apply = tf.function(lambda: optimizer.apply([tf.constant([1.0]), tf.constant([[1.0]])], variables), autograph=False)
    operations = [operation.type for operation in apply.get_concrete_function().graph.get_operations()]
    assert operations.count("ResourceApplyAdam") == 2
    assert "Sqrt" not in operations


@pytest.mark.parametrize("make", [lambda: keras.optimizers.Adam(amsgrad=True), keras.optimizers.AdamW])
def test_other_optimizers_step_as_they_do(make):
    plain, untouched = make(), make()
    fuse(untouched)
    for expected, found in zip(stepped(plain), stepped(untouched), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_fused_optimizer_is_saved_and_cloned_as_keras_own():
    optimizer = keras.optimizers.Adam(0.01)
    fuse(optimizer)
    clone = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert clone.get_config() == optimizer.get_config()
    assert "update_step" not in vars(clone)


def test_gradients_accumulate(without_xla):
    """Keras counts the steps of such an optimizer by no variable."""
    network = al.default_network(VECTOR, TWO_ACTIONS, hidden_sizes=(4,))
    optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)
    algorithm = al.PPO(optimizer=optimizer, minibatch_size=8, epochs=2)
    learner = al.Learner(network, algorithm, action_space=TWO_ACTIONS)
    trajectory = random_trajectory(TWO_ACTIONS)
    before = network.get_weights()
    assert "undone" not in learner.update(trajectory)
    assert not learner.compiled_with_xla
    assert any((one != other).any() for one, other in zip(before, network.get_weights(), strict=True))
