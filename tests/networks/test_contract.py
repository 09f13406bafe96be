"""The contract of networks, and the arrangement of composite observations for them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from keras import layers, ops

from actor_learner.networks.contract import (
    call_network,
    cap_statistics,
    check_contract,
    check_network,
    distribution_and_hold,
    network_distribution,
    normalization_layers,
    normalized_leaf,
    takes_mask,
    training_dependent_layers,
)
from actor_learner.networks.default import default_network, with_normalization
from actor_learner.networks.layers import ActionDistribution, ObservationNormalization
from actor_learner.policy.policy import Policy
from actor_learner.spaces.spaces import Spaces
from tests.support.trajectories import TWO_ACTIONS, VECTOR


def outputs(network, observation):
    return {name: ops.convert_to_numpy(value) for name, value in call_network(network, observation).items()}


def two_heads(parameters, value, columns=4):
    x = keras.Input((columns,))
    return keras.Model(x, (layers.Dense(parameters)(x), layers.Dense(value)(x)))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: two_heads(3, 1), r"`parameters` must have shape \[B, 2\] for Discrete\(2\). Received: \[B, 3\]"),
        (lambda: two_heads(2, 2), r"`value` must have shape \[B\] or \[B, 1\]. Received: \[B, 2\]"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2)]), "must return .parameters, value."),
        (lambda: keras.Model(x := keras.Input((4,)), {"value": layers.Dense(1)(x)}), r"lacks \['parameters'\]"),
        (lambda: two_heads(2, 1, 7), r"doesn't take observations of shape \(4,\) and dtype float32"),
        (lambda: layers.Dense(2), "`network` must be a keras.Model"),
    ],
)
def test_broken_contracts(network, message):
    with pytest.raises(ValueError, match=message):
        check_network(network(), Spaces(VECTOR, TWO_ACTIONS))


def test_a_state_s_value_may_be_missing_where_no_algorithm_needs_it():
    x = keras.Input((4,))
    network, spaces = keras.Model(x, {"parameters": layers.Dense(2)(x)}), Spaces(VECTOR, TWO_ACTIONS)
    check_network(network, spaces)
    observation = spaces.observation.zeros(2)
    assert np.asarray(call_network(network, observation)["value"]).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"lacks \['value'\]"):
        check_contract(network, observation, spaces, needs_value=True)


def test_kerass_habit_of_two_models_works():
    x = keras.Input((4,))
    actor, critic = keras.Sequential([layers.Dense(2)]), keras.Sequential([layers.Dense(1)])
    check_network(keras.Model(x, (actor(x), critic(x))), Spaces(VECTOR, TWO_ACTIONS))


def test_distribution_layers_that_differ_are_refused():
    x = keras.Input((4,))
    said = ActionDistribution("squashed", 3, name="one")(layers.Dense(2)(x))
    again = ActionDistribution("squashed", 3)(said)
    value = layers.Dense(1)(x)
    box = Box(-1, 1, (1,))
    network = keras.Model(x, (again, value))
    assert distribution_and_hold(network) == ("squashed", 3)
    assert distribution_and_hold(keras.Model(x, (layers.Dense(2)(x), value))) == ("gaussian", 1)
    for other in (ActionDistribution("gaussian", 3), ActionDistribution("squashed", 2)):
        network = keras.Model(x, (other(said), value))
        for read in (
            lambda network=network: network_distribution(network, Spaces(None, box)),
            lambda network=network: Policy.from_network(network, box),
        ):
            with pytest.raises(ValueError, match=r"must agree on \(distribution, noise_hold\). Received: 'one' \(squ"):
                read()


def test_further_outputs_of_a_dict_are_kept():
    x = keras.Input((4,))
    heads = {name: layers.Dense(size)(x) for name, size in (("parameters", 2), ("value", 1), ("next", 4))}
    network = keras.Model(x, heads)
    check_network(network, Spaces(VECTOR, TWO_ACTIONS))
    assert outputs(network, np.zeros((3, 4), np.float32))["next"].shape == (3, 4)


def test_a_network_of_ones_own_is_wrapped_once():
    wrapped = with_normalization(two_heads(2, 1), VECTOR)
    check_network(wrapped, Spaces(VECTOR, TWO_ACTIONS))
    assert len(normalization_layers(wrapped)) == 1
    with pytest.raises(ValueError, match="would normalize twice"):
        with_normalization(wrapped, VECTOR)


PAIR = Dict(position=VECTOR, goal=Box(-1, 1, (3,)))
BATCH = {"position": np.ones((5, 4), np.float32), "goal": np.full((5, 3), 2.0, np.float32)}


def heads(inputs, joined):
    return keras.Model(inputs, (layers.Dense(2)(joined), layers.Dense(1)(joined)))


def of_dict():
    inputs = {name: keras.Input((size,), name=name) for name, size in (("position", 4), ("goal", 3))}
    return heads(inputs, layers.Concatenate()([inputs["position"], inputs["goal"]]))


def of_list():
    goal, position = keras.Input((3,), name="goal"), keras.Input((4,), name="position")
    return heads([goal, position], layers.Concatenate()([position, goal]))


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.logits, self.critic = layers.Dense(2), layers.Dense(1)

    def call(self, observation):
        assert set(observation) == {"position", "goal"}
        joined = ops.concatenate([observation["position"], observation["goal"]], axis=-1)
        return self.logits(joined), self.critic(joined)


@pytest.mark.parametrize("make", [of_dict, of_list, Subclassed])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.filterwarnings("error::UserWarning")
def test_a_dict_reaches_inputs_by_name_without_its_mask(make, masked):
    space = Dict({**PAIR.spaces, "action_mask": MultiBinary(2)}) if masked else PAIR
    network = make()
    check_network(network, Spaces(space, TWO_ACTIONS))
    network.set_weights([np.ones_like(weight) for weight in network.get_weights()])
    batch = {**BATCH, "action_mask": np.ones((5, 2), np.int8)} if masked else BATCH
    np.testing.assert_allclose(outputs(network, batch)["value"], 1 * 4 + 2 * 3 + 1)
    assert not takes_mask(network)


def test_each_input_gets_its_own_leaf():
    """Leaves aren't matched by position: Keras sorts a dict's keys."""
    inputs = {name: keras.Input((1,), name=name) for name in ("b", "a")}
    network = keras.Model(inputs, (layers.Concatenate()([inputs["a"], inputs["b"]]), inputs["b"]))
    found = outputs(network, {"b": np.full((3, 1), 2.0, np.float32), "a": np.zeros((3, 1), np.float32)})
    np.testing.assert_array_equal(found["value"], 2.0)
    np.testing.assert_array_equal(found["parameters"], [[0.0, 2.0]] * 3)


def test_a_tuple_reaches_inputs_in_order_and_nested_leaves_by_dotted_names():
    position, goal = keras.Input((4,)), keras.Input((3,))
    network = heads([position, goal], layers.Concatenate()([position, goal]))
    check_network(network, Spaces(Tuple([VECTOR, PAIR["goal"]]), TWO_ACTIONS))
    named = {name: keras.Input((size,), name=name) for name, size in (("body.position", 4), ("goals.0", 3))}
    network = heads(named, layers.Concatenate()(list(named.values())))
    check_network(network, Spaces(Dict(body=Dict(position=VECTOR), goals=Tuple([PAIR["goal"]])), TWO_ACTIONS))


@pytest.mark.parametrize("nest", [lambda x: x, lambda x: [x]])
def test_a_single_input_takes_the_only_leaf(nest):
    x = keras.Input((4,))
    network = heads(nest(x), x)
    check_network(network, Spaces(Dict(position=VECTOR, action_mask=MultiBinary(2)), TWO_ACTIONS))
    check_network(network, Spaces(Tuple([VECTOR]), TWO_ACTIONS))


def test_a_network_may_look_at_the_mask():
    inputs = {"position": keras.Input((4,), name="position"), "action_mask": keras.Input((2,), name="action_mask")}
    network = heads(inputs, layers.Concatenate()(list(inputs.values())))
    assert takes_mask(network)
    space = Dict(position=VECTOR, action_mask=MultiBinary(2))
    check_network(network, Spaces(space, TWO_ACTIONS))
    wrapped = with_normalization(network, space)
    assert takes_mask(wrapped)
    check_network(wrapped, Spaces(space, TWO_ACTIONS))


@pytest.mark.parametrize(
    "space", [Dict(position=VECTOR), Dict(position=VECTOR, target=PAIR["goal"]), Dict({**PAIR.spaces, "more": VECTOR})]
)
@pytest.mark.parametrize("make", [of_dict, of_list])
def test_inputs_that_do_not_match_are_listed_beside_the_leaves(make, space):
    with pytest.raises(ValueError, match=r"leaves \['.*position.*Received: inputs \['goal', 'position'\]") as caught:
        check_network(make(), Spaces(space, TWO_ACTIONS))
    assert "\n" not in str(caught.value)


def test_a_network_that_fails_on_a_composite_says_what_it_was_given():
    inputs = {name: keras.Input((4,), name=name) for name in ("position", "goal")}
    network = heads(inputs, layers.Concatenate()(list(inputs.values())))
    with pytest.raises(ValueError, match=r"^.*take observations of position \(4,\) float32, goal \(3,\).*$"):
        check_network(network, Spaces(PAIR, TWO_ACTIONS))


def test_a_composite_is_normalized_leaf_by_leaf():
    space = Dict({**PAIR.spaces, "kind": Discrete(3), "screen": Box(0, 255, (4, 4), np.uint8)})
    inputs = {
        "position": keras.Input((4,), name="position"),
        "goal": keras.Input((3,), name="goal"),
        "kind": keras.Input((), name="kind", dtype="int32"),
        "screen": keras.Input((4, 4), name="screen", dtype="uint8"),
    }
    network = heads(inputs, layers.Concatenate()([inputs["position"], inputs["goal"]]))
    wrapped = with_normalization(network, space)
    check_network(wrapped, Spaces(space, TWO_ACTIONS))
    found = {layer.leaf: layer.mean.shape for layer in normalization_layers(wrapped)}
    assert found == {"position": (4,), "goal": (3,)}


def test_a_layer_says_which_leaf_it_normalizes():
    layer = ObservationNormalization(leaf="goal")
    assert normalized_leaf(layer, BATCH) is BATCH["goal"]
    assert normalized_leaf(ObservationNormalization(), BATCH["goal"]) is BATCH["goal"]
    alone = {"goal": BATCH["goal"], "action_mask": np.ones((5, 2))}
    assert normalized_leaf(ObservationNormalization(), alone) is BATCH["goal"]
    for leaf in (None, "gaol"):
        with pytest.raises(ValueError, match=rf"one of \['goal', 'position'\].*Received: leaf={leaf!r}"):
            normalized_leaf(ObservationNormalization(leaf=leaf), BATCH)
    assert ObservationNormalization.from_config(layer.get_config()).leaf == "goal"


def test_the_observations_seen_so_far_can_be_made_to_weigh_less():
    network = default_network(VECTOR, TWO_ACTIONS, normalize_observation=True)
    (layer,) = normalization_layers(network)
    layer.count.assign(1000.0)
    assert cap_statistics(network, 10) is network
    assert float(layer.count) == 10.0
    cap_statistics(network, 100)
    assert float(layer.count) == 10.0


@pytest.mark.parametrize(
    ("layer", "options", "named"),
    [
        ("Dropout", {"rate": 0.5}, True),
        ("Dropout", {"rate": 0.0}, False),
        ("SpatialDropout1D", {"rate": 0.5}, True),
        ("GaussianNoise", {"stddev": 0.1}, True),
        ("GaussianDropout", {"rate": 0.5}, True),
        ("AlphaDropout", {"rate": 0.5}, True),
        ("BatchNormalization", {}, True),
        ("BatchNormalization", {"trainable": False}, False),
        ("RandomContrast", {"factor": 0.5}, True),
        ("MixUp", {}, True),
        ("Resizing", {"height": 4, "width": 4}, False),
        ("LSTM", {"units": 2, "recurrent_dropout": 0.5}, True),
        ("LSTM", {"units": 2}, False),
        ("MultiHeadAttention", {"num_heads": 1, "key_dim": 2, "dropout": 0.5}, True),
        ("MultiHeadAttention", {"num_heads": 1, "key_dim": 2}, False),
        ("Attention", {"dropout": 0.5}, True),
        ("LayerNormalization", {}, False),
    ],
)
def test_layers_that_depend_on_training_are_found(layer, options, named):
    made = getattr(layers, layer)(**options)
    if layer == "MultiHeadAttention":  # makes its parts when it is built
        made.build((1, 2, 3), (1, 2, 3))
    assert bool(training_dependent_layers(keras.Sequential([made]))) == named
