"""Nested observations and actions: the policy's inputs, the environment's actions, and refused inputs."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

from actor_learner.networks import default
from actor_learner.policy.actions import leaf_to_env
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.policy import Policy
from actor_learner.spaces import structure as spaces
from tests.support.exporting import logits_network, observations
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
SHIFTED_SENSES = Dict(room=Discrete(3, start=7), dials=MultiDiscrete([[3, 2]], start=[[-1, 4]]), bits=MultiBinary(2))


@pytest.fixture(scope="module")
def policy():
    network = default.default_network(SENSES, HYBRID, image_network="impala")
    return Policy(export_policy(network, HYBRID, BATCH, SENSES))


def row(observation, index):
    """Returns one observation of a batch."""
    structure = spaces.observation_structure(SENSES)
    return structure.unflatten([leaf[index] for leaf in structure.flatten(observation)])


def replaced(observation, key, value):
    return {**observation, key: value}


@pytest.mark.parametrize("rows", [BATCH, 1, 3, 9])
def test_batches_of_any_size(policy, rows):
    batch = observations(SENSES, rows)
    action, log_prob = policy.step(batch)
    structure = spaces.action_structure(HYBRID)
    for leaf, array in zip(structure.leaves, structure.flatten(action), strict=True):
        assert (array.shape, array.dtype) == ((rows, *leaf.shape), leaf.dtype)
    assert log_prob.shape == policy.value(batch).shape == (rows,)
    assert batch_space(HYBRID, rows).contains(policy.to_env(action))
    assert batch_space(HYBRID, rows).contains(policy.act(batch))


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


def test_steps_on_leaves_are_the_same(policy):
    batch = observations(SENSES, BATCH)
    policy.reseed(4)
    action, log_prob = policy.step(batch)
    policy.reseed(4)
    leaves, again = policy.step_leaves(spaces.observation_structure(SENSES).flatten(batch))
    np.testing.assert_array_equal(log_prob, again)
    for ours, theirs in zip(spaces.action_structure(HYBRID).flatten(action), leaves, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_lists_and_other_dtypes_are_cast(policy):
    batch = observations(SENSES, BATCH)
    expected = policy.value(batch)
    loose = replaced(batch, "pair", [batch["pair"][0].astype(np.float64), batch["pair"][1].tolist()])
    loose = replaced(loose, "camera", batch["camera"].astype(np.float32))
    np.testing.assert_array_equal(policy.value(loose), expected)


class TestRefused:
    def refused(self, call, observation):
        with pytest.raises(ValueError) as caught:
            call(observation)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_other_keys(self, policy):
        batch = observations(SENSES, BATCH)
        message = self.refused(policy.step, replaced(batch, "further", 1))
        assert "with the further ['further']" in message
        message = self.refused(policy.act, {key: batch[key] for key in batch if key != "camera"})
        assert "without ['camera']" in message
        message = self.refused(policy.value, replaced(batch, "pair", batch["pair"][:1]))
        assert "`observation['pair']` must be a tuple of 2 entries" in message

    def test_another_shape(self, policy):
        batch = replaced(observations(SENSES, BATCH), "switches", np.zeros((BATCH, 3, 2), np.int8))
        assert "`observation['switches']` must have shape (2, 2)" in self.refused(policy.step, batch)

    def test_leaves_with_different_rows(self, policy):
        batch = observations(SENSES, BATCH)
        shorter = replaced(batch, "dials", batch["dials"][:3])
        message = self.refused(policy.step, shorter)
        assert "`observation['dials']` must be with 4 rows, as `observation['camera']` is" in message
        assert "Received: shape=(3, 2, 2)" in message
        mixed = replaced(batch, "pair", (batch["pair"][0], batch["pair"][1][0]))
        assert "`observation['pair'][1]` must be with 4 rows" in self.refused(policy.act, mixed)
        single = replaced(row(batch, 0), "switches", batch["switches"])
        assert "`observation['switches']` must be without a batch axis" in self.refused(policy.act, single)

    def test_nan(self, policy):
        batch = observations(SENSES, BATCH)
        vector = batch["pair"][0].copy()
        vector[2, 1] = np.nan
        message = self.refused(policy.act, replaced(batch, "pair", (vector, batch["pair"][1])))
        assert message == "`observation['pair'][0]` must hold numbers. Received: NaN"

    @pytest.mark.parametrize("value", [-1, 5, 99])
    def test_a_discrete_value_out_of_range(self, policy, value):
        batch = observations(SENSES, BATCH)
        numbers = batch["pair"][1].copy()
        numbers[3] = value
        for call in (policy.act, policy.step, policy.value):
            message = self.refused(call, replaced(batch, "pair", (batch["pair"][0], numbers)))
            assert message == f"`observation['pair'][1]` must be in 0 ... 4. Received: {value}"

    def test_a_component_out_of_range(self, policy):
        batch = observations(SENSES, BATCH)
        dials = batch["dials"].copy()
        dials[1, 0, 1] = 3
        message = self.refused(policy.step, replaced(batch, "dials", dials))
        assert message == "`observation['dials']` must be in 0 ... 2. Received: 3"

    def test_a_fraction_for_a_whole_number(self, policy):
        batch = observations(SENSES, BATCH)
        numbers = batch["pair"][1] + np.float32([0, 0, 0.25, 0])
        message = self.refused(policy.step, replaced(batch, "pair", (batch["pair"][0], numbers)))
        assert message.startswith("`observation['pair'][1]` must hold whole numbers. Received: ")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            message = self.refused(policy.act, replaced(batch, "pair", (batch["pair"][0], numbers * np.nan)))
        assert message == "`observation['pair'][1]` must hold whole numbers. Received: nan"

    def test_discrete_observations_out_of_range_by_who_counts(self):
        space = Discrete(3, start=2)
        policy = Policy.from_network(default.default_network(space, Discrete(2)), Discrete(2), observation_space=space)
        for value in (1, 5):
            message = self.refused(policy.act, value)
            assert message == f"`observation` must be in 2 ... 4, as the environment gives it. Received: {value}"
        for value in (-1, 3):
            for call in (policy.step, policy.value):
                message = self.refused(call, [0, value])
                assert message == (
                    f"`observation` must be in 0 ... 2, counted from 0 as in a Trajectory. Received: {value}"
                )

    def test_a_component_below_its_start(self):
        space = MultiDiscrete([2, 3], start=[5, 200], dtype=np.uint8)
        policy = Policy.from_network(default.default_network(space, Discrete(2)), Discrete(2), observation_space=space)
        message = self.refused(policy.act, np.uint8([[5, 202], [6, 199]]))
        assert message == "`observation` must be in 200 ... 202, as the environment gives it. Received: 199"
        assert "must have shape (2,)" in self.refused(policy.act, np.uint8(5))


class Digits(keras.Model):
    """Returns a network whose logits prefer the observation's number: its entries from 0, read as decimal digits."""

    def call(self, observation):
        digits = [
            ops.cast(ops.reshape(leaf, (leaf.shape[0], -1)), "float32") for leaf in keras.tree.flatten(observation)
        ]
        digits = ops.concatenate(digits, axis=1)
        number = ops.sum(digits * 10.0 ** np.arange(digits.shape[1])[::-1].astype(np.float32), axis=1, keepdims=True)
        return -100.0 * ((np.arange(200, dtype=np.float32) - number) ** 2), number


