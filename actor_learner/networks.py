"""Default Keras networks, the layers that they are made of, and the contract that any network keeps.

The contract: a Keras model from an observation batch to `(parameters, value)`, or to a dict with at
least these keys. `parameters [N, parameter_size(action_space)]` describe the action distribution,
`value [N]` or `[N, 1]` is the state value. Further outputs of a dict reach the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from keras import layers, ops

from actor_learner import spaces
from actor_learner.distributions import Distribution, distribution_for

Tensor = Any

MAXIMUM_CHANNELS = 16
NORMALIZATION_CLIP = 10.0
NORMALIZATION_EPSILON = 1e-8

_ROWS = 2
"""Of the batch that a network is checked with: not 1, so that a batch axis is told from an axis of one."""


@keras.saving.register_keras_serializable(package="actor_learner")
class ObservationNormalization(layers.Layer):  # type: ignore[misc]
    """Centres and scales observations by running statistics, and clips the result to +-10.

    Non-trainable weights `mean` and `scale` (1 / std) are what the forward pass uses; `variance` and
    `count` stand beside them. The learner merges each batch in with `update` after its gradient steps.
    """

    def build(self, input_shape: Any) -> None:
        """Creates the statistics, one for each element of an observation."""
        shape = tuple(input_shape[1:])
        self.mean = self._statistic("mean", shape, "zeros")
        self.scale = self._statistic("scale", shape, "ones")
        self.variance = self._statistic("variance", shape, "ones")
        self.count = self._statistic("count", (), "zeros")

    def _statistic(self, name: str, shape: tuple[int, ...], initializer: str) -> Any:
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, trainable=False, dtype="float32", autocast=False
        )

    def call(self, observation: Tensor) -> Tensor:
        """`[N, ...]` of any dtype -> float32 `[N, ...]` within +-10."""
        centred = ops.cast(observation, "float32") - self.mean
        return ops.clip(centred * self.scale, -NORMALIZATION_CLIP, NORMALIZATION_CLIP)

    def update(self, observation: Tensor, valid: Tensor) -> None:
        """Merges the rows of `observation [N, ...]` where `valid [N]` into the statistics (Chan et al. 1979)."""
        weight = ops.reshape(ops.cast(valid, "float32"), (-1,) + (1,) * len(self.mean.shape))
        added = ops.sum(weight)
        rows = ops.cast(observation, "float32")
        batch_mean = ops.sum(rows * weight, axis=0) / ops.maximum(added, 1.0)
        batch_sum_of_squares = ops.sum(ops.square(rows - batch_mean) * weight, axis=0)
        mean, variance, count = merge_statistics(
            (self.mean, self.variance, self.count), (batch_mean, batch_sum_of_squares, added)
        )
        self.mean.assign(mean)
        self.variance.assign(variance)
        self.count.assign(count)
        self.scale.assign(1.0 / ops.sqrt(variance + NORMALIZATION_EPSILON))


def merge_statistics(
    running: tuple[Tensor, Tensor, Tensor], batch: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, variance, count) of the union of what was seen and a batch of (mean, sum of squares, count).

    Unchanged where the batch is empty. Population variance; Chan, Golub and LeVeque 1979, eq. 2.1.
    """
    mean, variance, count = running
    batch_mean, batch_sum_of_squares, added = batch
    total = ops.maximum(count + added, 1.0)
    difference = batch_mean - mean
    merged_mean = mean + difference * (added / total)
    sum_of_squares = variance * count + batch_sum_of_squares + ops.square(difference) * (count * added / total)
    empty = added == 0.0
    return (
        ops.where(empty, mean, merged_mean),
        ops.where(empty, variance, sum_of_squares / total),
        count + added,
    )


@keras.saving.register_keras_serializable(package="actor_learner")
class LogStd(layers.Layer):  # type: ignore[misc]
    """Appends a trainable, state-independent log standard deviation to means: `[N, d]` -> `[N, 2 d]`."""

    def __init__(self, initial: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = float(initial)

    def build(self, input_shape: Any) -> None:
        """Creates one log standard deviation for each column of means."""
        self.log_std = self.add_weight(
            name="log_std", shape=(input_shape[-1],), initializer=keras.initializers.Constant(self.initial)
        )

    def call(self, mean: Tensor) -> Tensor:
        """Means `[N, d]` -> means and log standard deviations `[N, 2 d]`."""
        # Not zeros_like: what it converts to in LiteRT can't be resized to another batch size.
        return ops.concatenate([mean, mean * 0.0 + self.log_std], axis=-1)

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "initial": self.initial}


