from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings, strategies as st
from keras import ops

from actor_learner.networks.contract import building_in, call_network, check_network, normalization_layers
from actor_learner.networks.default import default_critic, default_network, with_normalization
from actor_learner.networks.images import describe_image
from actor_learner.networks.layers import ObservationNormalization, OneHot
from actor_learner.networks.memory import Memories
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.spaces import Spaces
from tests.support.trajectories import HYBRID, SENSES, TORQUES, TWO_ACTIONS, VECTOR, random_leaf


def outputs(network, observation):
    return {name: ops.convert_to_numpy(value) for name, value in call_network(network, observation).items()}


def test_the_default_network_is_two_trunks_of_two_layers():
    network = default_network(VECTOR, TWO_ACTIONS)
    assert network.count_params() == 2 * (4 * 64 + 64 + 64 * 64 + 64) + (64 * 2 + 2) + (64 + 1)
    check_network(network, Spaces(VECTOR, TWO_ACTIONS))
    found = outputs(network, np.zeros((3, 4), np.float32))
    assert found["parameters"].shape == (3, 2)
    assert found["value"].shape == (3,)


@pytest.mark.parametrize("memory", [None, "lstm"])
@pytest.mark.parametrize("own", [VECTOR, Box(0, 255, (12, 12, 3), np.uint8)])
def test_entries_for_the_value_only_reach_the_value_alone(own, memory):
    space = Dict([("observation", own), ("agent", Discrete(3)), ("state", Box(-1, 1, (5,)))])
    network = default_network(space, TWO_ACTIONS, memory=memory, memory_size=8, value_only=("agent", "state"))
    seen = Spaces(space, TWO_ACTIONS).observation.zeros(2)
    found = outputs(network, seen)
    for name, value in (("agent", np.int32([1, 2])), ("state", np.ones((2, 5), np.float32))):
        other = outputs(network, {**seen, name: value})
        np.testing.assert_array_equal(other["parameters"], found["parameters"])
        assert np.all(other["value"] != found["value"])


@pytest.mark.parametrize("names", [("state",), ("observation",), ("observation", "agent")])
def test_entries_for_the_value_only_must_be_some_of_the_observations(names):
    with pytest.raises(ValueError, match="`value_only` must be some of the entries of a Dict observation"):
        default_network(
            Dict(observation=VECTOR, agent=Discrete(3)) if names[1:] else VECTOR, TWO_ACTIONS, value_only=names
        )


def test_orthogonal_initialization_has_sb3s_gains():
    network = default_network(VECTOR, TORQUES)
    kernel = network.get_layer("policy_hidden_2").get_weights()[0]
    np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(64), atol=1e-5)
    mean, value = (network.get_layer(name).get_weights()[0] for name in ("mean", "value"))
    np.testing.assert_allclose(mean.T @ mean, 1e-4 * np.eye(3), atol=1e-9)
    np.testing.assert_allclose(value.T @ value, [[1.0]], atol=1e-6)
    for weight in network.weights:
        if weight.path.endswith("bias"):
            assert not np.any(weight.numpy())


def test_without_orthogonal_initialization_kernels_are_uniform_by_fan_in():
    network = default_network(VECTOR, TORQUES, orthogonal_init=False, hidden_sizes=(400,))
    kernel = network.get_layer("policy_hidden_1").get_weights()[0]
    assert np.abs(kernel).max() <= 0.5
    assert np.std(kernel) == pytest.approx(0.5 / np.sqrt(3), rel=0.1)


