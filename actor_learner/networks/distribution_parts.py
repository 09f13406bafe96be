"""Distributions over one leaf of an action: a choice, several choices, bits, normals unbounded or squashed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from keras import ops

from actor_learner.system.types import Array, Tensor

_FORBIDDEN = -1e30
"""Logit of a forbidden choice: its probability is exactly 0, and unlike infinity it leaves no NaN in gradients."""

_WORST = -1e29
"""Logit that counts for NaN and for lower ones where the best choice is looked for: still above a forbidden one."""

_MIN_PROBABILITY = 1e-30

# Trapezoidal rule in standard deviations: for a smooth function under a normal density it converges exponentially,
# and it stays accurate at stds where a Gauss-Hermite rule of as many nodes, most of them far out, doesn't.
_NODES = np.linspace(-5.25, 5.25, 29, dtype=np.float32)
_DENSITY = np.exp(-0.5 * _NODES.astype(np.float64) ** 2)
_WEIGHTS = (_DENSITY / _DENSITY.sum()).astype(np.float32)


class ColumnCounts(NamedTuple):
    """Numbers of columns of `parameters`, of a mask, and of the noise: uniforms in (0, 1] or standard normals."""

    parameters: int
    mask: int = 0
    uniform: int = 0
    normal: int = 0


@dataclass(frozen=True)
class Categorical:
    """One of `n` choices; `parameters [..., n]` are logits; the noise is `[..., 1]`.

    Actions are int32 `[...]`. A sample never has probability zero; the mode is the first of the highest logits.
    """

    n: int

    @property
    def columns(self) -> ColumnCounts:
        return ColumnCounts(parameters=self.n, mask=self.n, uniform=1)

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        # Inverse CDF: counts the choices whose cumulative probability is *below* noise times the total. So a choice of
        # probability zero is never taken, not even at noise 1 or where the sum is a little below 1.
        cumulative = ops.cumsum(ops.softmax(_allowed_logits(parameters, mask)), axis=-1)
        return ops.sum(ops.cast(cumulative < noise * cumulative[..., -1:], "int32"), axis=-1)

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return _first_of_highest(_allowed_logits(_comparable(parameters), mask), self.n)

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        logits, chosen = _allowed_logits(parameters, mask), ops.one_hot(action, self.n, dtype="float32")
        # where, not a product: 0 x -inf is NaN for a choice of probability zero.
        return ops.sum(ops.where(chosen > 0, ops.log_softmax(logits), 0.0), axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        log_prob = ops.log_softmax(_allowed_logits(parameters, mask))
        probability = ops.exp(log_prob)
        # where before the product, so that the -inf of a network that masks by itself reaches no gradient either.
        return -ops.sum(probability * ops.where(probability > 0, log_prob, 0.0), axis=-1)

    def kl_divergence(self, parameters: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = (ops.log_softmax(_allowed_logits(logits, mask)) for logits in (parameters, other))
        probability = ops.exp(first)
        return ops.sum(probability * ops.where(probability > 0, first - second, 0.0), axis=-1)


@dataclass(frozen=True)
class EpsilonGreedy(Categorical):
    """The choice of the highest value, or, with probability epsilon, any: `parameters [N, n + 1]`, epsilon last.

    The noise is `[N, 2]`. Forbidden choices are never taken, nor counted among any. Values have no gradient through
    `log_prob` and `entropy`.
    """

    @property
    def columns(self) -> ColumnCounts:
        return ColumnCounts(parameters=self.n + 1, mask=self.n, uniform=2)

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        explored = super().sample(parameters[:, : self.n] * 0.0, noise[:, 1:], mask)
        return ops.where(noise[:, 0] <= parameters[:, self.n], explored, self.mode(parameters, mask))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().mode(parameters[:, : self.n], mask)

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        each, best = self._probabilities(parameters, mask)
        greedy = ops.equal(self.mode(parameters, mask), ops.cast(action, "int32"))
        return _log(ops.where(greedy, best, each))

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        each, best = self._probabilities(parameters, mask)
        return -best * _log(best) - (1.0 - best) * _log(each)

    def _probabilities(self, parameters: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the probability `[N]` of each allowed choice but the greedy one, and that of the greedy one."""
        epsilon = parameters[:, self.n]
        each = epsilon / (self.n if mask is None else ops.sum(ops.cast(mask, "float32"), axis=-1))
        return each, 1.0 - epsilon + each


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices of different sizes; `parameters [N, sum(sizes)]` are their logits, one after the other.

    Actions are int32 `[N, *shape]`, each entry as in `Categorical`. All choices are computed as one batch
    `[N, k, max(sizes)]`, in which forbidden ones pad the smaller sizes.
    """

    sizes: tuple[int, ...]  # number of choices of each entry
    shape: tuple[int, ...]  # of one environment's action: prod(shape) == len(sizes)

    @property
    def columns(self) -> ColumnCounts:
        return ColumnCounts(parameters=sum(self.sizes), mask=sum(self.sizes), uniform=len(self.sizes))

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        noise = ops.reshape(noise, (-1, len(self.sizes), 1))
        return self._reshape(self._choice.sample(self._logits(parameters, mask), noise))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._reshape(_first_of_highest(self._logits(_comparable(parameters), mask), max(self.sizes)))

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        action = ops.reshape(action, (-1, len(self.sizes)))
        return ops.sum(self._choice.log_prob(self._logits(parameters, mask), action), axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.sum(self._choice.entropy(self._logits(parameters, mask)), axis=-1)

    def kl_divergence(self, parameters: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.sum(self._choice.kl_divergence(self._logits(parameters, mask), self._logits(other, mask)), axis=-1)

    @property
    def _choice(self) -> Categorical:
        """The distribution of each choice, padded."""
        return Categorical(max(self.sizes))

    def _logits(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        logits, longest = _allowed_logits(parameters, mask), max(self.sizes)
        if min(self.sizes) == longest:
            return ops.reshape(logits, (-1, len(self.sizes), longest))
        index, present = self._layout
        padded = ops.reshape(ops.take(logits, index, axis=1), (-1, len(self.sizes), longest))
        return ops.where(present, padded, _FORBIDDEN)

    @functools.cached_property
    def _layout(self) -> tuple[Array, Array]:
        """The column of each padded choice, int32 `[k x longest]`; True where it isn't padding, `[1, k, longest]`."""
        sizes = np.array(self.sizes)[:, None]
        offset = np.arange(sizes.max())[None]
        starts = np.cumsum(sizes) - sizes[:, 0]
        column = starts[:, None] + np.minimum(offset, sizes - 1)
        return column.reshape(-1).astype(np.int32), (offset < sizes)[None]

    def _reshape(self, action: Tensor) -> Tensor:
        return action if len(self.shape) == 1 else ops.reshape(action, (-1, *self.shape))


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits; `parameters [N, size]` are the logits of 1. Masks don't apply to them.

    Actions are int8 `[N, *shape]`. A sample never has probability zero; the mode of an even bit is 0.
    """

    shape: tuple[int, ...]

    @property
    def columns(self) -> ColumnCounts:
        return ColumnCounts(parameters=math.prod(self.shape), uniform=math.prod(self.shape))

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._bits(noise <= ops.sigmoid(parameters))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._bits(parameters > 0.0)

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        bits = ops.cast(ops.reshape(action, (-1, math.prod(self.shape))), "float32")
        return ops.sum(-_softplus((1.0 - 2.0 * bits) * parameters), axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.sum(_softplus(parameters) - parameters * ops.sigmoid(parameters), axis=-1)

    def kl_divergence(self, parameters: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        change = ops.sigmoid(parameters) * (parameters - other)
        return ops.sum(change + _softplus(other) - _softplus(parameters), axis=-1)

    def _bits(self, condition: Tensor) -> Tensor:
        return ops.reshape(ops.cast(condition, "int8"), (-1, *self.shape))


def _allowed_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return `logits`, with `_FORBIDDEN` where `mask` (booleans, or 0 and 1) forbids a choice."""
    if mask is None:
        return logits
    allowed = mask if ops.dtype(mask) == "bool" else mask > 0
    return ops.where(allowed, logits, _FORBIDDEN)


