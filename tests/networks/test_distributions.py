from __future__ import annotations

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings, strategies as st
from keras import ops

import actor_learner as al
from actor_learner.networks.distribution_parts import (
    Bernoulli,
    Categorical,
    EpsilonGreedy,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
)
from actor_learner.networks.distributions import Distribution, distribution_for
from actor_learner.spaces import structure
from actor_learner.spaces.spaces import Spaces
from tests.support.litert import run_litert
from tests.support.trajectories import HYBRID

EDGES = [2.0**-32, 2.0**-24, 0.5, 1 - 2.0**-24, 1.0]
"""The smallest and largest uniforms that an actor draws, and smaller ones."""

seeds = st.integers(0, 2**16)


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def random_mask(rng, rows, n, rate=0.6):
    """Returns masks that allow at least one choice in each row."""
    mask = rng.random((rows, n)) < rate
    mask[np.arange(rows), rng.integers(0, n, rows)] = True
    return mask


def masked(logits, mask):
    """Applies a mask as logits of minus infinity, in float64."""
    return np.where(mask, logits.astype(np.float64), -np.inf)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), rows=st.integers(1, 5), scale=st.floats(0.1, 20), seed=seeds, masks=st.booleans())
def test_categorical_equals_scipy(n, rows, scale, seed, masks):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, n))).astype(np.float32)
    mask = random_mask(rng, rows, n) if masks else np.ones((rows, n), bool)
    action = np.array([rng.choice(np.flatnonzero(row)) for row in mask], np.int32)
    exact = masked(logits, mask)
    log_prob = scipy.special.log_softmax(exact, axis=-1)[np.arange(rows), action]
    entropy = scipy.special.entr(scipy.special.softmax(exact, axis=-1)).sum(-1)
    given_mask = mask if masks else None
    found = Categorical(n)
    np.testing.assert_allclose(numpy(found.log_prob(logits, action, given_mask)), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(numpy(found.entropy(logits, given_mask)), entropy, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(numpy(found.mode(logits, given_mask)), exact.argmax(-1))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), epsilon=st.sampled_from([0.0, 0.05, 0.3, 1.0]), seed=seeds, masks=st.booleans())
