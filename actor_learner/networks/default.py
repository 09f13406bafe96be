"""The default network: joined features of an observation's leaves, trunks, and heads for an action's leaves."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Space
from keras import layers, ops

from actor_learner.networks.attention import AttentionMemory
from actor_learner.networks.contract import arrange, check_noise_hold, normalization_layers, takes_mask
from actor_learner.networks.distributions import GREEDY, distribution_for
from actor_learner.networks.images import (
    IMAGE_NETWORKS,
    check_channel_axis,
    image_features,
    is_grid,
    is_image,
    resembles_image,
    scaled,
    stacks_frames,
)
from actor_learner.networks.layers import (
    ActionDistribution,
    BatchRenormalization,
    LogStd,
    ObservationNormalization,
    OneHot,
    Orthogonal,
    VarianceScaling,
    apply_layer,
)
from actor_learner.networks.memory import GateBias, Recurrent
from actor_learner.spaces import structure as spaces
from actor_learner.spaces.kinds import Box, Discrete, MultiDiscrete, middle
from actor_learner.system.fields import MEMORIES, check_choice, check_count, check_heads, refusal
from actor_learner.system.types import Tensor

_LOG_STDS = (-20.0, 2.0)
"""The bounds of log standard deviations that depend on the observation: SB3's."""

_FORGET_BIAS = 3.0
"""The first bias of a forget gate: an untrained cell keeps 95% of its state from one step to the next."""


def default_network(
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    orthogonal_init: bool = True,
    initial_log_std: float = 0.0,
    image_network: str = "auto",
    normalize_observation: bool = False,
    distribution: str = "gaussian",
    noise_hold: int = 1,
    channel_axis: int | None = None,
    memory: str | None = None,
    memory_size: int = 128,
    dueling: bool = False,
    quantiles: int | None = None,
    state_dependent_std: bool = False,
    action_noise: float | None = None,
    bounded_mean: bool = False,
    epsilon_ladder: float = 0.0,
    layer_norm: bool = False,
    batch_norm: bool = False,
    value_only: Sequence[str] = (),
    seed: int = 0,
) -> keras.Model:
    """Return a network for these spaces: separate MLP trunks for policy and value, or a shared trunk for images.

    `value_only` names entries of a Dict observation that only the value sees (arXiv:1710.06542), nested ones by path
    ("a/b"): policy and value then have a trunk each, also for images, and the value has no memory.

    With `memory` ("lstm", "gru" or "attention") the trunk is shared, too, and a memory of `memory_size` units follows.

    With `layer_norm`, each hidden layer and convolution is normalized before its activation. With `batch_norm`, the
    input of an MLP, and its hidden layers after their activation, are normalized by batches, as in CrossQ.

    Initialization is orthogonal as in SB3 (gain sqrt 2; policy head 0.01, value head 1). With `orthogonal_init=False`
    it is uniform +-1 / sqrt(fan in) as in torch. Biases are 0.

    An observation is an image if it is uint8 or bool of rank 2 (one channel), 3, or 4 (a stack, merged into the
    channels). Below 4 x 4 pixels it is a vector, unless `image_network` names a network. Discrete observations become
    one-hot vectors. The features of several leaves are concatenated; if one is an image, they pass a shared MLP of
    `hidden_sizes`. The features of a single image go straight to the heads.

    `image_network`: "nature" (from 36 x 36 pixels), "impala", "impoola" (impala with an average over the image before
    its dense layer), "small", or "auto": nature, or small for smaller images.

    With `distribution="greedy"` the parameters are values of actions, and the state's value is the highest. `dueling`
    adds a trunk for the state's value to them (arXiv:1511.06581, eq. 9). With `quantiles`, a further output `quantiles`
    `[N, n, quantiles]` has those of each action's return, and values are their means (arXiv:1710.10044).
    `epsilon_ladder` is as in `ActionDistribution`.

    With `state_dependent_std`, the standard deviation of Box actions depends on the observation, as in SAC, with
    logarithms between -20 and 2. `action_noise` keeps means of Box actions within their bounds, as in TD3, with a fixed
    standard deviation, in halves of the distance between the bounds. Both leave out the state's value. `bounded_mean`
    keeps means within the bounds, too, with a learned standard deviation, as in IQL.

    Raises ValueError for unsupported spaces or options.
    """
    action = spaces.action_structure(action_space)
    distribution_for(action, distribution)  # raises ValueError if it doesn't fit
    check_noise_hold(noise_hold, action)
    if initial_log_std and not any(isinstance(leaf.space, Box) for leaf in action.leaves):
        received = f"Received: initial_log_std={initial_log_std:g} with {action.space}"
        warnings.warn(f"`initial_log_std` has no effect on an action space without a Box. {received}", stacklevel=2)
    check_choice("memory", memory, (None, *MEMORIES))
    check_count("memory_size", memory_size)
    check_count("quantiles", quantiles, optional=True)
    if memory == "attention":
        check_heads("memory_size", memory_size)
    sizes = hidden_sizes, activation, orthogonal_init, image_network, channel_axis, layer_norm, batch_norm, seed
    build = _Builder(observation_space, *sizes, value_only)
    if memory is not None:
        build.warn_of_stacks(memory)
    build.warn_of_float_images()
    features = build.features(normalize_observation)
    policy_features, value_features = build.trunks(features, shared=memory is not None)
    if memory is not None:
        policy_features = build.memory(policy_features, memory, memory_size)
        value_features = value_features if value_only else policy_features
    value: Tensor | None = None
    further: dict[str, Tensor] = {}
    if distribution == GREEDY:
        parameters = build.action_values(policy_features, value_features if dueling else None, action, quantiles)
        if quantiles is not None:
            further = {"quantiles": parameters}
            parameters = ops.mean(parameters, axis=-1)
        value = ops.max(parameters, axis=-1, keepdims=True)
    else:
        parameters = build.action_parameters(
            policy_features,
            action,
            initial_log_std,
            state_dependent_std=state_dependent_std,
            bounded_mean=bounded_mean,
            action_noise=action_noise,
        )
        if not state_dependent_std and action_noise is None:
            value = build.head(value_features, 1, 1.0, "value")
    name = build.name("parameters")
    layer = ActionDistribution(distribution, noise_hold, epsilon_ladder=epsilon_ladder, name=name, dtype="float32")
    outputs = {"parameters": layer(parameters)} if value is None else (layer(parameters), value)
    if further:
        outputs = {"parameters": layer(parameters), "value": value, **further}
    return keras.Model(build.structure.unflatten(build.inputs), outputs, name="actor_critic")


