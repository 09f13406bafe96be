"""The layers and initializers of this package, registered with Keras when this module is imported.

Saved networks contain their registered names: they must not change. On JAX, NumPy computes the first weights, the same
numbers to rounding: JAX would compile programs for each shape, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from actor_learner.networks.distributions import GREEDY, NAMES, distribution_for
from actor_learner.spaces.kinds import Box, from_json, middle
from actor_learner.spaces.structure import Leaf, action_structure
from actor_learner.system.fields import check_choice, check_count, check_number, refusal
from actor_learner.system.types import Array, Tensor

_CLIP = 10.0
_EPSILON = 1e-8
_MAX_RATIO, _MAX_DISTANCE = 3.0, 5.0
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


@keras.saving.register_keras_serializable(package="actor_learner")
class ObservationNormalization(layers.Layer):  # type: ignore[misc]
    """Centres and scales observations by running statistics, and clips them: `[N, ...]` -> float32 within +-10.

    The forward pass uses the non-trainable weights `mean` and `scale` (1 / std). `variance` and `count` are kept for
    `update`, which the learner calls with each batch after its gradient steps.

    Args:
        leaf: The leaf of a composite observation that this layer normalizes: keys and indices joined by dots, such as
            "position" or "camera.0". Optional if there is only one leaf.
    """

    def __init__(self, leaf: str | None = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # not rounded to a lower precision before it is centred
        self.leaf = leaf

    def build(self, input_shape: Any) -> None:
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
        centred = ops.cast(observation, "float32") - self.mean
        return ops.clip(centred * self.scale, -_CLIP, _CLIP)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "leaf": self.leaf}

    def update(self, observation: Tensor, valid: Tensor) -> None:
        """Merge the rows of `observation [N, ...]` where `valid [N]` into the statistics (Chan et al. 1979)."""
        weight = ops.reshape(ops.cast(valid, "float32"), (-1,) + (1,) * len(self.mean.shape))
        added = ops.sum(weight)
        rows = ops.cast(observation, "float32")
        batch_mean = ops.sum(rows * weight, axis=0) / ops.maximum(added, 1.0)
        batch_sum_of_squares = ops.sum(ops.square(rows - batch_mean) * weight, axis=0)
        running = self.mean.value, self.variance.value, self.count.value
        mean, variance, count = merge_statistics(running, (batch_mean, batch_sum_of_squares, added))
        self.mean.assign(mean)
        self.variance.assign(variance)
        self.count.assign(count)
        self.scale.assign(1.0 / ops.sqrt(variance + _EPSILON))


def merge_statistics(running: Sequence[Tensor], batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Merge a batch's (mean, sum of squares, count) into the running (mean, population variance, count).

    An empty batch changes nothing. Chan, Golub and LeVeque 1979, eq. 2.1.
    """
    (mean, variance, count), (batch_mean, batch_sum_of_squares, added) = running, batch
    total = ops.maximum(count + added, 1.0)
    difference = batch_mean - mean
    merged_mean = mean + difference * (added / total)
    sum_of_squares = variance * count + batch_sum_of_squares + ops.square(difference) * (count * added / total)
    empty = added == 0.0
    return ops.where(empty, mean, merged_mean), ops.where(empty, variance, sum_of_squares / total), count + added