def test_the_seed_decides_the_weights():
    first, again, other = (default_network(VECTOR, TORQUES, seed=seed).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_log_std_is_appended_and_trained():
    network = default_network(VECTOR, TORQUES, initial_log_std=-2.0)
    found = outputs(network, np.ones((2, 4), np.float32))["parameters"]
    np.testing.assert_array_equal(found[:, 3:], np.full((2, 3), -2.0))
    assert "log_std" in [weight.path.split("/")[-1] for weight in network.trainable_weights]


def test_a_standard_deviation_without_a_box_warns():
    with pytest.warns(
        UserWarning, match="`initial_log_std` has no effect on an action space without a Box. Received: "
    ):
        default_network(VECTOR, Discrete(2), initial_log_std=-2.0)


def test_the_largest_bounds_are_a_finite_scale():
    """Their difference would be infinite, and its product with 0 NaN."""
    most = np.finfo(np.float32).max
    network = default_network(VECTOR, Box(-most, most, (2,), np.float32), action_noise=0.1)
    assert np.isfinite(outputs(network, np.zeros((1, *VECTOR.shape), np.float32))["parameters"]).all()


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (2, 3)), Box(0, 9, (3,), np.int16), Box(-1, 1, ()), Box(-1, 1, (2,), np.float64)]
)
def test_vectors_of_any_rank_and_dtype(space):
    network = default_network(space, TWO_ACTIONS, normalize_observation=True)
    check_network(network, Spaces(space, TWO_ACTIONS))
    check_network(default_network(space, TWO_ACTIONS), Spaces(space, TWO_ACTIONS))


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((44, 44), 1), ((44, 44, 4), 4), ((4, 44, 44), 4), ((4, 44, 44, 3), 12), ((4, 3, 44, 44), 12)],
)
def test_images_reach_the_first_convolution_channels_last(shape, channels):
    space = Box(0, 255, shape, np.uint8)
    network = default_network(space, TWO_ACTIONS)
    check_network(network, Spaces(space, TWO_ACTIONS))
    assert network.get_layer("convolution_1").kernel.shape == (8, 8, channels, 32)
    assert network.get_layer("features").kernel.shape == (2 * 2 * 64, 512)


def test_a_stack_is_merged_frame_by_frame_into_the_channels():
    space = Box(0, 255, (2, 3, 40, 50), np.uint8)
    network = default_network(space, TWO_ACTIONS)
    merged = keras.Model(network.input, network.get_layer("merge_stack").output)
    image = np.random.default_rng(0).integers(0, 256, (1, 2, 3, 40, 50), dtype=np.uint8)
    found = ops.convert_to_numpy(merged(image))
    expected = np.moveaxis(image[0], (2, 3), (0, 1)).reshape(40, 50, 6)
    np.testing.assert_allclose(found[0], expected / 255, rtol=1e-6)


BOARD = np.full((4, 4, 2), 17, np.uint8)
SMALL_BOARD = np.full((3, 3, 2), 17, np.uint8)


@pytest.mark.parametrize(
    ("bounds", "value", "expected"),
    [
        (np.full((40, 40, 4), 255, np.uint8), 255, 1),
        (np.full((40, 40, 3), 255, np.uint8), 1, 1 / 255),
        *((bounds, bounds, 1) for board in (BOARD, SMALL_BOARD) for bounds in (board, np.minimum(board, [17, 1]))),
        # MiniGrid's codes from 0 to 10 lie in a space up to 255.
        (np.full((7, 7, 3), 255, np.uint8), 1, 255**-0.5),
        (np.full((3, 3), 255, np.uint8), 1, 255**-0.5),
    ],
)
def test_numbers_are_scaled_by_the_bounds_of_the_space_but_small_codes_not_to_nothing(bounds, value, expected):
    network = default_network(Box(0 * bounds, bounds.astype(np.uint8), dtype=np.uint8), TWO_ACTIONS)
    kinds = keras.layers.Conv2D, keras.layers.Reshape
    first = next(layer for layer in network.layers if isinstance(layer, kinds))
    scaled = keras.Model(network.input, first.input)
    found = scaled(np.full((1, *bounds.shape), value, np.uint8))
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["nature", "impala", "impoola", "small"])
def test_image_networks_are_the_same_whatever_keras_s_data_format_is(name):
    space = Box(0, 255, (36, 40, 3), np.uint8)
    usual = default_network(space, TWO_ACTIONS, image_network=name)
    keras.config.set_image_data_format("channels_first")
    try:
        network = default_network(space, TWO_ACTIONS, image_network=name)
    finally:
        keras.config.set_image_data_format("channels_last")
    image = np.random.default_rng(0).integers(0, 256, (2, 36, 40, 3), dtype=np.uint8)
    np.testing.assert_array_equal(outputs(network, image)["parameters"], outputs(usual, image)["parameters"])


