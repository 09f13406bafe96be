"""Layers that remember: unrolling is stepping, and what a step can't do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops, tree

import actor_learner as al
from actor_learner.learner import backend
from actor_learner.networks.attention import steps_since_start
from actor_learner.networks.memory import Memories, StepLayout

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
ROWS = StepLayout(backend.scan, backend.unflatten, backend.flatten)
STEPS, COLUMNS = 9, 3


class Adding(al.Memory):
    """The sum of an episode's inputs so far, which begins at 1."""

    def initial_state(self, rows):
        return ops.ones((rows, 2))

    def step(self, x, state):
        return x + state, x + state


MEMORIES = {
    "own": Adding,
    "gru": lambda: al.Recurrent(keras.layers.GRUCell(4)),
    "lstm": lambda: al.Recurrent(keras.layers.LSTMCell(4)),
    "stacked": lambda: al.Recurrent([keras.layers.LSTMCell(4), keras.layers.SimpleRNNCell(3)]),
    "short attention": lambda: al.AttentionMemory(window=3, heads=2, size=8),
    "attention in uneven blocks": lambda: al.AttentionMemory(window=4, heads=2, size=8),
    "long attention": lambda: al.AttentionMemory(window=20, heads=1, size=4),
}


def network_of(memory):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2,))
    return keras.Model(inputs, memory()(inputs))


def drawn():
    x = RNG.standard_normal((STEPS, COLUMNS, 2)).astype(np.float32)
    start = RNG.random((STEPS, COLUMNS)) < 0.25
    start[4, 1] = True
    return x, start


def stepped(network, x, start, state):
    memories, outputs = Memories(network), []
    for row, begins in zip(x, start, strict=True):
        with memories.stepping(begins, state) as after:
            outputs.append(np.asarray(network(row)))
        state = tuple(after)
    return np.stack(outputs), state


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_unrolling_is_stepping_though_episodes_start(memory):
    network, (x, start) = network_of(memory), drawn()
    memories = Memories(network)
    _, state = stepped(network, *drawn(), memories.initial_state(COLUMNS))
    outputs, last = stepped(network, x, start, state)
    with memories.stepping(start, state, ROWS) as after:
        unrolled = np.asarray(network(x.reshape(-1, 2))).reshape(STEPS, COLUMNS, -1)
    np.testing.assert_allclose(unrolled, outputs, atol=1e-6)
    for one, other in zip(after, last, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_what_was_before_a_start_has_no_effect(memory):
    network, (x, start) = network_of(memory), drawn()
    start[4] = True
    other = x.copy()
    other[:4] += 1.0
    state = Memories(network).initial_state(COLUMNS)
    one, another = (stepped(network, values, start, state)[0] for values in (x, other))
    assert not np.allclose(one[3], another[3])
    np.testing.assert_array_equal(one[4:], another[4:])


def test_a_call_outside_is_the_first_step_of_an_episode():
    network = network_of(Adding)
    np.testing.assert_array_equal(network(np.zeros((5, 2), np.float32)), np.ones((5, 2)))
    assert network.predict(np.zeros((5, 2), np.float32), verbose=0).shape == (5, 2)


@pytest.mark.parametrize("memory", ["stacked", "short attention"])
def test_a_saved_network_remembers_as_before(memory, tmp_path):
    network, (x, start) = network_of(MEMORIES[memory]), drawn()
    network.save(tmp_path / "network.keras")
    loaded = keras.saving.load_model(tmp_path / "network.keras")
    state = Memories(network).initial_state(COLUMNS)
    (output, *states), (again, *others) = (tree.flatten(stepped(each, x, start, state)) for each in (network, loaded))
    np.testing.assert_array_equal(output, again)
    for one, other in zip(states, others, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_layers_of_one_name_have_states_of_their_own():
    def part(name):
        inputs = keras.Input((2,))
        return keras.Model(inputs, Adding(name="memory")(inputs), name=name)

    inputs = keras.Input((2,))
    network = keras.Model(inputs, keras.layers.Concatenate()([part("one")(inputs), part("two")(2 * inputs)]))
    outputs, state = stepped(
        network, np.ones((2, 1, 2), np.float32), np.zeros((2, 1), bool), (np.zeros((1, 2), np.float32),) * 2
    )
    np.testing.assert_array_equal(outputs[:, 0], [[1, 1, 2, 2], [2, 2, 4, 4]])
    assert len(state) == 2


class Growing(Adding):
    def step(self, x, state):
        return x, ops.concatenate([state, x], axis=-1)


class Forgetting(Adding):
    def step(self, x, state):
        return x + state


class Stateless(Adding):
    def __init__(self, initial):
        super().__init__()
        self.initial = initial

    def initial_state(self, rows):
        return self.initial


class Losing(Adding):
    def step(self, x, state):
        return x, None


def called_twice():
    inputs, memory = keras.Input((2,)), Adding()
    return keras.Model(inputs, memory(memory(inputs)))


def called(network):
    memories = Memories(network)
    with memories.stepping(np.ones(3, bool), memories.initial_state(3)):
        network(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: network_of(Growing), r"must keep its shapes and dtypes, \[\(\(3, 2\), 'float32'\)\]"),
        (called_twice, "can be called once in a network"),
        (lambda: network_of(Forgetting), r"`step` of a memory must return \(output, state\)"),
        (lambda: network_of(Losing), "state of a memory must be tensors .*Losing.step, which returns None"),
        (lambda: network_of(lambda: Stateless(())), r"`initial_state` of a memory must .* Stateless.*returns \(\)"),
        (lambda: network_of(lambda: Stateless(None)), "must return .* Stateless.*returns None"),
    ],
)
def test_a_step_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        called(make())


