"""Distributions over discrete leaves: one choice, several choices, bits."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

Tensor = Any
Array = np.ndarray[Any, Any]

FORBIDDEN = -1e30
"""Logit of what can't be chosen: its probability is exactly 0, and unlike infinity it leaves no NaN in gradients."""


@dataclass(frozen=True)
class Categorical:
    """One of `n` choices; `parameters [N, n]` are logits, `mask [N, n]` says which are allowed."""

    n: int

    @property
    def columns(self) -> int:
        """Columns of `parameters`."""
        return self.n

    @property
    def choices(self) -> int:
        """Columns of a mask."""
        return self.n

    @property
    def noise(self) -> tuple[int, int]:
        """How many uniforms in (0, 1] and how many standard normals a sample needs."""
        return 1, 0

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """`noise [N, 1]` in (0, 1] -> int32 `[N]`; never a choice of probability zero."""
        return _sample(allowed_logits(parameters, mask), noise)

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The first choice of the highest logit, int32 `[N]`."""
        return _mode(allowed_logits(parameters, mask), self.n)

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability `[N]` of `action [N]`."""
        return _log_prob(allowed_logits(parameters, mask), action, self.n)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy `[N]`, in nats."""
        return _entropy(allowed_logits(parameters, mask))


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices of different sizes; `parameters [N, sum(sizes)]` are their logits, one after the other.

    Computed as one batch of choices `[N, k, max(sizes)]`, the smaller ones filled up with forbidden ones.
    """

    sizes: tuple[int, ...]
    """Number of choices of each component."""
    shape: tuple[int, ...]
    """Of an action of one environment: `prod(shape) == len(sizes)`."""

    @property
    def columns(self) -> int:
        """Columns of `parameters`."""
        return sum(self.sizes)

    @property
    def choices(self) -> int:
        """Columns of a mask."""
        return sum(self.sizes)

    @property
    def noise(self) -> tuple[int, int]:
        """How many uniforms in (0, 1] and how many standard normals a sample needs."""
        return len(self.sizes), 0

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """`noise [N, k]` in (0, 1] -> int32 `[N, *shape]`; never a choice of probability zero."""
        noise = ops.reshape(noise, (-1, len(self.sizes), 1))
        return self._shaped(_sample(self._logits(parameters, mask), noise))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The first choice of the highest logit of each component, int32 `[N, *shape]`."""
        return self._shaped(_mode(self._logits(parameters, mask), max(self.sizes)))

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability `[N]` of `action [N, *shape]`: the sum of its components'."""
        action = ops.reshape(action, (-1, len(self.sizes)))
        return ops.sum(_log_prob(self._logits(parameters, mask), action, max(self.sizes)), axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy `[N]`, in nats: the sum of the components'."""
        return ops.sum(_entropy(self._logits(parameters, mask)), axis=-1)

    def _logits(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """`[N, k, max(sizes)]`."""
        logits, longest = allowed_logits(parameters, mask), max(self.sizes)
        if min(self.sizes) == longest:
            return ops.reshape(logits, (-1, len(self.sizes), longest))
        index, present = self._layout
        padded = ops.reshape(ops.take(logits, index, axis=1), (-1, len(self.sizes), longest))
        return ops.where(present, padded, FORBIDDEN)

    @functools.cached_property
    def _layout(self) -> tuple[Array, Array]:
        """The column of each padded choice, int32 `[k x longest]`, and where there is one, `[1, k, longest]`."""
        sizes = np.array(self.sizes)[:, None]
        offset = np.arange(sizes.max())[None]
        starts = np.cumsum(sizes) - sizes[:, 0]
        column = starts[:, None] + np.minimum(offset, sizes - 1)
        return column.reshape(-1).astype(np.int32), (offset < sizes)[None]

    def _shaped(self, action: Tensor) -> Tensor:
        return action if len(self.shape) == 1 else ops.reshape(action, (-1, *self.shape))


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits; `parameters [N, size]` are the logits of 1. Masks don't reach them."""

    shape: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Columns of `parameters`: one for each bit."""
        return math.prod(self.shape)

    @property
    def choices(self) -> int:
        """Columns of a mask."""
        return 0

    @property
    def noise(self) -> tuple[int, int]:
        """How many uniforms in (0, 1] and how many standard normals a sample needs."""
        return self.columns, 0

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """`noise [N, size]` in (0, 1] -> int8 `[N, *shape]`; never a bit of probability zero."""
        return self._bits(noise <= ops.sigmoid(parameters))

    def mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The likelier value of each bit, int8 `[N, *shape]`; 0 where both are as likely."""
        return self._bits(parameters > 0.0)

    def log_prob(self, parameters: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability `[N]` of `action [N, *shape]`, summed over its bits."""
        bits = ops.cast(ops.reshape(action, (-1, self.columns)), "float32")
        return ops.sum(-softplus((1.0 - 2.0 * bits) * parameters), axis=-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy `[N]`, in nats, summed over the bits."""
        return ops.sum(softplus(parameters) - parameters * ops.sigmoid(parameters), axis=-1)

    def _bits(self, condition: Tensor) -> Tensor:
        return ops.reshape(ops.cast(condition, "int8"), (-1, *self.shape))


def allowed_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """`logits`, with `FORBIDDEN` where `mask` (booleans, or 0 and 1) doesn't allow a choice."""
    if mask is None:
        return logits
    allowed = mask if ops.dtype(mask) == "bool" else mask > 0
    return ops.where(allowed, logits, FORBIDDEN)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); `ops.softplus` overflows beyond 88 in LiteRT."""
    return ops.maximum(x, 0.0) + ops.log1p(ops.exp(-ops.abs(x)))


def _sample(logits: Tensor, noise: Tensor) -> Tensor:
    """Inverse-CDF sampling: `logits [..., n]`, `noise [..., 1]` in (0, 1] -> int32 `[...]`.

    Counts the choices whose cumulative probability is *below* noise times the total. So a choice
    of probability zero is never taken, not even at noise 1 or where the sum is a little below 1.
    """
    cumulative = ops.cumsum(ops.softmax(logits), axis=-1)
    return ops.sum(ops.cast(cumulative < noise * cumulative[..., -1:], "int32"), axis=-1)


def _mode(logits: Tensor, n: int) -> Tensor:
    # ops.argmax doesn't convert to LiteRT. The first index where the maximum stands, from integer arithmetic.
    highest = ops.cast(logits >= ops.max(logits, axis=-1, keepdims=True), "int32")
    order = ops.convert_to_tensor(np.arange(n, 0, -1, dtype=np.int32))
    return n - ops.max(highest * order, axis=-1)


def _log_prob(logits: Tensor, action: Tensor, n: int) -> Tensor:
    chosen = ops.one_hot(action, n, dtype="float32")
    # where, not a product: 0 x -inf is NaN for a choice that can't be made.
    return ops.sum(ops.where(chosen > 0, ops.log_softmax(logits), 0.0), axis=-1)


def _entropy(logits: Tensor) -> Tensor:
    log_prob = ops.log_softmax(logits)
    probability = ops.exp(log_prob)
    # where before the product, so that the -inf of a network that masks by itself reaches no gradient either.
    return -ops.sum(probability * ops.where(probability > 0, log_prob, 0.0), axis=-1)
