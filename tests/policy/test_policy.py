"""The policy acts without TensorFlow, repeats exactly, and never picks an impossible action."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from scipy import stats

from actor_learner.networks import default
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.exported import flatten_weights
from actor_learner.policy.inputs import ObservationReader
from actor_learner.policy.policy import Policy, leaf_to_env
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import assert_agrees, give_draws, logits_network
from tests.support.policies import ACTIONS, BATCH, TORQUES, VECTOR, observations


def test_shapes_and_dtypes(exported, gaussian):
    policy = Policy(exported)
    for rows in (BATCH, 1, 4, 13):
        action, log_prob = policy.step(observations(rows))
        assert (action.shape, action.dtype, log_prob.shape, log_prob.dtype) == ((rows,), "int32", (rows,), "float32")
        assert policy.value(observations(rows)).shape == (rows,)
        assert policy.act(observations(rows)).shape == (rows,)
    action, log_prob = policy.step(observations(1)[0])
    assert action.shape == log_prob.shape == policy.value(observations(1)[0]).shape == ()
    assert policy.act(observations(1)[0]).dtype == "int64"
    assert policy.act(observations(1)[0]) in {5: "a", 6: "b", 7: "c"}  # environments use it as a key
    assert policy.step(observations(0))[0].shape == (0,)
    policy = Policy(gaussian)
    for rows in (BATCH, 1, 13):
        action, log_prob = policy.step(observations(rows))
        assert (action.shape, action.dtype, log_prob.shape) == ((rows, 2), "float32", (rows,))
    assert policy.act(observations(1)[0]).shape == (2,)
    assert repr(Policy(exported)).startswith("Policy(Box(shape=")
    assert " -> Discrete(n=" in repr(Policy(exported))


def test_results_are_not_overwritten_by_the_next_step(exported):
    policy = Policy(exported)
    action, log_prob = policy.step(observations(BATCH))
    kept = action.copy(), log_prob.copy()
    for seed in range(10):
        policy.step(observations(BATCH, seed))
    np.testing.assert_array_equal(action, kept[0])
    np.testing.assert_array_equal(log_prob, kept[1])


def test_lists_and_other_dtypes_are_cast(exported):
    observation = observations(BATCH)
    expected = Policy(exported, seed=3).step(observation)
    for same in (observation.astype(np.float64), observation.tolist(), np.asfortranarray(observation)):
        np.testing.assert_array_equal(Policy(exported, seed=3).step(same)[0], expected[0])


@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 6, 4), ()])
def test_observations_of_another_shape_are_refused(exported, shape):
    with pytest.raises(ValueError, match=r"`observation` must have shape \(4,\).*Received: shape="):
        Policy(exported).step(np.zeros(shape, np.float32))


def test_nothing_is_chosen_by_nan(exported):
    for deterministic in (True, False):
        with pytest.raises(ValueError, match="`observation` must hold numbers. Received: NaN"):
            Policy(exported).act(np.full(4, np.nan, np.float32), deterministic=deterministic)


def test_infinity_is_refused_where_bounds_are_finite_and_chooses_an_action_elsewhere(exported):
    assert Policy(exported).act(np.full(4, np.inf, np.float32)) == ACTIONS.start  # the first of logits that are NaN
    bounded = ObservationReader(Spaces(Box(np.float32([-np.inf, -1]), np.float32([np.inf, np.inf])), ACTIONS))
    bounded.check_numbers((np.array([[-np.inf, np.inf]], np.float32),))
    with pytest.raises(ValueError, match="`observation` must be finite where its space has finite bounds.*: -inf"):
        bounded.check_numbers((np.array([[0, -np.inf]], np.float32),))
    with pytest.raises(FloatingPointError, match="the network must give finite numbers"):
        Policy(exported).act(np.full(4, np.inf, np.float32), deterministic=False)


@pytest.mark.parametrize(("values", "received"), [([300, 5], "300"), ([-5, 2], "-5"), ([np.inf, 0], "inf")])
def test_numbers_that_a_dtype_lacks_are_not_wrapped(values, received):
    reader = ObservationReader(Spaces(Box(0, 255, (2,), np.uint8), ACTIONS))
    with pytest.raises(ValueError, match=f"`observation` must have values of its space. Received: {received}"):
        reader.read(np.array(values))
    assert reader.read(np.array([255, 0]))[0][0].tolist() == [[255, 0]]


def test_a_policy_is_made_of_an_exported_one(network):
    with pytest.raises(ValueError, match=r"must be an ExportedPolicy.*Received: a Functional"):
        Policy(network)


def test_a_seed_repeats(exported, gaussian):
    for each in (exported, gaussian):
        runs = []
        for seed in (1, 1, np.random.SeedSequence(1), 2):
            policy = Policy(each, seed=seed)
            runs.append(np.concatenate([policy.step(observations(BATCH, step))[0] for step in range(20)]))
        np.testing.assert_array_equal(runs[0], runs[1])
        np.testing.assert_array_equal(runs[0], runs[2])
        assert not np.array_equal(runs[0], runs[3])


def test_reseed_starts_anew(gaussian):
    policy = Policy(gaussian, seed=1)
    first = policy.step(observations(BATCH))[0]
    policy.step(observations(BATCH))
    policy.reseed(1)
    np.testing.assert_array_equal(policy.step(observations(BATCH))[0], first)


def test_deterministic_acts_draw_nothing(exported):
    observation = observations(BATCH)
    plain, mixed = Policy(exported, seed=1), Policy(exported, seed=1)
    for _ in range(5):
        first, again = (mixed.act(observation) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(mixed.step(observation)[0], plain.step(observation)[0])


def test_samples_have_the_categorical_distribution():
    logits = np.array([0.3, -1.0, 1.2, 0.0], np.float32)
    policy = Policy(export_policy(logits_network(4), Discrete(4), 1000), seed=0)
    batch = np.tile(logits, (1000, 1))
    actions = np.concatenate([policy.step(batch)[0] for _ in range(20)])
    probability = np.exp(logits.astype(np.float64))
    probability /= probability.sum()
    counts = np.bincount(actions, minlength=4)
    assert stats.chisquare(counts, probability * len(actions)).pvalue > 1e-3
    action, log_prob = policy.step(batch)
    np.testing.assert_allclose(log_prob, np.log(probability)[action], atol=1e-6)


def test_samples_have_the_normal_distribution():
    policy = Policy(export_policy(logits_network(2), Box(-1, 1, (1,), np.float32), 1000), seed=0)
    mean, log_std = np.float32(0.4), np.float32(-0.7)
    batch = np.tile([mean, log_std], (1000, 1)).astype(np.float32)
    actions = np.concatenate([policy.step(batch)[0] for _ in range(10)])[:, 0]
    assert stats.kstest(actions, stats.norm(mean, np.exp(log_std)).cdf).pvalue > 1e-3
    action, log_prob = policy.step(batch)
    np.testing.assert_allclose(log_prob, stats.norm(mean, np.exp(log_std)).logpdf(action[:, 0]), atol=1e-5)


def test_an_action_of_probability_zero_is_never_chosen():
    """The noise is 1 or the smallest above 0; the observation is the logits; the possible actions have every place."""
    possible = np.array([[bits >> place & 1 for place in range(5)] for bits in range(1, 32)], bool)
    policy = Policy(export_policy(logits_network(5), Discrete(5), 31))
    for impossible in (-1e9, -np.inf, np.finfo(np.float32).min, -200.0):
        logits = np.where(possible, np.float32(0.3), np.float32(impossible)).astype(np.float32)
        for draw in (0.0, 1 - 2**-24, 0.5, 2**-24):
            give_draws(policy._noise, [draw])
            action, log_prob = policy.step(logits)
            assert possible[np.arange(31), action].all()
            np.testing.assert_allclose(log_prob, -np.log(possible.sum(axis=1)), atol=1e-6)
            assert possible[np.arange(31), policy.act(logits)].all()


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (Discrete(3), np.array([0, 2], np.int32), np.array([0, 2], np.int64)),
        (Discrete(3, start=-1), np.array([0, 2], np.int32), np.array([-1, 1], np.int64)),
        (Discrete(3, dtype=np.uint8, start=2), np.array([0, 2], np.int32), np.array([2, 4], np.uint8)),
        (MultiDiscrete([3, 4], dtype=np.uint16), np.array([2, 3], np.int32), np.array([2, 3], np.uint16)),
        (TORQUES, np.float32([[3, 3], [-3, -3]]), np.float32([[1, 0.5], [-1, -2]])),
        (TORQUES, np.float32([0.25, -0.5]), np.float32([0.25, -0.5])),
        (Box(-np.inf, np.inf, (1,), np.float32), np.float32([[1e9]]), np.float32([[1e9]])),
        (Box(-0.1, 0.1, (1,), np.float64), np.float32([[7]]), np.float64([[0.1]])),
        (MultiDiscrete([3, 4], start=[1, -5]), np.array([[0, 3]], np.int32), np.array([[1, -2]], np.int64)),
        (MultiDiscrete([3, 4]), np.array([2, 3], np.int32), np.array([2, 3], np.int64)),
        (MultiBinary((2, 2)), np.array([[1, 0], [0, 1]], np.int8), np.array([[1, 0], [0, 1]], np.int8)),
        (
            Box(np.array([-np.inf, -1], np.float32), np.array([np.inf, 1], np.float32)),
            np.float32([[9, 9]]),
            np.float32([[9, 1]]),
        ),
    ],
)
def test_to_env(space, action, expected):
    (leaf,) = Spaces(None, space).action.leaves
    result = leaf_to_env(leaf, "gaussian")(action)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == expected.dtype
    assert all(space.contains(row) for row in (result if result.ndim > len(space.shape) else [result]))


@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
@pytest.mark.parametrize("action", [[[1, 2], [3, np.nan]], [np.nan, 1]])
def test_an_action_that_isnt_finite_never_reaches_an_environment(action, distribution):
    (leaf,) = Spaces(None, TORQUES).action.leaves
    with pytest.raises(FloatingPointError, match=r"^the network must give finite numbers. Received: nan in an action$"):
        leaf_to_env(leaf, distribution)(np.float32(action))


def test_new_weights_reach_every_interpreter(exported):
    policy, other = Policy(exported), default.default_network(VECTOR, ACTIONS, seed=1)
    for rows in (BATCH, 3):
        policy.value(observations(rows))
        policy.step(observations(rows))
    policy.set_weights(other.get_weights())
    for rows in (BATCH, 3):
        assert_agrees(policy, other, ACTIONS, observations(rows))


def test_flat_weights_are_the_same_as_weights_and_copied(network, exported):
    first, second = Policy(exported), Policy(exported)
    other = [weight + np.float32(0.1) for weight in network.get_weights()]
    flat = flatten_weights(other)
    first.set_weights(other)
    second.set_weights(flat)
    flat[:] = np.nan
    np.testing.assert_array_equal(first.step(observations(BATCH))[1], second.step(observations(BATCH))[1])
    np.testing.assert_array_equal(first.value(observations(BATCH)), second.value(observations(BATCH)))


def test_wrong_weights_are_one_clear_error(network, exported):
    policy, weights = Policy(exported), network.get_weights()
    with pytest.raises(ValueError, match=r"`weights` must be the 12 arrays.*Received: 11 arrays"):
        policy.set_weights(weights[:-1])
    with pytest.raises(ValueError, match=r"`weights` must be the 12 arrays.*Received: Functional"):
        policy.set_weights(network)
    with pytest.raises(ValueError, match=r"`weights\[0\]` must have shape \(4, 64\), as .*/kernel has.*\(64, 4\)"):
        policy.set_weights([weights[0].T, *weights[1:]])
    with pytest.raises(ValueError, match=r"`weights` must have shape.*Received: shape=\(3,\)"):
        policy.set_weights(np.zeros(3, np.float32))
