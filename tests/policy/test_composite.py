"""Nested observations and actions: the policy's inputs, the environment's actions, and refused inputs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

from actor_learner.networks import default
from actor_learner.policy.inputs import ObservationReader
from actor_learner.policy.policy import Policy, leaf_to_env
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import observations
from tests.support.trajectories import HYBRID, SENSES

pytestmark = pytest.mark.slow


BATCH = 4
SHIFTED = Dict(
    {
        "kind": Discrete(3, start=7),
        "dials": MultiDiscrete([3, 2], start=[-1, 4]),
        "bits": MultiBinary((2, 2)),
        "force": Box(np.float32([-1, -2]), np.float32([1, 0.5])),
        "rest": Tuple([Box(-0.1, 0.1, (1,), np.float64), Discrete(2)]),
    }
)
BYTES = MultiDiscrete([2, 3], start=[5, 200], dtype=np.uint8)
NESTED = Tuple([Discrete(2, start=1), Dict(a=MultiDiscrete([3], start=[4]))])
PAIR = Box(-np.inf, np.inf, (2,), np.float32)
SHIFTED_SENSES = Dict(room=Discrete(3, start=7), dials=MultiDiscrete([[3, 2]], start=[[-1, 4]]), bits=MultiBinary(2))


@pytest.fixture(scope="module")
def policy(composite):
    return Policy(composite)


def row(observation, index):
    """Returns one observation of a batch."""
    structure = spaces.observation_structure(SENSES)
    return structure.unflatten([leaf[index] for leaf in structure.flatten(observation)])


def test_a_single_observation_is_a_row_of_a_batch(policy):
    batch = observations(SENSES, 3)
    structure = spaces.action_structure(HYBRID)
    acted = structure.flatten(policy.act(batch))
    for index in range(3):
        one = row(batch, index)
        assert HYBRID.contains(policy.act(one))
        for ours, theirs in zip(structure.flatten(policy.act(one)), acted, strict=True):
            np.testing.assert_allclose(ours, theirs[index], atol=1e-6)
        np.testing.assert_allclose(policy.value(one), policy.value(batch)[index], atol=1e-6)
        action, log_prob = policy.step(one)
        assert log_prob.shape == ()
        assert HYBRID.contains(policy.to_env(action))


SEEN = observations(SENSES, BATCH)


def with_numbers(*numbers):
    return {**SEEN, "pair": (np.zeros((len(numbers), 4), np.float32), np.array(numbers))}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"pair": SEEN["pair"], "further": 1}, "with the further ['further']"),
        ({"pair": SEEN["pair"]}, "without ['camera', 'dials', 'switches']"),
        ({**SEEN, "pair": SEEN["pair"][:1]}, "`observation['pair']` must be a tuple of 2 entries"),
        ({**SEEN, "switches": np.zeros((BATCH, 3, 2), np.int8)}, "`observation['switches']` must have shape (4, 2, 2)"),
        ({**SEEN, "dials": SEEN["dials"][:3]}, "4 rows, as `observation['camera']` is. Received: shape=(3, 2, 2)"),
        ({**SEEN, "pair": (SEEN["pair"][0], 1)}, "`observation['pair'][1]` must have shape (4,), with 4 rows"),
        ({**row(SEEN, 0), "dials": SEEN["dials"]}, "must have shape (2, 2), without a batch axis, as"),
        (with_numbers(0, 1, 2, -1), "`observation['pair'][1]` must count from 0 and be below 5. Received: -1"),
        (with_numbers(0, 5, 2, 99), "`observation['pair'][1]` must count from 0 and be below 5. Received: 5"),
        (
            {**SEEN, "dials": SEEN["dials"] * 0 + [[0, 3], [0, 0]]},
            "must count from 0 and be below 3 at entry [0, 1]. Received: 3",
        ),
        (with_numbers(0, 1, 0.25, 2), "`observation['pair'][1]` must hold whole numbers. Received: 0.25"),
        (with_numbers(0, 1, np.nan, 2), "`observation['pair'][1]` must hold whole numbers. Received: nan"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_observation_is_refused(policy, observation, message):
    for call in (policy.act, policy.step, policy.value):
        with pytest.raises(ValueError) as caught:
            call(observation)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("space", "given", "from_environment", "message"),
    [
        (Discrete(3, start=2), 1, True, "2 and be below 5, as the environment gives it. Received: 1"),
        (Discrete(3, start=2), 5, True, "2 and be below 5, as the environment gives it. Received: 5"),
        (Discrete(3, start=2), [0, -1], False, "0 and be below 3, as in a Trajectory. Received: -1"),
        (Discrete(3, start=2), [0, 3], False, "0 and be below 3, as in a Trajectory. Received: 3"),
        (
            BYTES,
            np.uint8([[5, 202], [6, 199]]),
            True,
            "200 and be below 203 at entry [1], as the environment gives it. Received: 199",
        ),
    ],
)
def test_discrete_observations_out_of_range_are_refused_by_who_counts(space, given, from_environment, message):
    with pytest.raises(ValueError) as caught:
        ObservationReader(Spaces(space, Discrete(2))).read(given, from_environment=from_environment)
    assert str(caught.value) == f"`observation` must count from {message}"


@pytest.mark.parametrize(
    ("space", "given", "counted"),
    [
        (Discrete(3, start=7), 9, [[2]]),
        (Discrete(3, start=-5), np.array([-5, -3]), [[0, 2]]),
        (MultiDiscrete([3, 2], start=[7, -1]), np.array([8, 0]), [[[1, 1]]]),
        (MultiDiscrete([3, 2], start=[7, -1]), np.array([[7, 0], [9, -1]]), [[[0, 1], [2, 0]]]),
        (BYTES, np.uint8([6, 202]), [[[1, 2]]]),
        (Tuple([Discrete(3, start=1), Discrete(3), Discrete(3, start=2)]), (np.int64(2), 0, 3), [[1], [0], [1]]),
        (NESTED, ([1, 2], {"a": [[6], [4]]}), [[0, 1], [[2], [0]]]),
    ],
)
def test_the_environments_observations_are_counted_from_their_start(space, given, counted):
    leaves, single = ObservationReader(Spaces(space, Discrete(2))).read(given, from_environment=True)
    assert single == (len(counted[0]) == 1)
    for leaf, expected in zip(leaves, counted, strict=True):
        np.testing.assert_array_equal(leaf, expected)


def test_whatever_the_environment_gives_is_taken():
    reader = ObservationReader(Spaces(SHIFTED_SENSES, Discrete(2)))
    for seed in range(20):
        SHIFTED_SENSES.seed(seed)
        leaves, _ = reader.read(SHIFTED_SENSES.sample(), from_environment=True)
        counted = spaces.observation_structure(SHIFTED_SENSES).unflatten(list(leaves))
        assert set(counted["bits"].flat) <= {0, 1}
        assert set(counted["room"]) <= {0, 1, 2}
        assert ((counted["dials"] >= 0) & (counted["dials"] < [3, 2])).all()


def test_a_box_of_no_axes_is_one_observation_or_a_batch():
    reader = ObservationReader(Spaces(Box(-1, 1, (), np.float32), Discrete(2)))
    for observation, single in ((np.float32(0.5), True), (np.zeros((), np.float32), True), (np.zeros(3), False)):
        assert reader.read(observation)[1] == single


class Digits(keras.Model):
    """Returns a network whose logits prefer the observation's number: its entries from 0, read as decimal digits."""

    def call(self, observation):
        digits = [
            ops.cast(ops.reshape(leaf, (leaf.shape[0], -1)), "float32") for leaf in keras.tree.flatten(observation)
        ]
        digits = ops.concatenate(digits, axis=1)
        number = ops.sum(digits * 10.0 ** np.arange(digits.shape[1])[::-1].astype(np.float32), axis=1, keepdims=True)
        return -100.0 * ((np.arange(200, dtype=np.float32) - number) ** 2), number