def test_pooling_leaves_a_weight_for_each_filter_in_the_dense_layer():
    space = Box(0, 255, (84, 84, 4), np.uint8)
    impala, pooled = (default_network(space, TWO_ACTIONS, image_network=name) for name in ("impala", "impoola"))
    kernels = [network.get_layer("features").kernel.shape for network in (impala, pooled)]
    assert kernels == [(11 * 11 * 32, 256), (32, 256)]
    assert impala.count_params() - pooled.count_params() == (11 * 11 - 1) * 32 * 256
    assert pooled.get_layer("pooled").output.shape == (None, 32)


def test_small_images_are_refused_by_nature_and_taken_by_others():
    space = Box(0, 255, (10, 12, 3), np.uint8)
    with pytest.raises(ValueError, match=r"at least 36 x 36 pixels; .*'auto'.*Received: 10 x 12"):
        default_network(space, TWO_ACTIONS, image_network="nature")
    for name in ("impala", "impoola", "small", "auto"):
        check_network(default_network(space, TWO_ACTIONS, image_network=name), Spaces(space, TWO_ACTIONS))


@pytest.mark.parametrize("shape", [(10, 10, 4), (10, 10, 10), (4, 4, 16), (8, 8, 111)])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_planes_of_zeros_and_ones_take_minatars_network_unscaled(shape, dtype):
    space = Box(0, 1, shape, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if shape == (10, 10, 10) else "error")
        network = default_network(space, TWO_ACTIONS)
    check_network(network, Spaces(space, TWO_ACTIONS))
    assert network.get_layer("convolution_1").kernel.shape == (3, 3, shape[2], 16)
    assert network.get_layer("features").kernel.shape == ((shape[0] - 2) * (shape[1] - 2) * 16, 128)
    scaled = keras.Model(network.input, network.get_layer("scale").output)
    np.testing.assert_array_equal(ops.convert_to_numpy(scaled(np.ones((1, *space.shape), dtype))), 1.0)


