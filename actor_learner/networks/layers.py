"""The layers of the network contract: statistics of observations, log standard deviations, the distribution's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from actor_learner.networks.distributions import distribution_for
from actor_learner.spaces.kinds import Box, from_json
from actor_learner.spaces.structure import Leaf, action_structure

Tensor = Any

NORMALIZATION_CLIP = 10.0
NORMALIZATION_EPSILON = 1e-8


@keras.saving.register_keras_serializable(package="actor_learner")
class ObservationNormalization(layers.Layer):  # type: ignore[misc]
    """Centres and scales observations by running statistics, and clips the result to +-10.

    Non-trainable weights `mean` and `scale` (1 / std) are what the forward pass uses; `variance` and
    `count` stand beside them. The learner merges each batch in with `update` after its gradient steps.

    Args:
        leaf: Which leaf of a composite observation stands before this layer: keys and indices joined by dots, such
            as "position" or "camera.0". May be left out where there is only one.
    """

    def __init__(self, leaf: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.leaf = leaf

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

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "leaf": self.leaf}

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


@keras.saving.register_keras_serializable(package="actor_learner")
class OneHot(layers.Layer):  # type: ignore[misc]
    """One-hot vectors of several choices of different sizes, one after the other.

    Args:
        sizes: Number of values, counted from 0, of each entry of a flattened observation.
    """

    def __init__(self, sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = tuple(int(size) for size in sizes)

    def call(self, observation: Tensor) -> Tensor:
        """Integers `[N, ...]` -> float32 `[N, sum(sizes)]`."""
        entry = np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)
        value = np.concatenate([np.arange(size, dtype=np.int32) for size in self.sizes])
        entries = ops.reshape(ops.cast(observation, "int32"), (-1, len(self.sizes)))
        return ops.cast(ops.equal(ops.take(entries, entry, axis=1), value), "float32")

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "sizes": list(self.sizes)}


@keras.saving.register_keras_serializable(package="actor_learner")
class EnvironmentObservation(layers.Layer):  # type: ignore[misc]
    """One leaf of an observation as the environment gives it -> as it stands in a Trajectory.

    Args:
        dtype_out: Of the trajectory.
        start: What discrete values are counted from; None: 0.
    """

    def __init__(self, dtype_out: str, start: Any = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.dtype_out, self.start = dtype_out, start

    def call(self, observation: Tensor) -> Tensor:
        """`[N, ...]` -> `[N, ...]`."""
        if self.start is not None:
            observation = ops.cast(observation, "int64") - np.asarray(self.start, np.int64)
        return ops.cast(observation, self.dtype_out)

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "dtype_out": self.dtype_out, "start": self.start}


@keras.saving.register_keras_serializable(package="actor_learner")
class EnvironmentAction(layers.Layer):  # type: ignore[misc]
    """A network's `parameters` -> the most probable action that a mask allows, as `Policy.act` gives it.

    Args:
        action_space: As `spaces.to_json` writes it.
        distribution: "gaussian" (clipped to the bounds) or "squashed".
    """

    def __init__(self, action_space: dict[str, Any], distribution: str, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.action_space, self.distribution = action_space, distribution
        space = from_json(action_space)
        self._distribution = distribution_for(space, distribution)
        self._leaves = action_structure(space).leaves

    def call(self, parameters: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, ...]:
        """`parameters [N, P]`, a mask `[N, M]` -> an array `[N, ...]` for each leaf of the action space."""
        modes = self._distribution.mode(parameters, allowed)  # `mask` is a name that Keras gives a meaning to
        return tuple(_to_env(leaf, mode, self.distribution) for leaf, mode in zip(self._leaves, modes, strict=True))

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return {**super().get_config(), "action_space": self.action_space, "distribution": self.distribution}


def _to_env(leaf: Leaf, action: Tensor, distribution: str) -> Tensor:
    """What `policy.env_actions.leaf_to_env` does, in a graph; in float32 (float64 spaces are cast at the end)."""
    dtype = str(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        return ops.cast(action, dtype) if leaf.start is None else ops.cast(action, dtype) + leaf.start.astype(dtype)
    low, high = (np.asarray(bound, np.float32) for bound in (leaf.space.low, leaf.space.high))
    if distribution == "squashed":
        action = low / 2 + high / 2 + (high / 2 - low / 2) * ops.tanh(action)
    return ops.cast(ops.minimum(ops.maximum(action, low), high), dtype)