class TestStart:
    """`act` takes the environment's observations; `step` and `value` take those of a Trajectory."""

    @pytest.mark.parametrize(
        ("space", "given", "number"),
        [
            (Discrete(3, start=7), 9, 2),
            (Discrete(3, start=-5), np.array([-5, -3]), [0, 2]),
            (MultiDiscrete([3, 2], start=[7, -1]), np.array([8, 0]), 11),
            (MultiDiscrete([3, 2], start=[7, -1]), np.array([[7, 0], [9, -1]]), [1, 20]),
            (MultiDiscrete([2, 3], start=[5, 200], dtype=np.uint8), np.uint8([6, 202]), 12),
            (Tuple([Discrete(3, start=1), Discrete(3), Discrete(3, start=2)]), (np.int64(2), 0, 3), 101),
            (
                Tuple([Discrete(2, start=1), Dict(a=MultiDiscrete([3], start=[4]))]),
                ([1, 2], {"a": [[6], [4]]}),
                [2, 10],
            ),
        ],
    )
    def test_act_counts_from_it(self, space, given, number):
        policy = Policy.from_network(Digits(), Discrete(200), observation_space=space)
        np.testing.assert_array_equal(policy.act(given), number)
        structure = spaces.observation_structure(space)
        starts = [0 if leaf.start is None else leaf.start for leaf in structure.leaves]
        counted = structure.unflatten(
            [np.asarray(part) - start for part, start in zip(structure.flatten(given), starts, strict=True)]
        )
        np.testing.assert_array_equal(policy.value(counted), number)
        np.testing.assert_array_equal(policy.step(counted)[0], number)

    def test_whatever_the_environment_gives_is_taken(self):
        policy = Policy.from_network(
            default.default_network(SHIFTED_SENSES, HYBRID), HYBRID, observation_space=SHIFTED_SENSES
        )
        for seed in range(20):
            SHIFTED_SENSES.seed(seed)
            assert HYBRID.contains(policy.act(SHIFTED_SENSES.sample()))