def critic_seeds(seed: int, count: int) -> list[int]:
    """Return a seed for each of `count` critics."""
    return [int(word) for word in np.random.SeedSequence([seed, 0xC217]).generate_state(count)]


def default_critic(
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    hidden_sizes: Sequence[int] = (256, 256),
    activation: str = "relu",
    orthogonal_init: bool = False,
    image_network: str = "auto",
    normalize_observation: bool = False,
    channel_axis: int | None = None,
    layer_norm: bool = False,
    batch_norm: bool = False,
    outputs: int = 1,
    seed: int = 0,
) -> keras.Model:
    """Return a model of an action's value, from (observation, action) to `[N, outputs]`, for algorithms with critics.

    The action is `[N, d]`, scaled to -1 and 1. Features of the observation are those of `default_network`; an MLP of
    `hidden_sizes` follows. Several outputs are quantiles of the value, as in TQC. The other options are as for
    `default_network`.

    For a Discrete space the model is from the observation alone, to the values of all n choices `[N, n]`.
    """
    size = sum(math.prod(leaf.shape) for leaf in spaces.action_structure(action_space).leaves)
    sizes = hidden_sizes, activation, orthogonal_init, image_network, channel_axis, layer_norm, batch_norm, seed
    build = _Builder(observation_space, *sizes)
    observation, features = build.structure.unflatten(build.inputs), build.features(normalize_observation)
    if choices := spaces.choices(action_space):
        values = build.head(build.mlp(build.join(features, "observations"), "critic"), outputs * choices, 1.0, "values")
        return keras.Model(observation, values, name="critic")
    action = keras.Input((size,), name="action_input")
    joined = build.join([*features, action], "observation_and_action")
    value = build.head(build.mlp(joined, "critic"), outputs, 1.0, "value")
    return keras.Model((observation, action), value, name="critic")


def normalizes_vectors(network: keras.Model, observation_space: Space[Any]) -> bool:
    """Return whether a network normalizes observations, and some are vectors, which critics can normalize, too."""
    leaves = spaces.observation_structure(observation_space).leaves
    vectors = [leaf for leaf in leaves if isinstance(leaf.space, Box) and leaf.path != (spaces.MASK_KEY,)]
    return bool(normalization_layers(network)) and not all(is_grid(leaf.space) for leaf in vectors)


