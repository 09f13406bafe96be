"""Regression of the quantiles of a distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actor_learner.system.types import Tensor

_AT_ONCE = 16
"""Targets in one pass of a loop: so many operations become one loop over a row's quantiles on a CPU, and a GPU starts
few kernels."""


def quantile_loss(target: Tensor, current: Tensor, fused: Callable[[Any], Any] = lambda function: function) -> Tensor:
    """Return the quantile Huber loss of each quantile, a mean over targets (arXiv:1710.10044, eq. 9 and 10, kappa 1).

    The gradient is written out, so that a loop over targets gives both: the pairs `[..., Q, T]` are never in memory.

    Args:
        target: `[..., T]`, samples of the distribution, which get no gradient.
        current: `[..., Q]`, estimates of its quantiles (i + 0.5) / Q.
        fused: `Models.fused`.

    Returns:
        `[..., Q]`
    """
    from keras import ops

    fixed = ops.stop_gradient(current)
    loss, slope = fused(_sums)(ops.stop_gradient(target), fixed)
    count = target.shape[-1]
    return ops.stop_gradient(loss) / count - ops.stop_gradient(slope) / count * (current - fixed)


def _sums(target: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over targets of each quantile's loss, and of minus its derivative, `[..., Q]` each."""
    from keras import ops

    count = current.shape[-1]
    fraction = (np.arange(count, dtype=np.float32) + 0.5) / count
    columns = ops.expand_dims(ops.moveaxis(target, -1, 0), -1)  # [T, ..., 1]

    def add(columns: Tensor, sums: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        loss, slope = sums
        for row in range(columns.shape[0]):
            error = columns[row] - current
            clipped = ops.clip(error, -1.0, 1.0)  # the derivative of Huber's loss
            weighted = clipped * ops.where(error < 0.0, 1.0 - fraction, fraction)
            loss, slope = loss + weighted * (error - 0.5 * clipped), slope + weighted
        return loss, slope

    sums = ops.zeros_like(current), ops.zeros_like(current)
    if passes := columns.shape[0] // _AT_ONCE:
        blocks = ops.reshape(columns[: passes * _AT_ONCE], (passes, _AT_ONCE, *columns.shape[1:]))
        sums = ops.fori_loop(0, passes, lambda index, sums: add(blocks[index], sums), sums)
    return add(columns[passes * _AT_ONCE :], sums)