def test_a_box_of_no_axes_is_one_observation_or_a_batch():
    space = Box(-1, 1, (), np.float32)
    policy = Policy.from_network(default.default_network(space, Discrete(2)), Discrete(2), observation_space=space)
    assert policy.step(np.float32(0.5))[1].shape == ()
    assert policy.step(np.zeros((), np.float32))[1].shape == ()
    assert policy.step(np.zeros(3, np.float32))[1].shape == (3,)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_what_the_environment_gets_is_in_its_space(distribution):
    observation_space = Box(-np.inf, np.inf, (4,), np.float32)
    network = default.default_network(observation_space, SHIFTED, initial_log_std=1.0, distribution=distribution)
    policy = Policy.from_network(network, SHIFTED, observation_space=observation_space)
    assert policy.exported.distribution == distribution
    for deterministic in (True, False):
        for seed in range(20):
            assert SHIFTED.contains(policy.act(observations(observation_space, 1, seed)[0], deterministic))
        assert batch_space(SHIFTED, 50).contains(policy.act(observations(observation_space, 50), deterministic))


def test_to_env_by_hand():
    network = default.default_network(Box(-1, 1, (2,)), SHIFTED, distribution="squashed")
    policy = Policy.from_network(network, SHIFTED, observation_space=Box(-1, 1, (2,)))
    action = {
        "kind": np.int32([2, 0]),
        "dials": np.int32([[0, 1], [2, 0]]),
        "bits": np.int8([[[1, 0], [0, 1]], [[0, 0], [1, 1]]]),
        "force": np.float32([[0.0, np.inf], [-np.inf, 0.0]]),
        "rest": (np.float32([[np.arctanh(0.5)], [0.0]]), np.int32([1, 0])),
    }
    given_to_env = policy.to_env(action)
    np.testing.assert_array_equal(given_to_env["kind"], [9, 7])
    np.testing.assert_array_equal(given_to_env["dials"], [[-1, 5], [1, 4]])
    np.testing.assert_array_equal(given_to_env["bits"], action["bits"])
    np.testing.assert_array_equal(given_to_env["force"], np.float32([[0, 0.5], [-1, -0.75]]))
    np.testing.assert_allclose(given_to_env["rest"][0], [[0.05], [0.0]], atol=1e-8)
    np.testing.assert_array_equal(given_to_env["rest"][1], [1, 0])


def test_one_choice_is_a_number_that_environments_can_use_as_a_key():
    policy = Policy.from_network(logits_network(3), Discrete(3))
    assert {0: "a", 1: "b", 2: "c"}[policy.act(np.float32([0, 9, 0]))] == "b"


@given(
    bounds=arrays(np.float32, (2, 3), elements=st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)),
    action=arrays(np.float32, (5, 3), elements=st.floats(width=32, allow_nan=False, allow_subnormal=False)),
    distribution=st.sampled_from(["gaussian", "squashed"]),
)
def test_any_box_action_lands_in_the_space(bounds, action, distribution):
    space = Box(bounds.min(axis=0), bounds.max(axis=0))
    (leaf,) = spaces.action_structure(space).leaves
    for one in leaf_to_env(leaf, distribution)(action):
        assert space.contains(one)


@given(
    u=st.floats(-5, 5, width=32, allow_subnormal=False),
    low=st.floats(-100, 99, width=32, allow_subnormal=False),
    size=st.floats(0.125, 100, width=32),
)
def test_squashing_is_low_plus_half_of_tanh_plus_one(u, low, size):
    space = Box(np.float32([low]), np.float32([low + size]))
    (leaf,) = spaces.action_structure(space).leaves
    expected = space.low + (np.tanh(np.float64(u)) + 1) / 2 * (space.high.astype(np.float64) - space.low)
    np.testing.assert_allclose(leaf_to_env(leaf, "squashed")(np.float32([u])), expected, atol=1e-4)
