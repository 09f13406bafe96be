"""Exported graphs follow each weight, whatever the converter folds."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from keras import layers

from actor_learner.networks.default import default_network
from actor_learner.networks.images import is_grid
from actor_learner.networks.layers import ActionDistribution
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.policy import Policy
from actor_learner.spaces.kinds import from_json
from actor_learner.spaces.structure import to_gymnasium
from tests.support.exporting import (
    ACTIONS,
    BATCH,
    IMAGE,
    IMAGE_NETWORKS,
    VECTOR,
    VECTOR_NETWORKS,
    Subclassed,
    assert_agrees,
    changed_weights,
    observations,
)

pytestmark = pytest.mark.slow

FURTHER = {
    "1D convolution",
    "attention",
    "batch normalization after convolution",
    "batch normalization after dense",
    "convolution of x / 127.5 - 1",
    "dense",
    "dropout",
    "float16",
    "float64",
    "layer normalization",
    "lstm cell",
    "lstm over a sequence",
    "mixed precision of float16",
    "prelu",
    "scale after dense",
}
"""Networks of layers that others have, too."""
FED = {"scale before dense": {"scale"}, "softplus(weight)": {"raw"}, "half of a kernel": {"kernel"}}
"""The weights that become inputs, because the graph doesn't hold them; vectors rather than kernels."""


def networks(makers):
    return [
        pytest.param(name, make, marks=pytest.mark.thorough) if name in FURTHER else (name, make)
        for name, make in makers.items()
    ]


def check_new_weights(network, observation_space, tolerance=1e-5):
    """Exports a network, without a change of it, and compares after a change of all weights; returns the export."""
    before, policies = network.get_weights(), [layer.dtype_policy for layer in network.layers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = export_policy(network, ACTIONS, BATCH, observation_space)
    assert not exported.fallback
    assert [layer.dtype_policy for layer in network.layers] == policies
    for old, new in zip(before, network.get_weights(), strict=False):
        np.testing.assert_array_equal(old, new)
    policy = Policy(exported)
    observation = observations(policy.observation_space, BATCH)
    value = policy.value(observation)
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    assert not np.allclose(policy.value(observation), value, atol=1e-3)
    for rows in (BATCH, 3):
        assert_agrees(policy, network, ACTIONS, observations(policy.observation_space, rows), tolerance)
    return exported


@pytest.mark.parametrize(("name", "make"), networks(VECTOR_NETWORKS))
def test_new_weights_are_followed(name, make):
    # Keras itself computes in half precision, the exported graph in float32.
    tolerance = 0.05 if name.startswith(("mixed precision", "float16")) else 1e-5
    exported = check_new_weights(make(), VECTOR, tolerance)
    if name in FED:
        inputs = {exported.weight_names[index].split("/")[-1] for index in exported.step_graph.inputs}
        assert FED[name] <= inputs
        assert "kernel" not in inputs - FED[name]
    assert not (name == "gru cell" and exported.step_graph.resizable)


@pytest.mark.parametrize(("name", "make"), networks(IMAGE_NETWORKS))
def test_new_weights_are_followed_by_image_networks(name, make):
    """Shape and dtype come from the network, which says them."""
    exported = check_new_weights(make(), None)
    assert to_gymnasium(from_json(exported.observation_space)) == IMAGE
    if name == "convolution of x / 255":  # a constant folded into a kernel
        factors = {constant.factor for constant in exported.step_graph.constants}
        assert factors == {1.0, float(np.float32(1 / 255))}


GRID = np.arange(9, dtype=np.uint8).reshape(3, 3)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "options", "batch_size"),
    [
        (VECTOR, Discrete(2, start=3), {}, 1),
        (Box(-1, 1, (3, 2), np.float64), Box(-1, 1, (2, 3), np.float32), {"normalize_observation": True}, 5),
        (Box(0, 10, (6,), np.int64), Discrete(4), {}, 5),
        (Discrete(5, start=2), Discrete(4), {}, 5),
        (Box(0, 255, (36, 36), np.uint8), Discrete(6), {}, 5),
        (Box(0, 255, (3, 20, 20), np.uint8), Discrete(6), {"image_network": "impala"}, 5),
        (Box(0, 255, (3, 20, 20), np.uint8), Discrete(6), {"image_network": "impoola"}, 5),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                (VECTOR, Discrete(1), {}, 1),
                (VECTOR, Box(-2, 2, (), np.float32), {}, 1),
                (Box(0, 255, (36, 36), np.uint8), Discrete(6), {}, 1),
                (Box(0, 255, (7, 7, 3), np.uint8), Discrete(6), {}, 5),
                (Box(0, 1, (10, 10, 4), np.bool_), Discrete(6), {}, 5),
                (Box(0 * GRID, GRID, dtype=np.uint8), Discrete(6), {}, 5),
                *((Box(0, 10, (6,), dtype), Discrete(4), {}, 5) for dtype in (np.float16, np.int8, np.uint32)),
            ]
        ),
    ],
    ids=lambda value: str(value).replace("\n", ""),
)
@pytest.mark.filterwarnings("ignore:You are using a softmax:UserWarning")
def test_default_networks(observation_space, action_space, options, batch_size, capfd):
    """Their weights stay constants, and nothing is printed."""
    network = default_network(observation_space, action_space, **options)
    exported = export_policy(network, action_space, batch_size, observation_space)
    assert capfd.readouterr() == ("", "")
    assert not exported.fallback
    for graph in (exported.step_graph, exported.value_graph):
        assert graph.inputs == ()
        known = observation_space is VECTOR or is_grid(observation_space)  # a call of few rows then pads none
        assert graph.resizable or not known or isinstance(action_space, Box)
    policy = Policy(exported)
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    for rows in (batch_size, 3):
        assert_agrees(policy, network, action_space, observations(observation_space, rows), tolerance=3e-5)


def test_weights_that_a_graph_does_not_use_are_in_neither_table(exported):
    in_step = {exported.weight_names[constant.weight] for constant in exported.step_graph.constants}
    in_value = {exported.weight_names[constant.weight] for constant in exported.value_graph.constants}
    assert {name.split("/")[0] for name in in_step} == {"policy_hidden_1", "policy_hidden_2", "logits"}
    assert {name.split("/")[0] for name in in_value} == {"value_hidden_1", "value_hidden_2", "value"}


def test_what_cannot_be_exported_is_one_clear_error():
    observation = keras.Input((6,))

    def heads(parameters, value=1, noise_hold=1):
        found = layers.Dense(parameters)(observation)
        found = found if noise_hold == 1 else ActionDistribution(noise_hold=noise_hold)(found)
        return keras.Model(observation, (found, layers.Dense(value)(observation)))

    for network, arguments, message in (
        (heads(4), (BATCH, VECTOR), r"`parameters` must have shape \[B, 3\].*Received: \[B, 4\]"),
        (heads(3, 2), (BATCH, VECTOR), r"`value` must have shape \[B\] or \[B, 1\].*Received: \[16\]"),
        (heads(3), (0, VECTOR), r"`batch_size` must be an integer of at least 1\. Received: batch_size=0"),
        (heads(3, 1, 4), (2, VECTOR), "must be 1 for an action space without a Box. Received: noise_hold=4"),
        (Subclassed(), (2,), "`observation_space` must be given.*Received: network='subclassed"),
    ):
        with pytest.raises(ValueError, match=message):
            export_policy(network, ACTIONS, *arguments)