def test_epsilon_greedy_equals_its_probabilities(n, epsilon, seed, masks):
    rng = np.random.default_rng(seed)
    values, rows = rng.normal(size=(400, n)).astype(np.float32), np.arange(400)
    mask = random_mask(rng, 400, n) if masks else np.ones((400, n), bool)
    given_mask, found = mask if masks else None, EpsilonGreedy(n)
    parameters = np.concatenate([values, np.full((400, 1), epsilon, np.float32)], axis=1)
    best = masked(values, mask).argmax(-1)
    exact = mask * epsilon / mask.sum(-1, keepdims=True)
    exact[rows, best] += 1 - epsilon
    np.testing.assert_array_equal(numpy(found.mode(parameters, given_mask)), best)
    np.testing.assert_allclose(
        numpy(found.entropy(parameters, given_mask)), scipy.special.entr(exact).sum(-1), atol=1e-5
    )
    noise = np.float32(1) - rng.random((400, 2), np.float32)
    action = numpy(found.sample(parameters, noise, given_mask))
    log_prob = numpy(found.log_prob(parameters, action, given_mask))
    np.testing.assert_allclose(log_prob, np.log(exact[rows, action]), atol=1e-5)
    assert (action == best)[noise[:, 0] > epsilon].all()
    explored = action[noise[:, 0] <= epsilon]
    assert mask[rows, action].all()
    if epsilon == 1.0 and not masks:
        counts = np.bincount(explored, minlength=n)
        assert ((counts - 400 / n) ** 2 / (400 / n)).sum() < n + 6 * np.sqrt(2 * n)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), rows=st.integers(1, 4), seed=seeds, masks=st.booleans()
)
def test_several_choices_are_one_categorical_each(sizes, rows, seed, masks):
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    logits = rng.normal(size=(rows, ends[-1])).astype(np.float32)
    mask = np.concatenate([random_mask(rng, rows, n) for n in sizes], axis=1) if masks else None
    noise = (1 - rng.random((rows, len(sizes)))).astype(np.float32)
    whole = MultiCategorical(tuple(sizes), (len(sizes),))
    action = numpy(whole.sample(logits, noise, mask))
    log_prob, entropy = np.zeros(rows), np.zeros(rows)
    for k, (n, end) in enumerate(zip(sizes, ends, strict=True)):
        own, own_mask = logits[:, end - n : end], None if mask is None else mask[:, end - n : end]
        single = Categorical(n)
        np.testing.assert_array_equal(action[:, k], numpy(single.sample(own, noise[:, k : k + 1], own_mask)))
        np.testing.assert_array_equal(numpy(whole.mode(logits, mask))[:, k], numpy(single.mode(own, own_mask)))
        log_prob += numpy(single.log_prob(own, action[:, k], own_mask))
        entropy += numpy(single.entropy(own, own_mask))
    np.testing.assert_allclose(numpy(whole.log_prob(logits, action, mask)), log_prob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(whole.entropy(logits, mask)), entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_the_best_choice_is_one_that_is_there_whatever_the_logits_are(value):
    logits, mask = np.full((1, 5), value, np.float32), np.array([[0, 1, 1, 0, 1]], np.float32)
    parts = [Categorical(5), MultiCategorical((2, 3), (2,)), EpsilonGreedy(5)]
    for part, expected in zip(parts, ([1], [[1, 0]], [1]), strict=True):
        given_logits = logits if part.columns.parameters == 5 else np.pad(logits, ((0, 0), (0, 1)))
        np.testing.assert_array_equal(numpy(part.mode(given_logits, mask)), expected)
        (found,) = run_litert(lambda *inputs, part=part: [part.mode(*inputs)], given_logits, mask)
        np.testing.assert_array_equal(found, expected)


def test_actions_of_any_rank_are_counted_row_by_row():
    space = MultiDiscrete(np.array([[2, 3], [4, 5]]))
    (part,) = distribution_for(Spaces(None, space).action).parts
    logits = np.full((1, 14), -50.0, np.float32)
    logits[0, [1, 2 + 2, 5 + 3, 9 + 4]] = 0.0
    np.testing.assert_array_equal(numpy(part.mode(logits)), [[[1, 2], [3, 4]]])
    np.testing.assert_array_equal(numpy(part.sample(logits, np.full((1, 4), 0.5, np.float32))), [[[1, 2], [3, 4]]])
    assert numpy(part.log_prob(logits, np.array([[[1, 2], [3, 4]]], np.int32)))[0] == pytest.approx(0.0, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(shape=st.sampled_from([(1,), (5,), (2, 3)]), rows=st.integers(1, 4), scale=st.floats(0.1, 30), seed=seeds)
def test_bits_equal_scipy(shape, rows, scale, seed):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, int(np.prod(shape))))).astype(np.float32)
    bits = rng.integers(0, 2, (rows, *shape)).astype(np.int8)
    exact, flat = logits.astype(np.float64), bits.reshape(rows, -1)
    log_prob = np.where(flat, scipy.special.log_expit(exact), scipy.special.log_expit(-exact)).sum(-1)
    entropy = (scipy.special.entr(scipy.special.expit(exact)) + scipy.special.entr(scipy.special.expit(-exact))).sum(-1)
    found = Bernoulli(shape)
    np.testing.assert_allclose(numpy(found.log_prob(logits, bits)), log_prob, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(found.entropy(logits)), entropy, rtol=1e-3, atol=1e-4)
    mode = numpy(found.mode(logits))
    assert mode.dtype == np.int8
    np.testing.assert_array_equal(mode, (logits > 0).reshape(rows, *shape))


def test_samples_follow_the_probabilities():
    rng = np.random.default_rng(0)
    rows = 60_000
    probabilities = np.array([0.5, 0.2, 0.3, 0.1, 0.6, 0.3], np.float32)  # a choice of 3, one of 2, one bit
    logits = np.tile(np.log(probabilities), (rows, 1))
    logits[:, 5] = np.log(0.3 / 0.7)
    distribution = Distribution((MultiCategorical((3, 2), (2,)), Bernoulli((1,))))
    choices, bits = map(numpy, distribution.sample(logits, (1 - rng.random((rows, 3))).astype(np.float32)))
    expected = [0.5, 0.2, 0.3], [1 / 7, 6 / 7], [0.7, 0.3]
    for values, share in zip((choices[:, 0], choices[:, 1], bits[:, 0]), expected, strict=True):
        counts = rows * np.array(share)
        chi_square = (np.square(np.bincount(values) - counts) / counts).sum()
        assert scipy.special.chdtrc(len(share) - 1, chi_square) > 1e-3