@keras.saving.register_keras_serializable(package="actor_learner")
class ActionDistribution(layers.Layer):  # type: ignore[misc]
    """Passes `parameters` through, and says which distribution they describe; saved with the model."""

    def __init__(self, distribution: str = "gaussian", noise_hold: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.distribution = distribution
        self.noise_hold = noise_hold

    def call(self, parameters: Tensor) -> Tensor:
        """`parameters`, as they are."""
        return parameters

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "distribution": self.distribution, "noise_hold": self.noise_hold}


def default_network(
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    orthogonal_init: bool = True,
    initial_log_std: float = 0.0,
    image_network: str = "nature",
    normalize_observation: bool = False,
    distribution: str = "gaussian",
    noise_hold: int = 1,
    channel_axis: int | None = None,
    seed: int = 0,
) -> keras.Model:
    """A network for these spaces: two separate MLP trunks, or one shared CNN trunk for images.

    Orthogonal initialization as in SB3 (gain sqrt 2; policy head .01, value head 1), or uniform
    +-1 / sqrt(fan in), torch's default, with `orthogonal_init=False`; biases 0. An observation is an
    image if it is uint8 of rank 2 (one channel), 3, or 4 (a stack, merged into the channels).

    Raises ValueError for spaces or options that aren't supported.
    """
    spaces.check_observation_space(observation_space)
    spaces.check_action_space(action_space)
    distribution_for(action_space, distribution)
    _check_activation(activation)
    initialize = _Initializers(orthogonal_init, seed)
    shape, dtype = spaces.observation_shape_dtype(observation_space)
    observation = keras.Input(shape, dtype=str(dtype), name="observation")
    if is_image(observation_space):
        if normalize_observation:
            raise ValueError(
                "`normalize_observation` is for vectors; images are scaled by 1/255 in the network. "
                f"Received: normalize_observation=True with {observation_space}"
            )
        features = _image_features(observation, shape, image_network, channel_axis, initialize)
        policy_features = value_features = features
    else:
        features = _vector_features(observation, observation_space, normalize_observation)
        policy_features = _mlp(features, hidden_sizes, activation, initialize, "policy")
        value_features = _mlp(features, hidden_sizes, activation, initialize, "value")
    parameters = _policy_head(policy_features, action_space, initialize, initial_log_std)
    parameters = ActionDistribution(distribution, noise_hold, name="parameters")(parameters)
    value = layers.Dense(1, kernel_initializer=initialize(1.0), name="value")(value_features)
    return keras.Model(observation, (parameters, value), name="actor_critic")


def _check_activation(activation: str) -> None:
    try:
        keras.activations.get(activation)
    except ValueError:
        raise ValueError(
            f"`activation` must be a Keras name, such as 'tanh', 'relu' or 'silu'. Received: activation={activation!r}"
        ) from None


class _Initializers:
    """Kernel initializers, each with a seed of its own, derived from one."""

    def __init__(self, orthogonal: bool, seed: int) -> None:
        self._orthogonal = orthogonal
        self._seeds = iter(np.random.SeedSequence(seed).generate_state(256))

    def __call__(self, gain: float) -> keras.initializers.Initializer:
        seed = int(next(self._seeds))
        if self._orthogonal:
            return keras.initializers.Orthogonal(gain, seed=seed)
        return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed)


def _vector_features(observation: Tensor, space: Space[Any], normalize: bool) -> Tensor:
    if isinstance(space, Discrete):
        return ops.one_hot(observation, int(space.n), dtype="float32")
    if normalize:
        observation = ObservationNormalization(name="observation_normalization")(observation)
    elif observation.dtype != "float32":
        observation = ops.cast(observation, "float32")
    if len(observation.shape) == 2:
        return observation
    size = math.prod(observation.shape[1:])
    return layers.Reshape((size,), name="flatten")(observation)


def _mlp(x: Tensor, hidden_sizes: Sequence[int], activation: str, initialize: _Initializers, name: str) -> Tensor:
    for index, size in enumerate(hidden_sizes):
        x = layers.Dense(
            size, activation, kernel_initializer=initialize(math.sqrt(2)), name=f"{name}_hidden_{index + 1}"
        )(x)
    return x


def _policy_head(x: Tensor, action_space: Space[Any], initialize: _Initializers, initial_log_std: float) -> Tensor:
    if isinstance(action_space, Discrete):
        return layers.Dense(int(action_space.n), kernel_initializer=initialize(0.01), name="logits")(x)
    size = math.prod(action_space.shape or ())
    mean = layers.Dense(size, kernel_initializer=initialize(0.01), name="mean")(x)
    return LogStd(initial_log_std, name="log_std")(mean)


