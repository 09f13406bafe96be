"""Action distributions, one per kind of action space. Pure functions of `parameters`, in keras.ops.

The same code runs in the learner's loss and, converted to LiteRT, in the actors, so that both agree
on log-probabilities. Randomness is an input (`noise`), never drawn here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from keras import ops

Tensor = Any
Noise = Literal["uniform", "normal"]


@dataclass(frozen=True)
class Categorical:
    """One of `n` actions; `parameters [N, n]` are logits."""

    n: int

    @property
    def noise(self) -> tuple[Noise, tuple[int, ...]]:
        """Kind and shape, for each environment, of what `sample` needs: one uniform in (0, 1]."""
        return "uniform", ()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Inverse-CDF sampling: `noise [N]` in (0, 1] -> int32 `[N]`.

        Counts the actions whose cumulative probability is *below* noise times the total. So an action
        of probability zero is never chosen, not even at noise 1 or where the sum is a little below 1.
        """
        cumulative = ops.cumsum(ops.softmax(parameters), axis=-1)
        threshold = ops.expand_dims(noise, -1) * cumulative[:, -1:]
        return ops.sum(ops.cast(cumulative < threshold, "int32"), axis=-1)

    def mode(self, parameters: Tensor) -> Tensor:
        """The first action of the highest logit, int32 `[N]`."""
        # ops.argmax doesn't convert to LiteRT. The first index where the maximum stands, from integer arithmetic.
        highest = ops.cast(parameters >= ops.max(parameters, axis=-1, keepdims=True), "int32")
        order = ops.convert_to_tensor(np.arange(self.n, 0, -1, dtype=np.int32))
        return self.n - ops.max(highest * order, axis=-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Log-probability `[N]` of `action [N]`."""
        chosen = ops.one_hot(action, self.n, dtype="float32")
        # where, not a product: 0 x -inf is NaN for an action that can't happen.
        return ops.sum(ops.where(chosen > 0, ops.log_softmax(parameters), 0.0), axis=-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[N]`, in nats."""
        log_prob = ops.log_softmax(parameters)
        probability = ops.exp(log_prob)
        return -ops.sum(ops.where(probability > 0, probability * log_prob, 0.0), axis=-1)


@dataclass(frozen=True)
class Gaussian:
    """Independent normals; `parameters [N, 2 x size]` are means, then log standard deviations.

    The environment gets the sample clipped to its bounds; the log-probability is the sample's own.
    """

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements of an action."""
        return int(np.prod(self.shape))

    @property
    def noise(self) -> tuple[Noise, tuple[int, ...]]:
        """Kind and shape, for each environment, of what `sample` needs: a standard normal each."""
        return "normal", self.shape

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Mean + std x noise: `noise [N, *shape]` -> float32 `[N, *shape]`."""
        mean, log_std = self._split(parameters)
        sample = mean + ops.exp(log_std) * ops.reshape(noise, (-1, self.size))
        return ops.reshape(sample, (-1, *self.shape))

    def mode(self, parameters: Tensor) -> Tensor:
        """The mean, `[N, *shape]`."""
        return ops.reshape(self._split(parameters)[0], (-1, *self.shape))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Log-density `[N]` of `action [N, *shape]`, summed over its elements."""
        mean, log_std = self._split(parameters)
        standardized = (ops.reshape(action, (-1, self.size)) - mean) * ops.exp(-log_std)
        density = -0.5 * ops.square(standardized) - log_std - 0.5 * math.log(2 * math.pi)
        return ops.sum(density, axis=-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Differential entropy `[N]`, in nats, summed over the elements."""
        log_std = self._split(parameters)[1]
        return ops.sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        return parameters[:, : self.size], parameters[:, self.size :]


Distribution = Categorical | Gaussian


def distribution_for(action_space: Space[Any], name: str = "gaussian") -> Distribution:
    """The distribution over `action_space`; `name` chooses among those for a Box ("gaussian").

    Raises ValueError for a name that isn't known.
    """
    if name != "gaussian":
        raise ValueError(f"`distribution` must be 'gaussian'. Received: distribution={name!r}")
    if isinstance(action_space, Discrete):
        return Categorical(int(action_space.n))
    assert isinstance(action_space, Box)
    return Gaussian(tuple(action_space.shape))
