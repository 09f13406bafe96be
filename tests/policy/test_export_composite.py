"""Exported graphs of composite spaces: the learner's log-probabilities; inputs and outputs matched by name."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from keras import layers, ops

from actor_learner.networks.contract import all_layers
from actor_learner.networks.default import default_network
from actor_learner.networks.layers import LogStd
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.export.verify import draw_mask
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import Policy
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces
from tests.support.exporting import Inexpressible, assert_agrees, changed_weights, observations
from tests.support.trajectories import DIALS, HYBRID, SENSES, SWITCHES, TORQUES, VECTOR

pytestmark = pytest.mark.slow


BATCH = 8
KINDS = {
    "discrete": Discrete(5, start=3),
    "one choice": Discrete(1),
    "dials": DIALS,
    "grid of dials": MultiDiscrete([[2, 3], [4, 1]]),
    "equal dials": MultiDiscrete([3, 3, 3]),
    "switches": SWITCHES,
    "grid of switches": MultiBinary((2, 3)),
    "box": Box(-1, 1, (2, 2), np.float32),
    "hybrid": HYBRID,
    "tuple": Tuple([TORQUES, Tuple([Discrete(2), TORQUES]), SWITCHES]),
}
FURTHER = {"discrete", "dials", "equal dials", "switches", "box", "tuple"}


def further(*case):
    return pytest.param(*case, marks=pytest.mark.thorough)


def check_agreement(observation_space, action_space, **options):
    """Compares at initialization and after a change of all weights, with and without masks that forbid most choices."""
    network = default_network(observation_space, action_space, hidden_sizes=(16,), **options)
    layout = Spaces(None, action_space).masks
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "LiteRT can't run")
        exported = export_policy(network, action_space, BATCH, observation_space, masked=True)
    assert exported.masked == (layout.size > 0)
    for rows in (BATCH, 30):
        check_versions(Policy(exported), network, action_space, observations(observation_space, rows), layout)


def check_versions(policy, network, action_space, observation, layout):
    rows = len(keras.tree.flatten(observation)[0])
    before = network.get_weights()
    for weights in (before, changed_weights(network)):
        network.set_weights(weights)
        policy.set_weights(weights)
        tolerance = 1e-5 / min(1.0, smallest_std(network))
        assert_agrees(policy, network, action_space, observation, tolerance)
        if policy.exported.masked:
            mask = draw_mask(layout, np.random.default_rng(0), rows).astype(bool)
            assert_agrees(policy, network, action_space, observation, tolerance, mask)
    network.set_weights(before)


def smallest_std(network):
    stds = [np.exp(layer.log_std).min() for layer in all_layers(network) if isinstance(layer, LogStd)]
    return float(min(stds, default=1.0))


@pytest.mark.filterwarnings("ignore:You are using a softmax:UserWarning")
@pytest.mark.parametrize("name", [further(name) if name in FURTHER else name for name in KINDS])
def test_log_probabilities_are_the_learners(name):
    check_agreement(VECTOR, KINDS[name])


def test_log_probabilities_are_the_learners_when_squashed():
    check_agreement(VECTOR, KINDS["tuple"], distribution="squashed", initial_log_std=-1.0)


@pytest.mark.parametrize(
    ("observation_space", "options"),
    [
        (Dict({"a": VECTOR, "b": Box(-1, 1, (2,), np.float64), "c": Discrete(3)}), {"normalize_observation": True}),
        further(Tuple([Discrete(3), MultiBinary(2)]), {}),
        further(MultiDiscrete([2, 5]), {}),
    ],
    ids=str,
)
def test_log_probabilities_are_the_learners_for_any_observation(observation_space, options):
    check_agreement(observation_space, DIALS, **options)


def test_leaves_of_every_kind(composite, composite_network, tmp_path):
    """As exported, and as saved and loaded."""
    composite.save(tmp_path)
    loaded = ExportedPolicy.load(tmp_path)
    for name, value in vars(composite).items():
        np.testing.assert_equal(vars(loaded)[name], value)
    policy = Policy(loaded)
    assert (policy.observation_space, policy.action_space) == (SENSES, HYBRID)
    for rows in (4, 9):
        check_versions(policy, composite_network, HYBRID, observations(SENSES, rows), Spaces(None, HYBRID).masks)


class Shifted(keras.Model):
    """Choice number i of leaf k is (observation + k) mod 7 with near certainty; all leaves look alike."""

    def __init__(self, leaves):
        super().__init__()
        self.leaves = leaves
        self.value = layers.Dense(1)

    def call(self, observation):
        shifted = [ops.one_hot((observation + k) % 7, 7, dtype="float32") for k in range(self.leaves)]
        return 100.0 * ops.concatenate(shifted, axis=-1), self.value(shifted[0])


@pytest.mark.parametrize(
    "action_space", [Dict({key: Discrete(7) for key in "edcba"}), further(Tuple([Discrete(7)] * 5))]
)
def test_equal_output_leaves_are_told_apart(action_space):
    policy = Policy.from_network(Shifted(5), action_space, batch_size=7, observation_space=Discrete(7))
    observation = np.arange(7)
    for action in (policy.act(observation), policy.step(observation)[0]):
        for k, leaf in enumerate(spaces.action_structure(action_space).flatten(action)):
            np.testing.assert_array_equal(leaf, (observation + k) % 7)


NAMES = ["zebra", "A", "a", "my camera", "my_camera", "größe", "x.y", "0"]


@pytest.mark.parametrize(
    "space",
    [
        Dict([(name, Box(-1, 1, (1,), np.float32)) for name in NAMES]),
        further(Tuple([Box(-1, 1, (1,), np.float32) for _ in NAMES])),
        Dict({"inner": Tuple([Box(-1, 1, (1,), np.float32), Dict({n: Box(-1, 1, (1,)) for n in NAMES[1:]})])}),
    ],
)
def test_equal_input_leaves_are_told_apart(space):
    """Each input has its own weight in the value, whatever its name."""
    structure = spaces.observation_structure(space)
    count = len(structure.leaves)

    class Weighted(keras.Model):
        def call(self, observation):
            leaves = structure.flatten(observation)
            value = sum(leaf * 10.0**-place for place, leaf in enumerate(leaves))
            return ops.concatenate([value, 0 * value], axis=-1), value

    policy = Policy.from_network(Weighted(), Discrete(2), batch_size=3, observation_space=space)
    assert len({name.lower() for name in policy.exported.input_names}) == count + 2
    for place in range(count):
        leaves = [np.full((3, 1), float(place == other), np.float32) for other in range(count)]
        for rows in (3, 1):
            value = policy.value_leaves(tuple(leaf[:rows] for leaf in leaves))
            np.testing.assert_allclose(value, np.full(rows, 10.0**-place), rtol=1e-5)


def inputs_of(graph):
    return {detail["name"] for detail in Interpreter(model_content=graph.content).get_input_details()}


@pytest.mark.parametrize("expressible", [True, further(False)])
def test_leaves_that_a_graph_does_not_use_are_no_inputs(expressible):
    """The network acts on one leaf, values by another, and ignores the rest."""
    leaf = Box(-1, 1, (2,), np.float32)
    space = Dict([("ignored", Box(0, 255, (64, 64, 3), np.uint8)), ("act", leaf), ("value", leaf)])

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = [layers.Dense(3), layers.Dense(1)]

        def call(self, observation):
            outputs = [head(observation[name]) for head, name in zip(self.heads, ("act", "value"), strict=True)]
            return tuple(outputs if expressible else map(Inexpressible(), outputs))

    with warnings.catch_warnings():
        warnings.simplefilter("error" if expressible else "ignore")
        policy = Policy.from_network(Network(), Discrete(3), batch_size=2, observation_space=space)
    assert policy.exported.fallback != expressible
    if expressible:
        assert inputs_of(policy.exported.step_graph) == {"observation.act", "noise", "action_mask"}
        assert inputs_of(policy.exported.value_graph) == {"observation.value"}
    for rows in (2, 5):
        first, other = observations(space, rows, 1), observations(space, rows, 2)
        np.testing.assert_array_equal(policy.value(first), policy.value({**other, "value": first["value"]}))
        assert (policy.value(first) != policy.value({**first, "value": other["value"]})).all()
        policy.reseed(0)
        log_prob = policy.step(first)[1]
        policy.reseed(0)
        np.testing.assert_array_equal(policy.step({**other, "act": first["act"]})[1], log_prob)


def test_what_litert_cannot_express_with_several_inputs_and_masks():
    space = Dict({"a": VECTOR, "b": Discrete(3)})
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((), dtype="int32", name="b")}
    features = layers.Concatenate()([Inexpressible()(inputs["a"]), ops.one_hot(inputs["b"], 3)])
    parameters = layers.Dense(spaces.parameter_size(HYBRID))(features)
    network = keras.Model(inputs, (parameters, layers.Dense(1)(features)))
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        policy = Policy(export_policy(network, HYBRID, BATCH, space, masked=True))
    assert policy.exported.fallback
    check_versions(policy, network, HYBRID, observations(space, BATCH), Spaces(None, HYBRID).masks)


@pytest.mark.parametrize("nest", ["nested", further("dict"), further("list")])
def test_the_space_of_a_networks_inputs(nest):
    a, b = keras.Input((2,), name="a"), keras.Input((), dtype="uint8", name="b")
    box, byte = Box(-np.inf, np.inf, (2,), np.float32), Box(0, 255, (), np.uint8)
    inputs, expected = {
        "dict": ({"b": b, "a": a}, Dict([("b", byte), ("a", box)])),
        "list": ([b, a], Tuple([byte, box])),
        "nested": ({"deep": (a, {"b": b})}, Dict({"deep": Tuple([box, Dict({"b": byte})])})),
    }[nest]
    features = layers.Concatenate()([a, ops.cast(ops.expand_dims(b, -1), "float32") / 255])
    network = keras.Model(inputs, (layers.Dense(3)(features), layers.Dense(1)(features)))
    policy = Policy.from_network(network, Discrete(3), batch_size=4)
    assert policy.observation_space == expected
    assert_agrees(policy, network, Discrete(3), observations(expected, 4))