def _comparable(logits: Tensor) -> Tensor:
    """Return `logits` without NaN and minus infinity, so that a highest one exists and is never a forbidden one."""
    return ops.where(logits > _WORST, logits, _WORST)


def _first_of_highest(logits: Tensor, n: int) -> Tensor:
    """Return the first index of the maximum `[...]` by integer arithmetic: ops.argmax doesn't convert to LiteRT."""
    highest = ops.cast(logits >= ops.max(logits, axis=-1, keepdims=True), "int32")
    order = ops.convert_to_tensor(np.arange(n, 0, -1, dtype=np.int32))
    return n - ops.max(highest * order, axis=-1)


def _log(probability: Tensor) -> Tensor:
    """Return the logarithm; of 0 a finite number, so that 0 times it is 0."""
    return ops.log(ops.maximum(probability, _MIN_PROBABILITY))


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); `ops.softplus` overflows beyond 88 in LiteRT."""
    return ops.maximum(x, 0.0) + ops.log1p(ops.exp(-ops.abs(x)))


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
    def columns(self) -> ColumnCounts:
        return ColumnCounts(parameters=2 * self.size, normal=self.size)

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

    def kl_divergence(self, parameters: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        (mean, log_std), (other_mean, other_log_std) = self._split(parameters), self._split(other)
        ratio = log_std - other_log_std
        distance = (mean - other_mean) * ops.exp(-other_log_std)
        return ops.sum(0.5 * (ops.exp(2.0 * ratio) + ops.square(distance) - 1.0) - ratio, axis=-1)

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