def is_image(space: Space[Any]) -> bool:
    """Whether the default network treats observations as images: uint8 of rank 2 to 4."""
    return isinstance(space, Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def describe_image(space: Space[Any], channel_axis: int | None = None) -> str:
    """In words, which axis of an image is taken for its channels; empty for what is no image."""
    if not is_image(space):
        return ""
    shape = spaces.observation_shape_dtype(space)[0]
    if len(shape) == 2:
        return f"Observations of shape {shape} are taken as images of one channel."
    axis = _find_channel_axis(shape, shape[-3:]) if channel_axis is None else channel_axis % 3
    stacked = f", the {shape[0]} frames joined into the channels" if len(shape) == 4 else ""
    return f"Observations of shape {shape} are taken as images, channels on axis {axis - 3}{stacked}."


def _image_features(
    image: Tensor, shape: tuple[int, ...], image_network: str, channel_axis: int | None, initialize: _Initializers
) -> Tensor:
    if image_network not in _IMAGE_NETWORKS:
        raise ValueError(
            f"`image_network` must be one of {sorted(_IMAGE_NETWORKS)}. Received: image_network={image_network!r}"
        )
    image = _channels_last(image, shape, channel_axis)
    return _IMAGE_NETWORKS[image_network](layers.Rescaling(1 / 255, name="scale")(image), initialize)


def _channels_last(image: Tensor, shape: tuple[int, ...], channel_axis: int | None) -> Tensor:
    """`[N, *shape]` -> `[N, height, width, channels]`; a leading stack of frames joins the channels."""
    if len(shape) == 2:
        return layers.Reshape((*shape, 1), name="channels_last")(image)
    frame = shape[-3:]
    axis = _find_channel_axis(shape, frame) if channel_axis is None else channel_axis % 3
    if len(shape) == 3:
        return image if axis == 2 else layers.Permute((2, 3, 1), name="channels_last")(image)
    height, width = (size for index, size in enumerate(frame) if index != axis)
    permutation = (2, 3, 1, 4) if axis == 2 else (3, 4, 1, 2)
    image = layers.Permute(permutation, name="channels_last")(image)
    return layers.Reshape((height, width, shape[0] * frame[axis]), name="merge_stack")(image)


def _find_channel_axis(shape: tuple[int, ...], frame: tuple[int, ...]) -> int:
    """0 or 2: the smaller of a frame's first and last axis, which can't have more than 16 channels."""
    first, _, last = frame
    if min(first, last) > MAXIMUM_CHANNELS or first == last:
        raise ValueError(
            "The channel axis of an image must be the first or the last, with at most "
            f"{MAXIMUM_CHANNELS} channels; give `channel_axis`. Received: observation of shape {shape}"
        )
    return 0 if first < last else 2


def _nature(x: Tensor, initialize: _Initializers) -> Tensor:
    """The network of Mnih et al. 2015 (doi:10.1038/nature14236)."""
    height, width = x.shape[1:3]
    if min(height, width) < 36:
        raise ValueError(
            "`image_network='nature'` needs images of at least 36 x 36 pixels; image_network='impala' takes "
            f"smaller ones. Received: {height} x {width}"
        )
    for index, (filters, size, stride) in enumerate([(32, 8, 4), (64, 4, 2), (64, 3, 1)]):
        x = layers.Conv2D(
            filters,
            size,
            stride,
            activation="relu",
            kernel_initializer=initialize(math.sqrt(2)),
            name=f"convolution_{index + 1}",
        )(x)
    x = layers.Flatten(name="flatten")(x)
    return layers.Dense(512, "relu", kernel_initializer=initialize(math.sqrt(2)), name="features")(x)


def _impala(x: Tensor, initialize: _Initializers) -> Tensor:
    """The residual network of IMPALA (arXiv:1802.01561, figure 3), without its LSTM."""
    gain = math.sqrt(2)
    for filters in (16, 32, 32):
        x = layers.Conv2D(filters, 3, padding="same", kernel_initializer=initialize(gain))(x)
        x = layers.MaxPooling2D(3, 2, padding="same")(x)
        for _ in range(2):
            residual = layers.ReLU()(x)
            residual = layers.Conv2D(
                filters, 3, padding="same", activation="relu", kernel_initializer=initialize(gain)
            )(residual)
            residual = layers.Conv2D(filters, 3, padding="same", kernel_initializer=initialize(gain))(residual)
            x = layers.Add()([x, residual])
    x = layers.Flatten(name="flatten")(layers.ReLU()(x))
    return layers.Dense(256, "relu", kernel_initializer=initialize(gain), name="features")(x)


_IMAGE_NETWORKS = {"nature": _nature, "impala": _impala}


def cap_statistics(network: keras.Model, count: int) -> keras.Model:
    """Lets the observations seen so far weigh at most as much as `count` new ones. Returns the same network."""
    for layer in normalization_layers(network):
        layer.count.assign(ops.minimum(layer.count, float(count)))
    return network


def with_normalization(network: keras.Model, observation_space: Space[Any]) -> keras.Model:
    """`network` behind an `ObservationNormalization` layer.

    Raises ValueError if it holds one already.
    """
    if normalization_layers(network):
        raise ValueError(
            "`normalize_observation` would normalize twice: the network holds an ObservationNormalization layer. "
            f"Received: network={network.name!r}"
        )
    shape, dtype = spaces.observation_shape_dtype(observation_space)
    observation = keras.Input(shape, dtype=str(dtype), name="observation")
    normalized = ObservationNormalization(name="observation_normalization")(observation)
    return keras.Model(observation, network(normalized), name=f"normalized_{network.name}")


def call_network(network: keras.Model, observation: Tensor) -> dict[str, Tensor]:
    """The network's outputs as a dict: `parameters [N, P]`, `value [N]`, both float32, and any others.

    Called with `training=False`, by the learner too, so that learner and actors agree.
    """
    outputs = _named_outputs(network(observation, training=False))
    return {
        **outputs,
        "parameters": ops.cast(outputs["parameters"], "float32"),
        "value": ops.reshape(ops.cast(outputs["value"], "float32"), (-1,)),
    }


def _named_outputs(outputs: Any) -> dict[str, Tensor]:
    if not isinstance(outputs, dict):
        if not isinstance(outputs, (tuple, list)) or len(outputs) != 2:
            raise ValueError(
                "The network must return (parameters, value), or a dict with these keys. "
                f"Received: {_describe_outputs(outputs)}"
            )
        outputs = {"parameters": outputs[0], "value": outputs[1]}
    if missing := {"parameters", "value"} - set(outputs):
        raise ValueError(f"The network's dict lacks {sorted(missing)}. Received: keys {sorted(outputs)}")
    return dict(outputs)


def _not_taken(network: keras.Model, shape: Any, dtype: Any, error: Exception) -> ValueError:
    """The line that says why a network fails when it is called; Keras puts the reason below a heading, in colours."""
    lines = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    reasons = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return ValueError(
        f"The network doesn't take observations of shape {tuple(shape)} and dtype {dtype} (with a leading batch axis): "
        f"{(reasons or lines)[0]} Received: network={network.name!r}"
    )


def _describe_outputs(outputs: Any) -> str:
    if isinstance(outputs, (tuple, list)):
        return f"{len(outputs)} outputs"
    return f"one output of shape {tuple(getattr(outputs, 'shape', ()))}"


def check_network(network: keras.Model, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """`check_contract` on observations of a space."""
    check_contract(network, *spaces.observation_shape_dtype(observation_space), action_space)


def check_contract(network: keras.Model, shape: tuple[int, ...], dtype: Any, action_space: Space[Any]) -> None:
    """Builds the network on observations of zeros and checks that it keeps the contract.

    Raises ValueError, saying what was expected and found: a wrong shape would otherwise broadcast silently.
    """
    if not isinstance(network, keras.Model):
        raise ValueError(f"`network` must be a keras.Model. Received: {network!r}")
    observation = ops.zeros((_ROWS, *shape), dtype=str(dtype))
    try:
        outputs = network(observation, training=False)
    except Exception as error:
        raise _not_taken(network, shape, dtype, error) from error
    found = _named_outputs(outputs)
    columns = spaces.parameter_size(action_space)
    for name, allowed, expected in (
        ("value", ((_ROWS,), (_ROWS, 1)), "[B] or [B, 1]"),
        ("parameters", ((_ROWS, columns),), f"[B, {columns}] for {action_space}"),
    ):
        if (size := tuple(found[name].shape)) not in allowed:
            described = ", ".join(["B" if size[:1] == (_ROWS,) else str(size[0]), *map(str, size[1:])]) if size else ""
            raise ValueError(
                f"The network's `{name}` must have shape {expected}. Received: [{described}] from {network.name!r}"
            )


def training_dependent_layers(network: keras.Model) -> list[str]:
    """Names of the layers that behave differently in training, which the contract doesn't let them."""
    return [layer.name for layer in all_layers(network) if isinstance(layer, _TRAINING_DEPENDENT)]


_TRAINING_DEPENDENT = (layers.BatchNormalization, layers.Dropout)


def all_layers(network: keras.Model) -> Iterator[keras.layers.Layer]:
    """Every layer of a network, those of nested models included."""
    yield from network._flatten_layers(include_self=False)


def normalization_layers(network: keras.Model) -> list[ObservationNormalization]:
    """The layers whose statistics the learner keeps up to date."""
    return [layer for layer in all_layers(network) if isinstance(layer, ObservationNormalization)]


def network_distribution(network: keras.Model, action_space: Space[Any]) -> Distribution:
    """The distribution that the network's ActionDistribution layer names, else the space's default."""
    for layer in all_layers(network):
        if isinstance(layer, ActionDistribution):
            return distribution_for(action_space, layer.distribution)
    return distribution_for(action_space)