def with_normalization(network: keras.Model, observation_space: Space[Any]) -> keras.Model:
    """Return `network` behind `ObservationNormalization` layers, one for each vector of numbers.

    Raises ValueError if it has such a layer already, or if there is no vector of numbers.
    """
    if normalization_layers(network):
        reason = "`normalize_observation` would normalize twice: the network has an ObservationNormalization layer"
        raise ValueError(f"{reason}. Received: network={network.name!r}")
    space = observation_space if takes_mask(network) else spaces.without_mask(observation_space)
    structure = spaces.observation_structure(space)
    normalizable = _find_vectors(structure, [is_grid(leaf.space) for leaf in structure.leaves])
    inputs = _inputs(structure)
    normalized = [
        _normalization(leaf, _prefix(structure, leaf))(tensor) if normalize else tensor
        for leaf, tensor, normalize in zip(structure.leaves, inputs, normalizable, strict=True)
    ]
    arranged = arrange(network, structure.unflatten(normalized))
    _check_takes_floats(network, arranged)
    outputs = network(arranged)
    return keras.Model(structure.unflatten(inputs), outputs, name=f"normalized_{network.name}")


def _check_takes_floats(network: keras.Model, arranged: Any) -> None:
    """Raise ValueError for an input of integers in a place of floats, to which Keras would round them."""
    for tensor, wanted in zip(keras.tree.flatten(arranged), getattr(network, "inputs", None) or (), strict=False):
        if keras.backend.is_float_dtype(tensor.dtype) and not keras.backend.is_float_dtype(wanted.dtype):
            raise ValueError(
                "`normalize_observation` gives an input floats: declare it with dtype='float32'. "
                f"Received: the input {wanted.name!r} of {wanted.dtype}, of network {network.name!r}"
            )


def _inputs(structure: spaces.Structure) -> list[Tensor]:
    """Return a symbolic input for each leaf, with the names of `named_leaves`."""
    names = [_leaf_name(leaf) or structure.root for leaf in structure.leaves]
    pairs = zip(structure.leaves, names, strict=True)
    return [keras.Input(leaf.shape, dtype=str(leaf.dtype), name=name) for leaf, name in pairs]


def _leaf_name(leaf: spaces.Leaf) -> str:
    return ".".join(map(str, leaf.path))


def _prefix(structure: spaces.Structure, leaf: spaces.Leaf) -> str:
    """Return the prefix of the names of a leaf's layers: "" for the only leaf, else letters that TensorFlow takes."""
    if structure.plain:
        return ""
    name = _leaf_name(leaf)
    plain_name = re.sub(r"[^A-Za-z0-9.]", "_", name)
    return f"{plain_name}." if plain_name == name else f"{plain_name}.{structure.leaves.index(leaf)}."


def _find_vectors(structure: spaces.Structure, images: Sequence[bool]) -> list[bool]:
    """Return for each leaf whether it is a vector of numbers. Raises ValueError if none is."""
    found = [
        isinstance(leaf.space, Box) and not image and leaf.path != (spaces.MASK_KEY,)
        for leaf, image in zip(structure.leaves, images, strict=True)
    ]
    if not any(found):
        raise ValueError(
            "`normalize_observation` is for vectors of numbers; images are scaled by their bounds in the network, "
            f"discrete values are one-hot. Received: normalize_observation=True with {structure.space}"
        )
    return found


def _normalization(leaf: spaces.Leaf, prefix: str) -> ObservationNormalization:
    return ObservationNormalization(_leaf_name(leaf) or None, name=f"{prefix}observation_normalization")


