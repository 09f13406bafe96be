"""A policy with memory: its state, kept inside or by the caller."""

import keras
import numpy as np
import pytest
from gymnasium.spaces import Discrete

import actor_learner as al
from actor_learner.networks.memory import Memories
from actor_learner.policy.export.exporting import export_policy

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    hidden = al.Recurrent([keras.layers.GRUCell(4), keras.layers.LSTMCell(3)])(inputs)
    return keras.Model(inputs, (4 * keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)))


@pytest.fixture(scope="module")
def exported(network):
    return export_policy(network, Discrete(2), 4)


@pytest.fixture
def policy(exported):
    return al.Policy(exported)


def observations(steps=5, rows=4):
    return RNG.standard_normal((steps, rows, 3)).astype(np.float32)


def values(policy, seen):
    """Act on each observation; return the values that the policy gives before each, which show its state."""
    found = []
    for observation in seen:
        found.append(policy.value(observation))
        policy.act(observation)
    return np.stack(found)


def test_a_policy_remembers_and_reset_makes_it_forget(policy):
    seen = observations()
    first = values(policy, seen)
    again = values(policy, seen)
    policy.reset()
    assert not np.allclose(first[0], again[0])
    np.testing.assert_array_equal(values(policy, seen), first)


def test_rows_are_reset_alone(policy):
    seen = observations()
    first = values(policy, seen)
    policy.reset([1, 3])
    mixed = values(policy, seen)
    np.testing.assert_array_equal(mixed[:, [1, 3]], first[:, [1, 3]])
    assert not np.allclose(mixed[0, [0, 2]], first[0, [0, 2]])


def test_start_resets_in_the_same_call(policy):
    seen = observations()
    policy.act(seen[0])
    assert policy.exported.state_shapes == ((4,), (3,), (3,))
    policy.act(seen[1], start=[True, False, False, False])
    started = policy.state_leaves
    other = al.Policy(policy.exported)
    other.act(seen[1])
    np.testing.assert_allclose(started[0][0], other.state_leaves[0][0], atol=1e-7)
    assert not np.allclose(started[0][1], other.state_leaves[0][1])


def test_sessions_keep_their_own_states(policy):
    seen = observations(rows=1)[:, 0]
    policy.act(observations()[0])
    state, own = policy.initial_state(), policy.state_leaves
    for step, observation in enumerate(seen):
        _, state = policy.act(observation, start=step == 0, state=state)
    assert [leaf.shape for leaf in state] == [(4,), (3,), (3,)]
    for before, now in zip(own, policy.state_leaves, strict=True):
        np.testing.assert_array_equal(before, now)
    alone = al.Policy(policy.exported)
    for observation in seen:
        alone.act(observation)
    for mine, theirs in zip(state, alone.state_leaves, strict=True):
        np.testing.assert_allclose(mine, theirs[0], atol=1e-7)


def test_the_graph_does_what_the_network_does(policy, network):
    memories = Memories(network)
    state = tuple(np.zeros((4, *shape), np.float32) for shape in memories.shapes)
    for step, observation in enumerate(observations()):
        with memories.stepping(np.full(4, step == 0), state) as after:
            _, value = network(observation)
        np.testing.assert_allclose(policy.value(observation), np.asarray(value)[:, 0], atol=1e-5)
        policy.act(observation)
        state = tuple(map(np.asarray, after))
        for mine, theirs in zip(policy.state_leaves, state, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_other_rows_are_refused_until_it_has_forgotten(policy):
    policy.act(observations()[0])
    with pytest.raises(ValueError, match=r"`rows` must be indices below 4, or 4 bools. Received: \[7\]"):
        policy.reset([7])
    with pytest.raises(ValueError, match=r"`observation` must have 4 rows.*`reset\(\)`.*Received: 2 rows"):
        policy.act(observations()[0][:2])
    policy.reset()
    policy.act(observations()[0][:2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": (np.zeros((4, 4), np.float32),)}, r"`state` must be a tuple of arrays of shapes"),
        ({"state": (np.full((4, 4), np.nan), np.zeros((4, 3)), np.zeros((4, 3)))}, "`state` must be finite"),
        ({"state": "abc"}, "`state` must be a tuple of arrays of numbers. Received: a str"),
        ({"start": [True, False]}, r"`start` must be a bool, or 4 of them"),
        ({"start": 0.5}, r"`start` must be a bool"),
    ],
)
def test_what_does_not_fit_is_refused(policy, arguments, message):
    with pytest.raises(ValueError, match=message):
        policy.act(observations()[0], **arguments)


def test_a_policy_without_memory_takes_no_state(gaussian):
    policy = al.Policy(gaussian)
    policy.reset()
    policy.act(np.zeros(4, np.float32), start=True)
    with pytest.raises(ValueError, match="`state` must be None: there is no state"):
        policy.act(np.zeros(4, np.float32), state=())
