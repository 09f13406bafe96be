"""Proximal policy optimization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from actor_learner.algorithms.actor_critic import ActorCritic, divergence_metric
from actor_learner.algorithms.hyperparameters import Metric, hyperparameter
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_flag
from actor_learner.system.types import Tensor

ADAPTED_RATES = (1e-5, 1e-2)
"""The range in which `desired_kl` moves the learning rate: RSL-RL's (rl_games' begins at 1e-6)."""

ADAPTATION_FACTOR = 1.5
"""The factor by which `desired_kl` changes the learning rate; RSL-RL's, rl_games' and Sample Factory's."""


@dataclass(frozen=True, kw_only=True)
class PPO(ActorCritic):
    """Proximal policy optimization with the clipped objective (arXiv:1707.06347, eq. 7 and 9).

    Defaults are SB3's: learning rate 3e-4, gamma 0.99, lambda 0.95, clip 0.2, ent 0, vf 0.5, gradient norm 0.5, 10
    epochs of minibatches of 64, advantages normalized within each minibatch.

    `target_kl` and `desired_kl` use `update_kl`, which is reported if one of them is set. It is `approx_kl` with the
    policy before the update in place of the policy that acted. On-policy the two are the same. With `max_policy_lag`
    above 0, `approx_kl` also contains the actors' lag, which neither a shorter update nor another learning rate
    changes.
    """

    clip_range: Schedule = hyperparameter(
        0.2, "largest rewarded change of the probability ratio, or a schedule: linear_0.2"
    )
    clip_range_vf: Schedule | None = hyperparameter(None, "largest change of the value; none: not clipped")
    normalize_advantage: bool = hyperparameter(True, "normalize advantages within each minibatch")
    target_kl: float | None = hyperparameter(None, "end an update at a minibatch whose update_kl exceeds 1.5 x this")
    desired_kl: float | None = hyperparameter(
        None, "adapt the learning rate after each update to keep update_kl near this; none: no adaptation"
    )
    vtrace: bool = hyperparameter(False, "compute advantages and returns by V-trace, for actors with older weights")
    epochs: int = hyperparameter(10, "passes over each batch")
    minibatch_size: int | None = hyperparameter(64, "rows in a minibatch; none: the whole batch")

    CONFIG_DEFAULTS = MappingProxyType({**ActorCritic.CONFIG_DEFAULTS, "max_policy_lag": 1})

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "update_kl": Metric(
            "divergence of the new policy from the one before the update; only with `target_kl` or `desired_kl`"
        ),
        "clip_fraction": Metric("share of rows whose ratio is outside of the clip range"),
    }
    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "ent_coef", "clip_range", "clip_range_vf")
    NEVER_NEGATIVE: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_range", "clip_range_vf")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip_range", "clip_range_vf", "target_kl", "desired_kl"):
            self._check_number(name, above=0)
        check_flag("vtrace", self.vtrace)
        if self.desired_kl is not None and (source := super().rate_source):
            raise ValueError(
                "`desired_kl` adapts the learning rate, which must start as a number (presets often have a schedule). "
                f"Received: desired_kl={self.desired_kl!r}, {source}"
            )

    @property
    def rate_source(self) -> str | None:
        return super().rate_source if self.desired_kl is None else f"desired_kl={self.desired_kl!r}"

    def adapted_learning_rate(self, learning_rate: float, metrics: Mapping[str, float]) -> float | None:
        """Divide the rate by 1.5 where update_kl is above twice `desired_kl`, multiply it by 1.5 below half of it.

        The rate stays within 1e-5 and 1e-2. This is as in RSL-RL and rl_games, but once an update: update_kl is the
        mean over the update's minibatches.
        """
        measure = divergence_metric(metrics)
        if self.desired_kl is None or measure is None:
            return None
        divergence = metrics[measure]
        lowest, highest = ADAPTED_RATES
        if divergence > 2.0 * self.desired_kl:
            return max(learning_rate / ADAPTATION_FACTOR, min(learning_rate, lowest))
        if 0.0 < divergence < self.desired_kl / 2.0:
            return min(learning_rate * ADAPTATION_FACTOR, max(learning_rate, highest))
        return None

    @property
    def uses_vtrace(self) -> bool:
        return self.vtrace

    def targets(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Tensor]:
        """Return `advantage` and `return`, each `[T, B]`, by GAE or V-trace; at lag 0 the two are the same.

        The ratio in the loss is against the behaviour policy, so it is the action's importance weight. The advantage
        therefore doesn't contain that weight; Sample Factory's APPO applies it twice.
        """
        if not self.vtrace:
            return super().targets(batch, value)
        result = self.vtrace_targets(batch, value)
        return {"advantage": result.advantage, "return": result.target}

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the clipped policy objective + vf_coef x mean squared value error - ent_coef x mean entropy."""
        from keras import ops

        from actor_learner.algorithms.returns import mean_divergence, mean_valid

        valid, advantage = minibatch["valid"], self.normalized_advantage(minibatch)
        ratio = ops.exp(outputs["log_prob"] - minibatch["behaviour_log_prob"])
        clip_range: Tensor = self.clip_range
        clipped_ratio = ops.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -mean_valid(ops.minimum(advantage * ratio, advantage * clipped_ratio), valid)
        loss, metrics = self.actor_critic_loss(policy_loss, self._value(outputs, minibatch), outputs, minibatch)
        clipped = ops.cast(ops.abs(ratio - 1.0) > clip_range, "float32")
        metrics = {**metrics, "clip_fraction": mean_valid(clipped, valid)}
        if self.target_kl is not None or self.desired_kl is not None:
            metrics["update_kl"] = mean_divergence(outputs["log_prob"] - minibatch["target_log_prob"], valid)
        return loss, metrics

    def _value(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the predicted value, kept within `clip_range_vf` of the value before the update."""
        bound: Tensor = self.clip_range_vf
        if bound is None:
            return outputs["value"]
        from keras import ops

        change = outputs["value"] - minibatch["value"]
        return minibatch["value"] + ops.clip(change, -bound, bound)