def edge_draws(n=6, rows=100_000):
    """Takes many random masks and logits, some far apart; noise at the edges, beside them, and anywhere."""
    rng = np.random.default_rng(1)
    logits = (rng.choice([0.0, 1.0, 30.0], (rows, 1)) * rng.normal(size=(rows, n))).astype(np.float32)
    noise = (1 - rng.random((rows, 1))).astype(np.float32)
    noise[: rows // 2, 0] = rng.choice(np.array(EDGES, np.float32), rows // 2)
    return logits, noise, random_mask(rng, rows, n, 0.4).astype(np.float32)


def in_engine(engine, sample, *inputs):
    return run_litert(lambda *given: [sample(*given)], *inputs)[0] if engine == "litert" else numpy(sample(*inputs))


@pytest.mark.parametrize("engine", ["keras", "litert"])
def test_a_forbidden_choice_is_never_sampled(engine):
    logits, noise, mask = edge_draws()
    found = in_engine(engine, Categorical(6).sample, logits, noise, mask)
    assert found.min() >= 0
    assert found.max() <= 5
    assert mask[np.arange(len(found)), found].all()


@pytest.mark.parametrize("engine", ["keras", "litert"])
def test_no_component_takes_a_forbidden_or_padded_choice(engine):
    sizes = (3, 1, 6)
    logits, noise, _ = edge_draws(n=10)
    rng = np.random.default_rng(2)
    mask = np.concatenate([random_mask(rng, len(logits), n, 0.4) for n in sizes], axis=1).astype(np.float32)
    noise = rng.permuted(np.repeat(noise, 3, axis=1), axis=0)
    found = in_engine(engine, MultiCategorical(sizes, (3,)).sample, logits, noise, mask)
    assert (found < np.array(sizes)).all()
    assert np.take_along_axis(mask, found + np.array([0, 3, 4]), axis=1).all()


def test_at_noise_1_the_last_allowed_choice_is_taken():
    for last in range(7):
        mask = (np.arange(7) <= last)[None]
        logits = np.random.default_rng(last).normal(size=(1, 7)).astype(np.float32)
        assert numpy(Categorical(7).sample(logits, np.ones((1, 1), np.float32), mask))[0] == last


@pytest.mark.parametrize("noise", EDGES)
def test_what_a_network_forbids_by_itself_is_never_sampled(noise):
    for forbidden in (0, 1, 3, 4):
        logits = np.random.default_rng(forbidden).normal(size=(64, 5)).astype(np.float32)
        for value in (-np.inf, -1e9):
            logits[:, forbidden] = value
            samples = numpy(Categorical(5).sample(logits, np.full((64, 1), noise, np.float32)))
            assert set(samples) <= {0, 1, 2, 3, 4} - {forbidden}
    bits = np.array([[-200.0, 200.0]], np.float32)
    np.testing.assert_array_equal(numpy(Bernoulli((2,)).sample(bits, np.full((1, 2), noise, np.float32))), [[0, 1]])


def gradient_of(function, parameters):
    variable = tf.Variable(parameters)
    with tf.GradientTape() as tape:
        total = ops.sum(function(variable))
    return tape.gradient(total, variable).numpy()


@pytest.mark.parametrize("by", ["mask", "network"])
def test_what_is_forbidden_makes_no_nan_and_has_no_gradient(by):
    logits = np.array([[0.5, -np.inf if by == "network" else 3.0, 0.5]], np.float32)
    mask = np.array([[True, False, True]]) if by == "mask" else None
    categorical, action = Categorical(3), np.array([2])
    assert numpy(categorical.log_prob(logits, action, mask))[0] == pytest.approx(np.log(0.5))
    assert numpy(categorical.entropy(logits, mask))[0] == pytest.approx(np.log(2))
    of_log_prob = gradient_of(lambda x: categorical.log_prob(x, action, mask), logits)
    np.testing.assert_allclose(of_log_prob, [[-0.5, 0.0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(gradient_of(lambda x: categorical.entropy(x, mask), logits), [[0, 0, 0]], atol=1e-6)


def test_a_forbidden_action_has_a_log_probability_that_no_loss_survives_unseen():
    log_prob = numpy(Categorical(2).log_prob(np.zeros((1, 2), np.float32), np.array([1]), np.array([[True, False]])))
    assert log_prob[0] <= -1e29


def test_the_mode_is_the_first_highest_logit():
    logits = np.array([[0.0, 3.0, 3.0], [-1.0, -2.0, -3.0], [-0.0, 0.0, -1.0], [1, 2, 3]], np.float32)
    np.testing.assert_array_equal(numpy(Categorical(3).mode(logits)), [1, 0, 0, 2])


def test_distribution_by_space():
    assert distribution_for(Spaces(None, Discrete(3, start=5)).action) == Distribution((Categorical(3),))
    assert distribution_for(Spaces(None, Box(-1, 1, (2, 3))).action) == Distribution((Gaussian((2, 3)),))
    assert distribution_for(Spaces(None, MultiDiscrete([[2], [3]])).action) == Distribution(
        (MultiCategorical((2, 3), (2, 1)),)
    )
    assert distribution_for(Spaces(None, MultiBinary((2, 3))).action) == Distribution((Bernoulli((2, 3)),))
    squashed = distribution_for(Spaces(None, Tuple([Discrete(2), Box(-1, 3, (2,))])).action, "squashed")
    assert squashed == Distribution((Categorical(2), SquashedGaussian((2,), (2.0, 2.0))))


@pytest.mark.parametrize(
    ("space", "name", "message"),
    [
        (Discrete(3), "beta", r"must be one of 'gaussian', 'squashed', 'greedy'. Received: distribution='beta'"),
        (Discrete(3), "squashed", r"needs an action space with a Box. Received: .* for Discrete\(3\)"),
        (Box(-np.inf, np.inf, (2,)), "squashed", r"finite bounds.*Received: action\[0\] in \[-inf, inf\]"),
        (Dict(a=Box(-1, 1, (1,)), b=Box(2, 2, ())), "squashed", r"Received: action\['b'\] in \[2.0, 2.0\]"),
    ],
)
def test_refused_distributions(space, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        distribution_for(Spaces(None, space).action, name)
    assert "\n" not in str(caught.value)


def hybrid_inputs(rows=5, seed=0):
    rng = np.random.default_rng(seed)
    distribution = distribution_for(Spaces(None, HYBRID).action, "squashed")
    uniform, normal = distribution.noise
    parameters = rng.normal(size=(rows, structure.parameter_size(HYBRID))).astype(np.float32)
    noise = [1 - rng.random((rows, uniform)), rng.normal(size=(rows, normal))]
    sizes = [3, 3, 2, 4]
    mask = np.concatenate([random_mask(rng, rows, n) for n in sizes], axis=1)
    return distribution, parameters, np.concatenate(noise, axis=1).astype(np.float32), mask


def test_a_composite_is_the_product_of_its_leaves():
    """Each leaf has its own columns of parameters, noise and mask, in leaf order; uniforms come before normals."""
    distribution, parameters, noise, mask = hybrid_inputs()
    leaves = structure.action_structure(HYBRID).leaves
    assert distribution.noise == (1 + 3 + 3, 3)
    sample, mode = distribution.sample(parameters, noise, mask), distribution.mode(parameters, mask)
    log_prob, entropy = np.zeros(5), np.zeros(5)
    column = uniform = choice = 0
    normal = 7
    for leaf, part, drawn, likeliest in zip(leaves, distribution.parts, sample, mode, strict=True):
        own = parameters[:, column : column + structure.leaf_parameter_size(leaf.space)]
        allowed = mask[:, choice : choice + structure.choices(leaf.space)] if structure.choices(leaf.space) else None
        u, n = part.columns.uniform, part.columns.normal
        own_noise = noise[:, uniform : uniform + u] if u else noise[:, normal : normal + n]
        np.testing.assert_allclose(numpy(drawn), numpy(part.sample(own, own_noise, allowed)), rtol=1e-6)
        np.testing.assert_allclose(numpy(likeliest), numpy(part.mode(own, allowed)), rtol=1e-6)
        assert drawn.shape == (5, *leaf.shape)
        assert numpy(drawn).dtype == leaf.dtype
        log_prob += numpy(part.log_prob(own, drawn, allowed))
        entropy += numpy(part.entropy(own, allowed))
        column, uniform, normal = column + own.shape[1], uniform + u, normal + n
        choice += structure.choices(leaf.space)
    assert (column, choice) == (structure.parameter_size(HYBRID), Spaces(None, HYBRID).masks.size)
    np.testing.assert_allclose(numpy(distribution.log_prob(parameters, sample, mask)), log_prob, rtol=1e-5)
    np.testing.assert_allclose(numpy(distribution.entropy(parameters, mask)), entropy, rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "name"), [(HYBRID, "squashed"), (HYBRID, "gaussian"), (Box(-1, 1, (2, 2)), "gaussian")]
)
def test_the_divergence_is_the_mean_log_ratio_of_samples(space, name):
    """By Monte Carlo of the public methods, for two policies close to each other; of one from itself it is 0."""
    rng, rows = np.random.default_rng(0), 40_000
    layer, spaces = al.ActionDistribution(name), Spaces(None, space)
    first, second = 0.5 * rng.normal(size=(2, 1, structure.parameter_size(space))).astype(np.float32)
    sizes = [3, 3, 2, 4] if space is HYBRID else []
    mask = np.concatenate([random_mask(rng, 1, n) for n in sizes], axis=1) if sizes else None
    np.testing.assert_allclose(numpy(layer.kl_divergence(first, first, space, mask)), [0.0], atol=1e-6)
    found = float(numpy(layer.kl_divergence(first, second, space, mask))[0])

    distribution = distribution_for(spaces.action, name)
    uniform, normal = distribution.noise
    noise = np.concatenate([1 - rng.random((rows, uniform)), rng.normal(size=(rows, normal))], axis=1)
    first, second = (np.repeat(parameters, rows, axis=0) for parameters in (first, second))
    mask = None if mask is None else np.repeat(mask, rows, axis=0)
    action = spaces.action.unflatten(distribution.sample(first, noise.astype(np.float32), mask))
    one, other = (numpy(layer.log_prob(parameters, action, space, mask)) for parameters in (first, second))
    ratio = one - other
    assert found == pytest.approx(ratio.mean(), abs=4 * ratio.std() / np.sqrt(rows))


def test_a_choice_that_a_network_forbids_by_itself_leaves_the_divergence_and_its_gradient_finite():
    own, other = np.array([[0.5, -np.inf, 1.0]], np.float32), np.array([[1.0, -np.inf, 0.0]], np.float32)
    layer = al.ActionDistribution()
    gradient = gradient_of(lambda parameters: layer.kl_divergence(parameters, other, Discrete(3)), own)
    assert np.isfinite(numpy(layer.kl_divergence(own, other, Discrete(3)))).all()
    assert np.isfinite(numpy(gradient)).all()


def test_greedy_policies_have_no_divergence():
    values = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="`distribution` must be one with gradients.* Received: distribution='greedy'"):
        al.ActionDistribution("greedy").kl_divergence(values, values, Discrete(3))


def test_actors_and_learner_agree_on_a_composite():
    distribution, parameters, noise, mask = hybrid_inputs(rows=64)

    def step(parameters, noise, mask):
        action = distribution.sample(parameters, noise, mask)
        return [*action, distribution.log_prob(parameters, action, mask)]

    *action, log_prob = run_litert(step, parameters, noise, mask.astype(np.float32))
    expected = numpy(distribution.log_prob(parameters, action, ops.convert_to_tensor(mask)))
    smallest = np.exp(min(0.0, float(parameters.min())))
    assert np.abs(log_prob - expected).max() <= 1e-5 / smallest
    assert isinstance(distribution.sample(keras.ops.convert_to_tensor(parameters), noise, mask), tuple)
