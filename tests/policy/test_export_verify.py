"""Finding weights in a converted graph, and verifying them."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from keras import layers

from actor_learner.networks.step import PolicyStep
from actor_learner.policy.export.litert import InexpressibleError, output_names, to_litert, trace
from actor_learner.policy.export.verify import Probe, agree, draw_inputs, draw_leaf, draw_mask
from actor_learner.policy.export.weight_table import find_constants, pattern_values, permutation_of, scaled_by
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import ACTIONS, BATCH, VECTOR, Subclassed, vector_network

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("permutation", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_permutation(permutation):
    shape = (2, 3, 4)
    index = np.arange(24).reshape(shape).transpose(permutation).reshape(-1)
    found = permutation_of(index, shape)
    np.testing.assert_array_equal(np.arange(24).reshape(shape).transpose(found).reshape(-1), index)
    assert permutation_of(index[::-1], shape) is None


@pytest.mark.parametrize("factor", [1 / 255, -3.0, 1e-4, 7.7])
def test_scaled(factor):
    pattern = pattern_values(1000, 1600)
    values = pattern.reshape(20, 30).T.reshape(-1) * np.float32(factor)
    assert scaled_by(values, pattern, (20, 30)) == ((1, 0), float(np.float32(factor)))
    assert scaled_by(np.random.default_rng(0).random(600, np.float32), pattern, (20, 30)) is None


def test_constants_point_at_the_weights(exported):
    graph, shapes = exported.step_graph, exported.weight_shapes
    assert set(find_constants(graph.content, shapes, range(len(shapes)))) == set(graph.constants)


def test_agreement_forgives_a_rare_draw_but_no_float():
    actions, log_probs = np.array([0, 1, 2, 1]), np.array([-0.1, -0.2, -0.3, -0.4], np.float32)
    assert agree([actions, log_probs], [np.array([0, 1, 2, 0]), log_probs + np.float32([0, 0, 0, 9])])
    assert not agree([actions, log_probs], [actions, log_probs + np.float32([0, 0.01, 0, 0])])
    assert not agree([actions, log_probs], [np.array([0, 0, 0, 0]), log_probs])
    assert not agree([actions], [actions[:3]])


def probe_of(network, action_space=ACTIONS):
    """Returns (the exported step graph, its probe, its traced function)."""
    policy = PolicyStep(network, Spaces(VECTOR, action_space))
    traced = trace(policy, "step", BATCH)
    probe = Probe(traced, draw_inputs(policy, BATCH), network)
    return to_litert(traced, probe, network), probe, traced


def test_the_check_finds_weights_that_are_not_written_or_written_wrongly():
    """Two kernels of one shape exchanged; a square kernel transposed; a wrong factor."""
    graph, probe, traced = probe_of(vector_network(layers.Dense(6, "tanh"), layers.Dense(6, "tanh")))
    assert probe.failing_weights(graph, traced) == set()
    assert len(graph.constants) == 6
    for missing in graph.constants:
        kept = tuple(constant for constant in graph.constants if constant is not missing)
        assert missing.weight in probe.failing_weights(dataclasses.replace(graph, constants=kept), traced)
    first, second = (constant for constant in graph.constants if constant.weight in (0, 2))
    others = tuple(constant for constant in graph.constants if constant.weight not in (0, 2))
    swapped = (dataclasses.replace(first, weight=second.weight), dataclasses.replace(second, weight=first.weight))
    transposed = (dataclasses.replace(first, permutation=first.permutation[::-1]), second)
    scaled = (dataclasses.replace(first, factor=1.01), second)
    for wrong in (swapped, transposed, scaled):
        assert probe.failing_weights(dataclasses.replace(graph, constants=others + wrong), traced)


def test_weights_that_only_other_outputs_read_are_unused():
    network = Subclassed()
    network(np.zeros((1, 6), np.float32))
    traced = trace(PolicyStep(network, Spaces(VECTOR, ACTIONS)), "step", BATCH)
    expected = {id(weight) for weight in (*network.hidden.weights, *network.heads[0].weights)}
    assert {id(network.weights[index]) for index in traced.used} == expected


def test_small_batches_are_checked_on_as_many_rows():
    policy = PolicyStep(vector_network(layers.Dense(4)), Spaces(VECTOR, ACTIONS))
    for batch_size in (1, 3, 8):
        assert sum(len(batch[0]) for batch in draw_inputs(policy, batch_size)) >= 8


def test_the_check_finds_outputs_in_another_order():
    """The two leaves look alike: only their values tell them apart."""
    observation = keras.Input((6,))
    network = keras.Model(observation, (layers.Dense(6)(observation), layers.Dense(1)(observation)))
    graph, probe, traced = probe_of(network, Tuple([Discrete(3), Discrete(3)]))
    first, second, *rest = graph.outputs
    assert first != second
    assert probe.failing_weights(dataclasses.replace(graph, outputs=(second, first, *rest)), traced)


def test_outputs_are_read_by_name():
    traced = ["Identity", "Identity_1", "Identity_2"]
    assert output_names(traced, ["Identity_2", "Identity", "Identity_1"]) == tuple(traced)
    # The second is equal to the first, the third is an input.
    assert output_names(traced, ["Identity", "Identity", "observation"]) == ("Identity", "Identity", "observation")
    with pytest.raises(InexpressibleError, match="it has 2 outputs where the network's graph has 3"):
        output_names(traced, traced[:2])


def test_integers_without_bounds_are_drawn_small():
    """A network with an embedding may declare no more than an int32 input."""
    limits = np.iinfo(np.int32)
    (leaf,) = spaces.observation_structure(Box(limits.min, limits.max, (), np.int32)).leaves
    assert set(draw_leaf(leaf, np.random.default_rng(0), 50).tolist()) == {0, 1}


def test_drawn_masks_forbid_much_and_little():
    mask = draw_mask(Spaces(None, Discrete(100)).masks, np.random.default_rng(0), 300)
    allowed = mask.mean(axis=1)
    assert allowed.min() < 0.2
    assert allowed.max() > 0.8