@keras.saving.register_keras_serializable(package="actor_learner")
class BatchRenormalization(layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization that comes to use its running statistics in training, too (arXiv:1702.03275).

    In inference mode it is Keras's `BatchNormalization`. In training mode, statistics are the batch's for `warm_up`
    calls. After these, the batch's are corrected to the running ones: their ratio is at most 3, and their distance 5
    standard deviations. These and the defaults are CrossQ's (arXiv:1902.05605). Keras's own `renorm` has no warm-up.

    Args:
        warm_up: Calls in training mode before corrections begin.
        momentum, epsilon: As in `BatchNormalization`, whose other arguments it takes, too, but for `renorm` and
            `synchronized`. It counts masked rows.

    Raises ValueError for these.
    """

    def __init__(self, warm_up: int = 100_000, momentum: float = 0.99, epsilon: float = 1e-3, **kwargs: Any) -> None:
        check_count("warm_up", warm_up, 0)
        for name in ("renorm", "synchronized"):
            if kwargs.get(name):
                raise refusal(name, "left out, or False", kwargs[name])
        # Without `autocast`, observations aren't rounded to a lower precision before they are centred.
        super().__init__(momentum=momentum, epsilon=epsilon, **{"autocast": False, **kwargs})
        self.warm_up = warm_up

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.count = self.add_weight(
            name="count", shape=(), initializer="zeros", trainable=False, dtype="float32", autocast=False
        )

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        rows = ops.cast(inputs, "float32")
        mean, variance = ops.moments(rows, axes=self._reduction_axes, keepdims=False)
        places = [1] * len(inputs.shape)
        places[self.axis] = inputs.shape[self.axis]
        std, running_std = ops.sqrt(variance + self.epsilon), ops.sqrt(self.moving_variance + self.epsilon)
        is_warm = self.count.value >= self.warm_up
        ratio = ops.where(is_warm, ops.clip(std / running_std, 1 / _MAX_RATIO, _MAX_RATIO), 1.0)
        distance = (mean - self.moving_mean) / running_std
        distance = ops.where(is_warm, ops.clip(distance, -_MAX_DISTANCE, _MAX_DISTANCE), 0.0)
        scale, shift = ops.stop_gradient(ratio) / std, ops.stop_gradient(distance)
        if self.scale:
            scale, shift = scale * self.gamma, shift * self.gamma
        if self.center:
            shift = shift + self.beta
        for running, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            running.assign(self.momentum * running.value + (1.0 - self.momentum) * ops.stop_gradient(new))
        self.count.assign(self.count.value + 1.0)
        mean, scale, shift = (ops.reshape(each, places) for each in (mean, scale, shift))
        return ops.cast((rows - mean) * scale + shift, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "warm_up": self.warm_up}


@keras.saving.register_keras_serializable(package="actor_learner")
class LogStd(layers.Layer):  # type: ignore[misc]
    """Appends a trainable, state-independent log standard deviation to means: `[N, d]` -> `[N, 2 d]`.

    initial: its first value, or one for each column.
    """

    def __init__(self, initial: float | Sequence[float] = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = [float(i) for i in initial] if isinstance(initial, Sequence) else float(initial)

    def build(self, input_shape: Any) -> None:
        initializer = keras.initializers.Constant(self.initial)
        self.log_std = self.add_weight(name="log_std", shape=(input_shape[-1],), initializer=initializer)

    def call(self, mean: Tensor) -> Tensor:
        # Not zeros_like: LiteRT can't resize the result of its conversion to another batch size.
        return ops.concatenate([mean, mean * 0.0 + self.log_std], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial": self.initial}


@keras.saving.register_keras_serializable(package="actor_learner")
class ActionDistribution(layers.Layer):  # type: ignore[misc]
    """Names the distribution of actions, by arguments that are saved with the model. It doesn't change `parameters`.

    With "greedy", the inputs `[N, n]` are the values of a Discrete space's choices. The outputs `[N, n + 1]` are these
    values and the weight `epsilon`. Actors take the choice of the highest value, or with probability epsilon any
    choice. To change epsilon, assign it and publish: `layer.epsilon.assign([0.1])`. Policies that are evaluated or
    served are greedy, unless they sample (`deterministic=False`).

    Args:
        distribution: "gaussian" or "squashed", for continuous actions; "greedy", for values of discrete ones.
        noise_hold: Steps for which an environment keeps its standard-normal draw. Above 1, the policy gradient is
            biased, as gSDE's is (arXiv:2005.05719): held noise isn't centred, given a state that it led to.
        epsilon: With "greedy", the initial probability of a random choice, 0 to 1.
        epsilon_ladder: With "greedy", environment i of N of a pool explores with probability
            `epsilon ** (1 + epsilon_ladder * i / (N - 1))` (arXiv:1803.00933, section 4.1: 7, over an epsilon of 0.4).

    Raises ValueError for an unknown distribution, or a number out of range.

    Example, in the loss of a custom algorithm, with the `parameters` of a reference network:
        >>> divergence = al.ActionDistribution().kl_divergence(outputs["parameters"], parameters, action_space)
    """

    def __init__(
        self,
        distribution: str = "gaussian",
        noise_hold: int = 1,
        epsilon: float = 0.05,
        epsilon_ladder: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.distribution, self.noise_hold = check_choice("distribution", distribution, NAMES), noise_hold
        self.first_epsilon = check_number("epsilon", epsilon, least=0, most=1)
        self.epsilon_ladder = check_number("epsilon_ladder", epsilon_ladder, least=0)

    def build(self, input_shape: Any) -> None:
        if self.distribution == GREEDY:
            first = keras.initializers.Constant(self.first_epsilon)
            self.epsilon = self.add_weight(name="epsilon", shape=(1,), initializer=first, trainable=False)

    def log_prob(self, parameters: Tensor, action: Any, action_space: Any, action_mask: Tensor | None = None) -> Tensor:
        """Return the log-probability `[N]` of actions, differentiable in the parameters.

        Args:
            parameters: The network's output `[N, P]`.
            action: `[N, ...]`, nested like the space, as in a `Trajectory`: before clipping or squashing.
            action_space: A Gymnasium space.
            action_mask: `[N, M]`, the allowed choices; None: all are.
        """
        actions = action_structure(action_space)
        distribution = distribution_for(actions, self.distribution)
        return distribution.log_prob(parameters, actions.flatten(action), action_mask)

    def kl_divergence(
        self, parameters: Tensor, other: Tensor, action_space: Any, action_mask: Tensor | None = None
    ) -> Tensor:
        """Return KL(p || q) `[N]` in nats, for p of `parameters [N, P]` and q of `other [N, P]`; both have gradients.

        Clipping is ignored, as in `log_prob`; squashing changes nothing. action_space, action_mask: as for `log_prob`.

        Raises ValueError for "greedy" policies, whose probabilities have no gradient.
        """
        if self.distribution == GREEDY:
            raise refusal("distribution", "one with gradients, for a divergence", self.distribution)
        return distribution_for(action_structure(action_space), self.distribution).kl_divergence(
            parameters, other, action_mask
        )

    def call(self, parameters: Tensor) -> Tensor:
        if self.distribution != GREEDY:
            return parameters
        # Not zeros_like: see LogStd.
        return ops.concatenate([parameters, parameters[:, :1] * 0.0 + self.epsilon], axis=-1)

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "distribution": self.distribution, "noise_hold": self.noise_hold}
        greedy = {"epsilon": self.first_epsilon, "epsilon_ladder": self.epsilon_ladder}
        return {**config, **greedy} if self.distribution == GREEDY else config


def apply_layer(layer: Any, x: Tensor, *, layer_norm: bool) -> Tensor:
    """Return `layer(x)`, a dense layer or a convolution; with layer normalization before its activation, if asked for.

    Normalization is over the last axis (arXiv:1607.06450).
    """
    if not layer_norm:
        return layer(x)
    activation, layer.activation = layer.activation, keras.activations.linear
    x = layers.LayerNormalization(epsilon=1e-6, name=f"{layer.name}_norm")(layer(x))
    if activation is keras.activations.linear:
        return x
    return layers.Activation(activation, name=f"{layer.name}_activation")(x)


@keras.saving.register_keras_serializable(package="actor_learner")
class OneHot(layers.Layer):  # type: ignore[misc]
    """Concatenates one-hot vectors of choices with `sizes` values: integers `[N, ...]` -> float32 `[N, sum(sizes)]`."""

    def __init__(self, sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = tuple(int(size) for size in sizes)

    def call(self, observation: Tensor) -> Tensor:
        entry = np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)
        value = np.concatenate([np.arange(size, dtype=np.int32) for size in self.sizes])
        entries = ops.reshape(ops.cast(observation, "int32"), (-1, len(self.sizes)))
        return ops.cast(ops.equal(ops.take(entries, entry, axis=1), value), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sizes": list(self.sizes)}


@keras.saving.register_keras_serializable(package="actor_learner")
class EnvironmentObservation(layers.Layer):  # type: ignore[misc]
    """Converts a leaf of observations to a trajectory's `dtype_out`; counts discrete values from 0, not `start`."""

    def __init__(self, dtype_out: str, start: Any = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.dtype_out, self.start = dtype_out, start

    def call(self, observation: Tensor) -> Tensor:
        if self.start is not None:
            observation = ops.cast(observation, "int64") - np.asarray(self.start, np.int64)
        return ops.cast(observation, self.dtype_out)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dtype_out": self.dtype_out, "start": self.start}


@keras.saving.register_keras_serializable(package="actor_learner")
class EnvironmentAction(layers.Layer):  # type: ignore[misc]
    """Converts `parameters [N, P]` to the most probable actions that a mask `[N, M]` allows, as `Policy.act` does.

    Returns an array `[N, ...]` for each leaf of `action_space`, which `kinds.to_json` described.
    """

    def __init__(self, action_space: dict[str, Any], distribution: str, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.action_space, self.distribution = action_space, distribution
        actions = action_structure(from_json(action_space))
        self._distribution = distribution_for(actions, distribution)
        self._leaves = actions.leaves

    def call(self, parameters: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, ...]:
        modes = self._distribution.mode(parameters, allowed)  # Keras gives the name `mask` another meaning
        return tuple(_to_env(leaf, mode, self.distribution) for leaf, mode in zip(self._leaves, modes, strict=True))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "action_space": self.action_space, "distribution": self.distribution}


def _to_env(leaf: Leaf, action: Tensor, distribution: str) -> Tensor:
    """Convert actions as `policy.policy.leaf_to_env` does, in float32, then cast to the dtype of the space."""
    dtype = str(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        return ops.cast(action, dtype) if leaf.start is None else ops.cast(action, dtype) + leaf.start.astype(dtype)
    low, high = (np.asarray(bound, np.float32) for bound in (leaf.space.low, leaf.space.high))
    if distribution == "squashed":
        centre, half = middle(leaf.space, np.float32)
        action = centre + half * ops.tanh(action)
    low = np.where(low < leaf.space.low, np.nextafter(low, np.float32(np.inf)), low)  # bounds in float64 lie between
    high = np.where(high > leaf.space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return ops.cast(ops.minimum(ops.maximum(action, low), high), dtype)


@keras.saving.register_keras_serializable(package="actor_learner")
class Orthogonal(keras.initializers.Orthogonal):  # type: ignore[misc]
    """Keras's initializer of this name: the columns or the rows of a kernel, flattened, are orthogonal."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not _computes(self.seed):
            return super().__call__(shape, dtype)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(_normal(self.seed, (max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))
        kernel = q.T if rows < columns else q
        return ops.convert_to_tensor(self.gain * kernel.reshape(shape), dtype=dtype)


@keras.saving.register_keras_serializable(package="actor_learner")
class VarianceScaling(keras.initializers.VarianceScaling):  # type: ignore[misc]
    """Keras's initializer of this name."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not _computes(self.seed) or self.distribution != "uniform":
            return super().__call__(shape, dtype)
        fans = {"fan_in": math.prod(shape[:-1]), "fan_out": math.prod(shape[:-2]) * shape[-1]}
        limit = math.sqrt(3 * self.scale / fans.get(self.mode, sum(fans.values()) / 2))
        return ops.convert_to_tensor(_uniform(self.seed, shape, -limit, limit), dtype=dtype)


def _computes(seed: Any) -> bool:
    return keras.backend.backend() == "jax" and isinstance(seed, int)


def _normal(seed: int, shape: Sequence[int]) -> Array:
    from scipy.special import erfinv  # JAX needs SciPy

    above_minus_one = np.nextafter(np.float32(-1), np.float32(0))
    numbers: Array = math.sqrt(2) * erfinv(_uniform(seed, shape, above_minus_one, 1))
    return numbers


def _uniform(seed: int, shape: Sequence[int], low: Any, high: Any) -> Array:
    """Return the float32 numbers of `jax.random.uniform`, from 23 random bits each."""
    low, high = np.float32(low), np.float32(high)
    fraction = ((_random_bits(seed, math.prod(shape)) >> 9) | 0x3F800000).view(np.float32) - np.float32(1)
    numbers: Array = np.maximum(low, fraction * (high - low) + low)
    return numbers.reshape(shape)


def _random_bits(seed: int, count: int) -> Array:
    """Return `count` random numbers of 32 bits as JAX does: Threefry-2x32 of 0, 1, ... (10.1145/2063384.2063405)."""
    key = np.array([[seed], [0], [seed ^ 0x1BD11BDA]], np.uint32)  # columns: NumPy warns where scalars overflow
    x: Array
    y: Array
    x, y = np.repeat(key[0], count), np.arange(count, dtype=np.uint32) + key[1]
    for round_ in range(5):
        for bits in map(np.uint32, _ROTATIONS[round_ % 2]):
            x += y
            y = x ^ ((y << bits) | (y >> (np.uint32(32) - bits)))
        x += key[(round_ + 1) % 3]
        y += key[(round_ + 2) % 3] + np.uint32(round_ + 1)
    return x ^ y