class _Builder:
    """Builds layers on observations, each kernel with a seed derived from one, and with names that no input has."""

    def __init__(
        self,
        observation_space: Space[Any],
        hidden_sizes: Sequence[int],
        activation: str,
        orthogonal: bool,
        image_network: str,
        channel_axis: int | None,
        layer_norm: bool,
        batch_norm: bool,
        seed: int,
        value_only: Sequence[str] = (),
    ) -> None:
        try:
            keras.activations.get(activation)
        except ValueError:
            raise refusal("activation", "a Keras name, such as 'tanh', 'relu' or 'silu'", activation) from None
        self.structure = structure = spaces.observation_structure(spaces.without_mask(observation_space))
        check_choice("image_network", image_network, IMAGE_NETWORKS)
        check_channel_axis(structure, channel_axis)
        self.inputs = _inputs(structure)
        self._images = [is_image(leaf.space, image_network, channel_axis) for leaf in structure.leaves]
        self._image_options = image_network, channel_axis, layer_norm
        self._layer_norm, self._batch_norm = layer_norm, batch_norm
        self._hidden_sizes, self._activation = hidden_sizes, activation
        self._orthogonal = orthogonal
        self._seeds = iter(np.random.SeedSequence(seed).generate_state(4096))
        self._input_names = frozenset(tensor.name for tensor in self.inputs)
        own = spaces.without(structure.space, value_only, "value_only")
        self._own_paths = {leaf.path for leaf in spaces.observation_structure(own).leaves}

    def initializer(self, gain: float) -> keras.initializers.Initializer:
        seed = int(next(self._seeds))
        if self._orthogonal:
            return Orthogonal(gain, seed=seed)
        return VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed)

    def name(self, name: str) -> str:
        """Return `name`, or another if an observation has a key of that name."""
        return f"{name}_layer" if name in self._input_names else name

    def dense(self, x: Tensor, size: int, gain: float, name: str, **options: Any) -> Tensor:
        return layers.Dense(size, kernel_initializer=self.initializer(gain), name=self.name(name), **options)(x)

    def head(self, x: Tensor, size: int, gain: float, name: str) -> Tensor:
        """Return an output of the network, in float32 whatever the precision of the other layers is."""
        return self.dense(x, size, gain, name, dtype="float32")

    def mlp(self, x: Tensor, name: str) -> Tensor:
        x = self.batches(x, f"{name}_input")
        for index, size in enumerate(self._hidden_sizes):
            options = {"name": self.name(f"{name}_hidden_{index + 1}"), "activation": self._activation}
            dense = layers.Dense(size, kernel_initializer=self.initializer(math.sqrt(2)), **options)
            x = self.batches(apply_layer(dense, x, layer_norm=self._layer_norm), dense.name)
        return x

    def batches(self, x: Tensor, name: str) -> Tensor:
        """Return `x`, normalized by batches if asked for."""
        return BatchRenormalization(name=self.name(f"{name}_batch_norm"))(x) if self._batch_norm else x

    def join(self, columns: Sequence[Tensor], name: str) -> Tensor:
        """Return columns side by side, in float32: a lower precision would round them before they are normalized."""
        return columns[0] if len(columns) == 1 else layers.Concatenate(name=self.name(name), dtype="float32")(columns)

    def warn_of_stacks(self, memory: str) -> None:
        """Warn if images stack frames in a network that remembers frames."""
        for leaf, image in zip(self.structure.leaves, self._images, strict=True):
            if image and stacks_frames(leaf, self._image_options[1]):
                warnings.warn(
                    "Observations stack frames, and `memory` remembers frames, too: one is enough and takes less time. "
                    f"Received: memory={memory!r} with {leaf.label} of shape {leaf.shape}",
                    UserWarning,
                    stacklevel=4,
                )

    def warn_of_float_images(self) -> None:
        """Warn if an observation has an image's shape but not its dtype, by which images are told."""
        for leaf in self.structure.leaves:
            if resembles_image(leaf.space):
                warnings.warn(
                    f"{leaf.label} of shape {leaf.shape} looks like an image, but only uint8 and bool are taken for "
                    f"images: dense layers read it. Give uint8, or a `network` of your own. Received: "
                    f"{leaf.space.dtype}",
                    UserWarning,
                    stacklevel=4,
                )

    def features(self, normalize: bool) -> list[Tensor]:
        """Return features `[N, size]` of each leaf."""
        normalized = _find_vectors(self.structure, self._images) if normalize else [False] * len(self._images)
        features = []
        for leaf, tensor, image, normal in zip(
            self.structure.leaves, self.inputs, self._images, normalized, strict=True
        ):
            prefix = _prefix(self.structure, leaf)
            if image:
                features.append(image_features(tensor, leaf, *self._image_options, self.initializer, prefix))
            else:
                features.append(_vector_features(tensor, leaf, normal, prefix))
        return features

    def trunks(self, features: Sequence[Tensor], *, shared: bool) -> tuple[Tensor, Tensor]:
        """Return the features for the heads of policy and value: a trunk each, or a shared one, as for images.

        The features of a single image are a trunk.
        """
        joined = self.join(features, "observations")
        if len(self._own_paths) < len(features):
            pairs = zip(self.structure.leaves, features, strict=True)
            own = [feature for leaf, feature in pairs if leaf.path in self._own_paths]
            return self.mlp(self.join(own, "own_observations"), "policy"), self.mlp(joined, "value")
        if not (shared or any(self._images)):
            return self.mlp(joined, "policy"), self.mlp(joined, "value")
        trunk = joined if self._images == [True] else self.mlp(joined, "shared")
        return trunk, trunk

    def memory(self, x: Tensor, kind: str, size: int) -> Tensor:
        name, seed = self.name("memory"), int(next(self._seeds))
        if kind == "attention":
            return AttentionMemory(size=size, seed=seed, name=name)(x)
        weights = {
            "kernel_initializer": self.initializer(1.0),
            "recurrent_initializer": Orthogonal(seed=seed),
        }
        if kind == "gru":
            cell = layers.GRUCell(size, bias_initializer=GateBias(_FORGET_BIAS, gate=0, gates=3), **weights)
        else:
            bias = GateBias(_FORGET_BIAS, gate=1, gates=4)
            cell = layers.LSTMCell(size, unit_forget_bias=False, bias_initializer=bias, **weights)
        return Recurrent(cell, name=name)(x)

    def action_values(
        self, x: Tensor, of_state: Tensor | None, action: spaces.Structure, quantiles: int | None
    ) -> Tensor:
        """Return values `[N, n]` of a Discrete space's choices, or their quantiles `[N, n, quantiles]`.

        of_state: features of the state's own value, if it is apart.
        """
        columns = spaces.leaf_parameter_size(action.leaves[0].space)
        if of_state is None:
            return self.values(x, columns, quantiles, "action_values")
        advantage = self.values(x, columns, quantiles, "advantages")
        value = self.values(of_state, 1, quantiles, "state_value")
        return value + advantage - ops.mean(advantage, axis=1, keepdims=True)

    def values(self, x: Tensor, columns: int, quantiles: int | None, name: str) -> Tensor:
        if quantiles is None:
            return self.head(x, columns, 1.0, name)
        flat = self.head(x, columns * quantiles, 1.0, name)
        return layers.Reshape((columns, quantiles), name=self.name(f"{name}_quantiles"), dtype="float32")(flat)

    def action_parameters(
        self,
        x: Tensor,
        action: spaces.Structure,
        initial_log_std: float,
        *,
        state_dependent_std: bool,
        bounded_mean: bool,
        action_noise: float | None,
    ) -> Tensor:
        """Return logits of discrete leaves, and means and log standard deviations of Boxes."""
        heads: list[Tensor] = []
        for leaf in action.leaves:
            prefix = _prefix(action, leaf)
            if not isinstance(leaf.space, Box):
                heads.append(self.head(x, spaces.leaf_parameter_size(leaf.space), 0.01, f"{prefix}logits"))
                continue
            mean = self.head(x, math.prod(leaf.shape), 0.01, f"{prefix}mean")
            name = f"{prefix}log_std"
            if action_noise is not None or bounded_mean:
                noise = math.exp(initial_log_std) if action_noise is None else action_noise
                mean, log_std = _within_bounds(mean, leaf, noise)
                heads.append(LogStd(log_std, name=self.name(name), dtype="float32", trainable=bounded_mean)(mean))
            elif state_dependent_std:
                log_std = self.head(x, math.prod(leaf.shape), 0.01, name)
                heads += [mean, ops.clip(log_std + initial_log_std, *_LOG_STDS)]
            else:
                heads.append(LogStd(initial_log_std, name=self.name(name), dtype="float32")(mean))
        return self.join(heads, "heads")