def test_act_counts_from_the_start_and_step_and_value_from_0():
    policy = Policy.from_network(Digits(), Discrete(200), observation_space=NESTED)
    np.testing.assert_array_equal(policy.act(([1, 2], {"a": [[6], [4]]})), [2, 10])
    counted = ([0, 1], {"a": [[2], [0]]})
    np.testing.assert_array_equal(policy.value(counted), [2, 10])
    np.testing.assert_array_equal(policy.step(counted)[0], [2, 10])


@pytest.fixture(scope="module")
def shifted():
    network = default.default_network(PAIR, SHIFTED, initial_log_std=1.0, distribution="squashed")
    return Policy.from_network(network, SHIFTED, observation_space=PAIR)


def test_what_the_environment_gets_is_in_its_space(shifted):
    assert shifted.exported.distribution == "squashed"
    for deterministic in (True, False):
        for seed in range(20):
            assert SHIFTED.contains(shifted.act(observations(PAIR, 1, seed)[0], deterministic))
        assert batch_space(SHIFTED, 50).contains(shifted.act(observations(PAIR, 50), deterministic))


def test_to_env_by_hand(shifted):
    action = {
        "kind": np.int32([2, 0]),
        "dials": np.int32([[0, 1], [2, 0]]),
        "bits": np.int8([[[1, 0], [0, 1]], [[0, 0], [1, 1]]]),
        "force": np.float32([[0.0, np.inf], [-np.inf, 0.0]]),
        "rest": (np.float32([[np.arctanh(0.5)], [0.0]]), np.int32([1, 0])),
    }
    given_to_env = shifted.to_env(action)
    np.testing.assert_array_equal(given_to_env["kind"], [9, 7])
    np.testing.assert_array_equal(given_to_env["dials"], [[-1, 5], [1, 4]])
    np.testing.assert_array_equal(given_to_env["bits"], action["bits"])
    np.testing.assert_array_equal(given_to_env["force"], np.float32([[0, 0.5], [-1, -0.75]]))
    np.testing.assert_allclose(given_to_env["rest"][0], [[0.05], [0.0]], atol=1e-8)
    np.testing.assert_array_equal(given_to_env["rest"][1], [1, 0])


@settings(max_examples=50, deadline=None)
@given(
    bounds=arrays(np.float32, (2, 3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    action=arrays(np.float32, (5, 3), elements=st.floats(width=32, allow_nan=False, allow_subnormal=False)),
    distribution=st.sampled_from(["gaussian", "squashed"]),
)
def test_any_box_action_lands_in_the_space(bounds, action, distribution):
    space = Box(bounds.min(axis=0), bounds.max(axis=0))
    (leaf,) = spaces.action_structure(space).leaves
    for one in leaf_to_env(leaf, distribution)(action):
        assert space.contains(one)