def test_a_memory_without_a_step_is_refused():
    with pytest.raises(TypeError, match=r"must have `step`. Received: Nothing without"):
        type("Nothing", (al.Memory,), {"initial_state": lambda self, rows: ops.zeros((rows, 1))})()


@pytest.mark.parametrize("cell", [keras.layers.LSTM(4), keras.layers.Dense(4), "lstm", None, []])
def test_only_cells_are_cells(cell):
    with pytest.raises(ValueError, match=r"`cell` must be a Keras cell.*LSTMCell"):
        al.Recurrent(cell)


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_attention_computes_in_half_precision(precision):
    memory, x = al.AttentionMemory(window=4, heads=1, size=4, dtype=precision), RNG.normal(size=(3, 2))
    like = al.AttentionMemory(window=4, heads=1, size=4)
    outputs = [np.asarray(layer(np.float32(x))) for layer in (memory, like)]
    like.set_weights(memory.get_weights())
    np.testing.assert_allclose(outputs[0], np.asarray(like(np.float32(x))), atol=0.05)


def test_heads_share_the_size():
    with pytest.raises(ValueError, match="`memory_size` must be a multiple of the 4 heads .*Received: memory_size=6"):
        al.TrainConfig(memory="attention", memory_size=6)
    with pytest.raises(ValueError, match="`size` must be a multiple of the 4 heads"):
        al.AttentionMemory(size=30)


def largest_tensor(function, *specs):
    """The numbers in the largest tensor of a function's graph."""
    graph = tf.function(function).get_concrete_function(*specs).graph
    return max(output.shape.num_elements() for operation in graph.get_operations() for output in operation.outputs)


def test_the_last_start_is_found_without_comparing_all_pairs_of_steps():
    steps, rows = 64, 8
    length = np.zeros(rows, np.float32)
    found = largest_tensor(lambda start: steps_since_start(length, start), tf.TensorSpec((steps, rows), tf.bool))
    assert found <= steps * rows


def test_attention_compares_a_step_with_its_window_and_not_with_all_steps():
    steps, rows, window = 64, 2, 8
    memory = al.AttentionMemory(window=window, heads=4, size=4)
    memory.build((None, 3))
    specs = tf.TensorSpec((steps, rows, 3)), tf.TensorSpec((steps, rows), tf.bool)
    found = largest_tensor(lambda x, start: memory.unroll(x, memory.initial_state(rows), start)[0], *specs)
    assert found == steps * 2 * window * rows * memory.heads
