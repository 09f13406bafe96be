"""Proximal policy optimization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms import schedules
from actor_learner.algorithms.base import Algorithm, hyperparameter
from actor_learner.algorithms.schedules import Schedule

Tensor = Any


@dataclass(frozen=True, kw_only=True)
class PPO(Algorithm):
    """Proximal policy optimization with the clipped objective (arXiv:1707.06347, eq. 7 and 9).

    Defaults are SB3's: learning rate 3e-4, gamma .99, lambda .95, clip .2, ent 0, vf .5, gradient norm
    .5, 10 epochs of minibatches of 64, advantages normalized within each minibatch.
    """

    clip_range: Schedule = hyperparameter(0.2, "largest rewarded change of the probability ratio, or a schedule")
    clip_range_vf: Schedule | None = hyperparameter(None, "largest change of the value; none: not clipped")
    normalize_advantage: bool = hyperparameter(True, "normalize advantages within each minibatch")
    target_kl: float | None = hyperparameter(None, "a minibatch with 1.5 x this approx_kl ends the update")
    epochs: int = hyperparameter(10, "passes over each batch")
    minibatch_size: int | None = hyperparameter(64, "rows in a minibatch; none: the whole batch")

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "ent_coef", "clip_range", "clip_range_vf")

    def __post_init__(self) -> None:
        """Checks ranges."""
        super().__post_init__()
        for name in ("clip_range", "clip_range_vf", "target_kl"):
            value = getattr(self, name)
            if value is None or (name in self.SCHEDULED and schedules.is_schedule(value)):
                continue
            if not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"`{name}` must be above 0. Received: {name}={value!r}")

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped policy objective + vf_coef x mean squared value error - ent_coef x mean entropy."""
        from keras import ops

        from actor_learner.returns import mean_valid, normalize_valid

        valid, advantage = minibatch["valid"], minibatch["advantage"]
        if self.normalize_advantage:
            advantage = normalize_valid(advantage, valid)
        log_ratio = outputs["log_prob"] - minibatch["behaviour_log_prob"]
        ratio = ops.exp(log_ratio)
        clip_range: Tensor = self.clip_range
        clipped_ratio = ops.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -mean_valid(ops.minimum(advantage * ratio, advantage * clipped_ratio), valid)
        value_loss = mean_valid(ops.square(minibatch["return"] - self._value(outputs, minibatch)), valid)
        entropy = mean_valid(outputs["entropy"], valid)
        clipped = ops.cast(ops.abs(ratio - 1.0) > clip_range, "float32")
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean_valid(ratio - 1.0 - log_ratio, valid),
            "clip_fraction": mean_valid(clipped, valid),
        }

    def _value(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> Tensor:
        """The predicted value, kept within `clip_range_vf` of what it was before the update."""
        bound: Tensor = self.clip_range_vf
        if bound is None:
            return outputs["value"]
        from keras import ops

        change = outputs["value"] - minibatch["value"]
        return minibatch["value"] + ops.clip(change, -bound, bound)
