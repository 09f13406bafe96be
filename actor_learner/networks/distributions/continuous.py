"""Distributions over Box leaves: normals, unbounded or squashed into the bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from keras import ops

from actor_learner.networks.distributions.columns import Columns
from actor_learner.system.types import Tensor

# Trapezoidal rule in standard deviations: for a smooth function under a normal density it converges exponentially,
# and it stays accurate at stds where a Gauss-Hermite rule of as many nodes, most of them far out, doesn't.
_NODES = np.linspace(-5.25, 5.25, 29, dtype=np.float32)
_DENSITY = np.exp(-0.5 * _NODES.astype(np.float64) ** 2)
_WEIGHTS = (_DENSITY / _DENSITY.sum()).astype(np.float32)


@dataclass(frozen=True)
class Gaussian:
    """Independent normals; `parameters [N, 2 x size]` are means, then log standard deviations.

    Actions are float32 `[N, *shape]`; the mode is the mean. The environment gets them clipped to its bounds; the
    log-probability is that of the action before clipping.
    """

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> Columns:
        return Columns(parameters=2 * self.size, normal=self.size)

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, log_std = self._split(parameters)
        return ops.reshape(mean + ops.exp(log_std) * noise, (-1, *self.shape))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.reshape(self._split(parameters)[0], (-1, *self.shape))

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, log_std = self._split(parameters)
        standardized = (ops.reshape(action, (-1, self.size)) - mean) * ops.exp(-log_std)
        density = -0.5 * ops.square(standardized) - log_std - 0.5 * math.log(2 * math.pi)
        return ops.sum(density, axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        log_std = self._split(parameters)[1]
        return ops.sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        return parameters[:, : self.size], parameters[:, self.size :]


@dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """Normals u; the environment gets low + (high - low) (tanh(u) + 1) / 2.

    Actions of a trajectory are the u. Log-probability and entropy are those of the environment's actions
    (arXiv:1801.01290, appendix C), in the units of the space.
    """

    scale: tuple[float, ...]  # (high - low) / 2 of each element

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        volume = ops.sum(_log_slope(ops.reshape(action, (-1, self.size))), axis=-1)
        return super().log_prob(parameters, action) - volume - self._log_scale

    def draw(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return tanh(u) `[N, size]` of a sample, and its log-density `[N]`, in units in which bounds are -1 and 1.

        It is computed of the noise: where the standard deviation is small, u doesn't tell it any more.
        """
        mean, log_std = self._split(parameters)
        u = mean + ops.exp(log_std) * noise
        density = -0.5 * ops.square(noise) - log_std - 0.5 * math.log(2 * math.pi) - _log_slope(u)
        return ops.tanh(u), ops.sum(density, axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy of the normals plus the expectation of log |d action / d u|, `[N]`."""
        mean, log_std = self._split(parameters)
        samples = ops.expand_dims(mean, -1) + ops.expand_dims(ops.exp(log_std), -1) * _NODES
        volume = ops.sum(_log_slope(samples) * _WEIGHTS, axis=(-2, -1))
        return super().entropy(parameters) + volume + self._log_scale

    @property
    def _log_scale(self) -> float:
        return sum(math.log(scale) for scale in self.scale)


def _log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is even: with |u| nothing cancels at either end."""
    distance = ops.abs(u)
    return 2.0 * (math.log(2.0) - distance - ops.log1p(ops.exp(-2.0 * distance)))