def _within_bounds(mean: Tensor, leaf: spaces.Leaf, noise: float) -> tuple[Tensor, list[float]]:
    """Return a Box's means within its bounds, and fixed log standard deviations, from halves of their distance."""
    centre, half = (part.reshape(-1) for part in middle(leaf.space, np.float32))
    if not np.isfinite(half).all():
        raise ValueError(f"Means within bounds need finite ones. Received: {leaf.label} of {leaf.space}")
    log_std = np.log(np.maximum(noise * half, math.exp(_LOG_STDS[0]))).tolist()
    return ops.tanh(mean) * half + centre, log_std


def _vector_features(observation: Tensor, leaf: spaces.Leaf, normalize: bool, prefix: str) -> Tensor:
    """Compute features of a leaf that isn't an image: `[N, *shape]` -> float32 `[N, size]`."""
    space = leaf.space
    if isinstance(space, Discrete):
        return ops.one_hot(observation, int(space.n), dtype="float32")
    if isinstance(space, MultiDiscrete):
        return OneHot(space.nvec.reshape(-1).tolist(), name=f"{prefix}one_hot")(observation)
    if normalize:
        observation = _normalization(leaf, prefix)(observation)
    elif is_grid(space):
        observation = scaled(observation, leaf, prefix, pixels=False)
    elif observation.dtype != "float32":
        observation = ops.cast(observation, "float32")
    if len(observation.shape) == 2:
        return observation
    return layers.Reshape((math.prod(leaf.shape),), name=f"{prefix}flatten", dtype="float32")(observation)
