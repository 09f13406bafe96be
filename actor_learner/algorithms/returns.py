"""Advantages and returns, as pure functions on `[T, B]` tensors, and means over valid rows.

The recurrences are linear, so they run as parallel scans: log2(T) vectorized steps, where a loop costs T dispatches.
"""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from actor_learner.system.fields import refusal
from actor_learner.system.types import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    truncation_value: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16).

    value: `[T + 1, B]`, the last row bootstraps; all others: `[T, B]`. A terminated row bootstraps from 0, a truncated
    row from its `truncation_value`; the sum ends there and at invalid rows. Returns `[T, B]`, 0 at invalid rows.
    """
    delta, goes_on = _one_step_errors(reward, value, terminated, truncated, truncation_value, valid, gamma)
    return backward_sum(delta, gamma * gae_lambda * goes_on)


class VTrace(NamedTuple):
    """The result of `vtrace`, `[T, B]` each. At invalid rows the target is the value and the advantages are 0."""

    target: Tensor
    """v_s: the target of the value."""
    advantage: Tensor
    """The action's advantage without its own importance weight, for a loss that contains the probability ratio."""
    policy_gradient_advantage: Tensor
    """The same times the clipped weight, for a loss of advantage x log-probability."""


def vtrace(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    truncation_value: Tensor,
    valid: Tensor,
    log_rho: Tensor,
    *,
    gamma: float,
    gae_lambda: float = 1.0,
    rho_clip: float | None = 1.0,
    c_clip: float | None = 1.0,
    pg_rho_clip: float | None = 1.0,
) -> VTrace:
    """V-trace targets and advantages (arXiv:1802.01561, eq. 1 and section 4.2; lambda as in remark 2).

    value: `[T + 1, B]`, of the target policy, the last row bootstraps; all others: `[T, B]`. log_rho: Log-probability
    of the action under the target policy - under the behaviour policy; its exponential is clipped to the bounds; None:
    no bound. Ends and invalid rows are as for `gae`.

    With lambda < 1 the advantage bootstraps from lambda v_{s+1} + (1 - lambda) V(x_{s+1}), as in rlax, so that
    on-policy (all weights 1) it is GAE(lambda), and the target that + value. With lambda = 1 it is the paper's.
    """
    delta, goes_on = _one_step_errors(reward, value, terminated, truncated, truncation_value, valid, gamma)
    rho = ops.exp(ops.where(valid, log_rho, ops.zeros_like(delta)))
    decay = gamma * gae_lambda * goes_on
    correction = backward_sum(clip_weight(rho, rho_clip) * delta, decay * clip_weight(rho, c_clip))
    following = ops.concatenate([correction[1:], ops.zeros_like(correction[:1])], axis=0)
    advantage = delta + decay * following
    target = ops.convert_to_tensor(value, dtype="float32")[:-1] + correction
    return VTrace(target, advantage, clip_weight(rho, pg_rho_clip) * advantage)


def _one_step_errors(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    truncation_value: Tensor,
    valid: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Return `reward + gamma * bootstrap - value`, 0 at invalid rows, and 1 where the next row continues the episode.

    The row after an invalid row belongs to another episode; the row before one was cut off, so it has ended already.
    """
    value = ops.convert_to_tensor(value, dtype="float32")
    current, following = value[:-1], value[1:]
    bootstrap = ops.where(truncated, truncation_value, following)
    bootstrap = ops.where(terminated, ops.zeros_like(bootstrap), bootstrap)
    delta = ops.where(valid, reward + gamma * bootstrap - current, ops.zeros_like(current))
    ended = ops.logical_or(ops.logical_or(terminated, truncated), ops.logical_not(valid))
    return delta, ops.where(ended, ops.zeros_like(current), ops.ones_like(current))


def backward_sum(term: Tensor, decay: Tensor) -> Tensor:
    """Return `s[t] = term[t] + decay[t] * s[t + 1]`, with `s[T] = 0`. All `[T, B]`."""
    return ops.flip(forward_sum(ops.flip(term, axis=0), ops.flip(decay, axis=0)), axis=0)


def forward_sum(term: Tensor, decay: Tensor) -> Tensor:
    """Return `s[t] = term[t] + decay[t] * s[t - 1]`, with `s[-1] = 0`. All `[T, B]`.

    Hillis and Steele's scan (doi:10.1145/7902.7903): after the step of a distance, each row holds the sum over the rows
    nearer than twice that distance. (Keras's `associative_scan` doesn't compile with XLA here.)
    """
    distance = 1
    while distance < term.shape[0]:
        nothing = ops.zeros_like(term[:distance])
        term = term + decay * ops.concatenate([nothing, term[:-distance]], axis=0)
        decay = decay * ops.concatenate([nothing, decay[:-distance]], axis=0)
        distance *= 2
    return term


def mean_valid(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of `values [N]` over the rows where `valid [N]`; 0 if there is none.

    Raises ValueError for values of another shape: `[N, 1] - [N]` is `[N, N]`, each row with each.
    """
    found, expected = shape_of(values), shape_of(valid)
    if found is not None and expected is not None:
        differ = any(None not in (a, b) and a != b for a, b in zip(found, expected, strict=False))
        if len(found) != len(expected) or differ:
            raise refusal("values", f"of the shape of `valid`, {list(expected)}", list(found))
    weight = ops.cast(valid, values.dtype)
    return ops.sum(values * weight) / ops.maximum(ops.sum(weight), 1.0)


def shape_of(tensor: Tensor) -> tuple[int | None, ...] | None:
    """Return a tensor's shape, () for a number; None, also in it, for what TensorFlow knows when the graph runs."""
    shape = getattr(tensor, "shape", ())
    return None if getattr(shape, "rank", 0) is None else tuple(shape)


def mean_divergence(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Return the KL divergence between the two policies of a probability ratio, by J. Schulman's third estimator.

    It is the mean of ratio - 1 - log ratio over valid rows; log_ratio, valid: `[N]`.
    """
    return mean_valid(ops.exp(log_ratio) - 1.0 - log_ratio, valid)


def clip_weight(rho: Tensor, bound: float | None) -> Tensor:
    """Return importance weights of at most `bound`; None: no bound."""
    return rho if bound is None else ops.minimum(rho, bound)


def normalize_valid(values: Tensor, valid: Tensor) -> Tensor:
    """Return `values [N]` centred and divided by their unbiased std + 1e-8 over valid rows; a single row unchanged."""
    weight = ops.cast(valid, values.dtype)
    count = ops.sum(weight)
    centred = (values - mean_valid(values, valid)) * weight
    std = ops.sqrt(ops.sum(ops.square(centred)) / ops.maximum(count - 1.0, 1.0))
    return ops.where(count > 1.0, centred / (std + 1e-8), values)


def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Return 1 - Var[target - prediction] / Var[target] over valid rows; NaN for a constant target."""
    residual = target - prediction
    target_variance = _variance_valid(target, valid)
    return ops.where(
        target_variance > 0.0,
        1.0 - _variance_valid(residual, valid) / ops.maximum(target_variance, 1e-30),
        float("nan"),
    )


def _variance_valid(values: Tensor, valid: Tensor) -> Tensor:
    return mean_valid(ops.square(values - mean_valid(values, valid)), valid)