@pytest.mark.parametrize(
    "space", [Box(0, 1, (3, 3, 2), np.uint8), Box(0, 9, (3, 50), np.uint8), Box(0, 1, (17, 18, 19), np.bool_)]
)
def test_a_grid_of_few_places_or_unclear_planes_is_a_vector(space):
    network = default_network(space, TWO_ACTIONS)
    check_network(network, Spaces(space, TWO_ACTIONS))
    assert not [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    assert describe_image(space) == f"Observations of shape {space.shape} are treated as a vector."
    check_network(default_network(space, TWO_ACTIONS, normalize_observation=True), Spaces(space, TWO_ACTIONS))


@pytest.mark.parametrize(("shape", "axis"), [((9, 40, 12), -3), ((12, 40, 9), -1), ((10, 10, 10), -1)])
def test_guessed_channels_are_a_warning_that_says_how_to_name_them(shape, axis):
    space = Box(0, 255, shape, np.uint8)
    with pytest.warns(UserWarning, match=rf"are taken to be on axis {axis}; `channel_axis` says") as caught:
        default_network(space, TWO_ACTIONS)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default_network(space, TWO_ACTIONS, channel_axis=axis)


@pytest.mark.parametrize("shape", [(4, 40, 4), (40, 40, 40)])
def test_an_ambiguous_channel_axis_is_an_error(shape):
    with pytest.raises(ValueError, match=r"give `channel_axis`. Received: observation of shape"):
        default_network(Box(0, 255, shape, np.uint8), TWO_ACTIONS, image_network="impala")
    with pytest.raises(ValueError, match=r"give `channel_axis`. Received: observation\['b'\] of shape"):
        describe_image(Dict(b=Box(0, 255, shape, np.uint8)), image_network="impala")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Box(0, 255, (84, 84), np.uint8), "network 'nature', one channel."),
        (Box(0, 255, (84, 84, 3), np.uint8), "channels on axis -1."),
        (Box(0, 255, (30, 30, 3), np.uint8), "network 'small', channels on axis -1."),
        (Box(0, 255, (3, 84, 84), np.uint8), "channels on axis -3."),
        (Box(0, 255, (4, 84, 84, 3), np.uint8), "channels on axis -1, the 4 frames joined"),
        (Box(0, 1, (84, 84)), ""),
        (
            Dict(a=VECTOR, b=Box(0, 255, (84, 84, 3), np.uint8)),
            "`observation['b']` of shape (84, 84, 3) is treated as an image for the network 'nature', channels on axis",
        ),
    ],
)
def test_what_is_taken_for_an_image_is_said(space, words):
    assert words in describe_image(space)
    assert bool(words) == bool(describe_image(space))


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((9, 40, 12), 0, (40, 12, 9)),
        ((9, 40, 12), -1, (9, 40, 12)),
        ((16, 40, 16), -3, (40, 16, 16)),
        ((2, 9, 40, 12), 1, (40, 12, 18)),
        ((2, 9, 40, 12), -3, (40, 12, 18)),
        ((2, 9, 40, 12), 3, (9, 40, 24)),
    ],
)
def test_channel_axis_counts_in_the_whole_shape(shape, axis, expected):
    space = Box(0, 255, shape, np.uint8)
    network = default_network(space, TWO_ACTIONS, image_network="small", channel_axis=axis)
    convolutions = [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    assert convolutions[0].input.shape == (None, *expected)
    assert f"channels on axis {-3 if axis in (0, 1, -3) else -1}" in describe_image(space, axis)


@pytest.mark.parametrize(
    ("shape", "axis", "accepted"),
    [((9, 40, 12), axis, "0, 2, -3, -1") for axis in (1, 3, -2, -4)]
    + [((2, 9, 40, 12), axis, "1, 3, -3, -1") for axis in (0, 2, 4, -2, -4)],
)
def test_a_channel_axis_that_is_none_is_refused(shape, axis, accepted):
    space = Dict(camera=Box(0, 255, shape, np.uint8))
    message = rf"{accepted}. Received: channel_axis={axis} with observation\['camera'\] of shape"
    with pytest.raises(ValueError, match=message):
        default_network(space, TWO_ACTIONS, image_network="impala", channel_axis=axis)
    with pytest.raises(ValueError, match=message):
        describe_image(space, axis)


def test_a_channel_axis_where_no_image_has_channels_is_refused():
    grey, colour = Box(0, 255, (40, 12), np.uint8), Box(0, 255, (9, 40, 12), np.uint8)
    for function in (describe_image, lambda *given: default_network(given[0], TWO_ACTIONS, channel_axis=given[1])):
        with pytest.raises(ValueError, match=r"single channel. Received: channel_axis=-1 with observation of shape"):
            function(grey, -1)
    assert "channels on axis -3" in describe_image(Dict(a=grey, b=colour), -3)


@pytest.mark.parametrize("space", [TWO_ACTIONS, MultiDiscrete([2, 3])])
def test_noise_of_no_continuous_action_cannot_be_held(space):
    with pytest.raises(ValueError, match=r"`noise_hold` holds the noise.*Received: noise_hold=2 with "):
        default_network(VECTOR, space, noise_hold=2)
    default_network(VECTOR, HYBRID, noise_hold=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_network": "resnet"}, r"'impala', 'impoola', 'small'. Received: image_network='resnet'"),
        ({"normalize_observation": True}, "`normalize_observation` is for vectors.*images are scaled"),
        ({"distribution": "beta"}, "Received: distribution='beta'"),
        ({"activation": "tanhh"}, "`activation` must be a Keras name.*Received: activation='tanhh'"),
        ({"memory": "rnn"}, "`memory` must be .*'lstm'.*Received: memory='rnn'"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        default_network(Box(0, 255, (40, 40, 4), np.uint8), TWO_ACTIONS, **options)
    assert "\n" not in str(caught.value)


def test_normalization_follows_the_valid_rows_of_several_batches():
    layer = ObservationNormalization()
    layer.build((None, 3))
    rng = np.random.default_rng(0)
    seen = []
    for size in (5, 50, 1):
        rows = rng.normal(3, 5, (size, 3)).astype(np.float32)
        valid = rng.random(size) < 0.7
        layer.update(rows, valid)
        seen.append(rows[valid])
    seen = np.concatenate(seen)
    np.testing.assert_allclose(layer.mean.numpy(), seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(layer.variance.numpy(), seen.var(0), rtol=1e-4)
    assert float(layer.count) == len(seen)
    found = ops.convert_to_numpy(layer(seen))
    np.testing.assert_allclose(found, (seen - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(np.full((1, 3), 1e9))), [[10.0] * 3])


def sample(space, rows=3, seed=0):
    """Returns a batch of observations as in a trajectory."""
    rng = np.random.default_rng(seed)
    structure = spaces.observation_structure(space)
    return structure.unflatten([random_leaf(rng, leaf, (rows,), np.ones(rows, bool)) for leaf in structure.leaves])


def test_every_kind_of_leaf_reaches_the_heads():
    network = default_network(SENSES, HYBRID, normalize_observation=True)
    check_network(network, Spaces(SENSES, HYBRID))
    # The shared trunk takes 512 features of the image, 4 + 5 of the pair, 2 + 3 + 4 + 5 one-hot ones, and 4 bits.
    assert network.get_layer("shared_hidden_1").kernel.shape == (4 * 1 + 5 + 14 + 4 + 512, 64)
    found = outputs(network, sample(SENSES))
    assert found["parameters"].shape == (3, spaces.parameter_size(HYBRID))
    assert found["value"].shape == (3,)


def test_each_leaf_changes_the_outputs():
    space = Dict(a=VECTOR, b=MultiDiscrete([2, 3]), c=MultiBinary(2), d=Discrete(4), e=Box(0, 255, (36, 36), np.uint8))
    network = default_network(space, TWO_ACTIONS)
    first, second = sample(space, rows=8), sample(space, rows=8, seed=1)
    value = outputs(network, first)["value"]
    for name in "abcde":
        assert not np.allclose(outputs(network, {**first, name: second[name]})["value"], value)


@settings(max_examples=20, deadline=None)
@given(nvec=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_one_hot_is_read_back(nvec, seed):
    values = np.random.default_rng(seed).integers(0, nvec, (3, len(nvec)))
    found = ops.convert_to_numpy(OneHot(nvec)(values))
    parts = np.split(found, np.cumsum(nvec)[:-1], axis=1)
    np.testing.assert_array_equal(np.stack([part.argmax(1) for part in parts], axis=1), values)
    np.testing.assert_array_equal(found.sum(1), len(nvec))
    assert OneHot.from_config(OneHot(nvec).get_config()).sizes == tuple(nvec)


def test_parameters_stand_in_leaf_order():
    """A Box leaf's log-std follows its own means; every other column starts near 0."""
    network = default_network(VECTOR, HYBRID, initial_log_std=-2.0)
    found = outputs(network, np.ones((1, 4), np.float32))["parameters"][0]
    start = 0
    for leaf in spaces.action_structure(HYBRID).leaves:
        size = spaces.leaf_parameter_size(leaf.space)
        if isinstance(leaf.space, Box):
            np.testing.assert_array_equal(found[start + size // 2 : start + size], -2.0)
            assert np.abs(found[start : start + size // 2]).max() < 0.2
        else:
            assert np.abs(found[start : start + size]).max() < 0.2
        start += size
    assert start == len(found)


def test_only_vectors_of_numbers_are_normalized():
    network = default_network(SENSES, TWO_ACTIONS, normalize_observation=True)
    (layer,) = normalization_layers(network)
    assert layer.leaf == "pair.0"
    assert layer.mean.shape == (4,)


def test_an_input_of_integers_takes_no_normalized_values():
    """Keras would round them without a word."""
    memory = Box(0, 255, (8,), np.uint8)
    for dtype in ("uint8", "int32", "float32"):
        inputs = keras.Input((8,), dtype=dtype)
        hidden = keras.ops.cast(inputs, "float32")
        network = keras.Model(inputs, (keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)))
        if dtype == "float32":
            with_normalization(network, memory)
            continue
        with pytest.raises(ValueError, match=rf"declare it with dtype='float32'. Received: the input .* of {dtype}"):
            with_normalization(network, memory)


@pytest.mark.parametrize(
    "space", [Discrete(3), MultiBinary(2), Dict(a=MultiDiscrete([2, 2]), action_mask=MultiBinary(2))]
)
def test_nothing_to_normalize_is_an_error(space):
    with pytest.raises(ValueError, match=r"discrete values are one-hot. Received: normalize_observation=True with"):
        default_network(space, TWO_ACTIONS, normalize_observation=True)


def test_the_mask_leaf_is_no_input():
    space = Dict(position=VECTOR, action_mask=MultiBinary(2))
    network = default_network(space, TWO_ACTIONS)
    assert [tensor.name for tensor in network.inputs] == ["position"]
    assert network.get_layer("policy_hidden_1").kernel.shape == (4, 64)
    check_network(network, Spaces(space, TWO_ACTIONS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "space",
    [
        Dict(value=VECTOR, parameters=Discrete(3), observations=MultiBinary(2), policy_hidden_1=VECTOR),
        Dict({"a b": VECTOR, "a_b": MultiDiscrete([2, 3]), "é.1": Box(-1, 1, (2, 2))}),
        Tuple([VECTOR, Tuple([Discrete(2)])]),
        Dict(only=Box(0, 255, (36, 36), np.uint8)),
        Dict(left=Box(0, 255, (36, 36), np.uint8), right=Box(0, 255, (36, 36), np.uint8)),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_keys_of_any_name_are_inputs_and_survive_a_file(space, tmp_path):
    network = default_network(space, Dict(value=TWO_ACTIONS, left=TORQUES))
    observation = sample(space)
    compiled = tf.function(lambda x: call_network(network, x)["value"], autograph=False)
    expected = outputs(network, observation)
    np.testing.assert_allclose(ops.convert_to_numpy(compiled(observation)), expected["value"], rtol=1e-5, atol=1e-6)
    network.save(tmp_path / "network.keras")
    found = outputs(keras.models.load_model(tmp_path / "network.keras"), observation)
    np.testing.assert_array_equal(found["parameters"], expected["parameters"])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_in_16_bits_observations_are_normalized_before_they_are_rounded(precision):
    with building_in(precision):
        network = default_network(Box(-2000, 2000, (1,), np.float32), TWO_ACTIONS, normalize_observation=True)
    layer = network.get_layer("observation_normalization")
    layer.mean.assign([1000.0])
    layer.scale.assign([2.0])
    np.testing.assert_allclose(layer(np.array([[1000.3], [999.7]], np.float32)), [[0.6], [-0.6]], atol=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_in_16_bits_observations_are_normalized_by_batches_before_they_are_rounded(precision):
    space = Dict(grid=Box(-2000, 2000, (2, 1), np.float32), vector=Box(-2000, 2000, (1,), np.float32))
    with building_in(precision):
        models = [default_network(space, TORQUES, batch_norm=True), default_critic(space, TORQUES, batch_norm=True)]
    for model, name in zip(models, ("policy", "critic"), strict=True):
        layer = model.get_layer(f"{name}_input_batch_norm")
        layer.moving_mean.assign([1000.0] * layer.moving_mean.shape[0])
        observation = {"grid": np.full((1, 2, 1), 1000.3, np.float32), "vector": np.full((1, 1), 999.7, np.float32)}
        action = np.zeros((1, int(np.prod(TORQUES.shape))), np.float32)
        given = observation if name == "policy" else (observation, action)
        found = np.asarray(keras.Model(model.input, layer.output)(given))[0, :3]
        np.testing.assert_allclose(found.astype(np.float32), [0.3, 0.3, -0.3], atol=2e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_in_16_bits_the_outputs_are_in_32(precision):
    """A value of 300.7 would be 300 in bfloat16; one of 70,000 infinite in float16."""
    action = Dict(choice=TWO_ACTIONS, torque=TORQUES)
    with building_in(precision):
        network = default_network(VECTOR, action)
    network.get_layer("value").bias.assign([70_000.7])
    found = outputs(network, sample(VECTOR))
    assert network.get_layer("policy_hidden_1").compute_dtype == precision
    assert {str(output.dtype) for output in found.values()} == {"float32"}
    assert np.abs(np.asarray(found["value"]) - 70_000.7).max() < 10
    bias = network.get_layer("torque.mean").bias
    bias.assign(np.full(bias.shape, 300.7))
    assert np.abs(np.asarray(outputs(network, sample(VECTOR))["parameters"])[:, 2] - 300.7).max() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["lstm", "gru", "attention"])
def test_memory_stands_behind_a_shared_trunk(memory):
    vector, image = Box(-1, 1, (3,), np.float32), Box(0, 255, (40, 40, 4), np.uint8)
    for space, hidden in ((vector, 2), (image, 0)):
        network = default_network(space, Discrete(2), memory=memory, memory_size=8, seed=3)
        again = default_network(space, Discrete(2), memory=memory, memory_size=8, seed=3)
        assert {shape[-1] for shape in Memories(network).shapes} <= {8, 16, 1}
        assert sum("hidden" in layer.name for layer in network.layers) == hidden
        for one, other in zip(network.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_an_untrained_memory_keeps_most_of_its_state(memory):
    network = default_network(Box(-1, 1, (3,), np.float32), Discrete(2), memory=memory, memory_size=8)
    (bias,) = [weight for weight in network.weights if "bias" in weight.path and 24 <= weight.shape[-1] <= 32]
    gate = np.asarray(bias.value).reshape(-1, bias.shape[-1])[0]
    kept = slice(8, 16) if memory == "lstm" else slice(0, 8)
    assert (gate[kept] == 3).all()
    assert gate.sum() == 24


@pytest.mark.parametrize(
    ("shape", "images"),
    [((40, 40, 3), 1), ((1, 36, 36), 1), ((6, 7, 3), 0), ((40, 40), 1), ((40, 9), 0), ((2, 40, 40, 1), 1)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_images_of_other_numbers_are_named(shape, images, dtype, recwarn):
    default_network(Box(0, 1, shape, dtype), TWO_ACTIONS, hidden_sizes=(2,))
    assert sum("looks like an image" in str(one.message) for one in recwarn) == images


@pytest.mark.parametrize(("shape", "images"), [((60, 40), 0), ((2, 40, 40, 3), 0), ((40, 40, 3), 1)])
def test_windows_of_measurements_are_no_images(shape, images, recwarn):
    default_network(Box(-np.inf, np.inf, shape, np.float32), TWO_ACTIONS, hidden_sizes=(2,))
    assert sum("looks like an image" in str(one.message) for one in recwarn) == images


@pytest.mark.parametrize(("shape", "stacked"), [((4, 40, 40), True), ((2, 40, 40, 3), True), ((40, 40, 3), False)])
def test_stacked_frames_and_memory_are_a_warning(shape, stacked):
    space = Box(0, 255, shape, np.uint8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        default_network(space, TWO_ACTIONS, memory="gru", memory_size=8)
    found = [str(one.message) for one in caught if "stack frames" in str(one.message)]
    assert len(found) == stacked
    assert all(f"Received: memory='gru' with observation of shape {shape}" in message for message in found)
