"""The base of actor-critics: values and advantages of a batch, and the terms that their losses share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actor_learner.algorithms.base import Evaluate, OnPolicy
from actor_learner.algorithms.hyperparameters import Metric, hyperparameter
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_flag, check_number
from actor_learner.system.types import Tensor

if TYPE_CHECKING:
    from actor_learner.algorithms.returns import VTrace


@dataclass(frozen=True, kw_only=True)
class ActorCritic(OnPolicy):
    """The hyperparameters of PPO, A2C and IMPALA, and advantages by GAE.

    A subclass overrides `loss`, `targets` or both.
    """

    gae_lambda: float = hyperparameter(0.95, "trade-off of bias and variance in GAE, 0 to 1")
    ent_coef: Schedule = hyperparameter(0.0, "weight of the entropy bonus, or a schedule: linear_0.01")
    vf_coef: float = hyperparameter(0.5, "weight of the value loss")
    normalize_advantage: bool = hyperparameter(False, "normalize advantages within each minibatch")

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "policy_loss": Metric("the policy's part of the loss"),
        "value_loss": Metric("mean squared error of the value"),
        "entropy": Metric("mean entropy of the policy; it falls as the policy becomes more certain"),
        "approx_kl": Metric(
            "divergence of the new policy from the one that acted: the mean of r - 1 - log r, with their ratio r"
        ),
        "explained_variance": Metric(
            "1 - var(return - value) / var(return), before the update: 1 for a perfect value, 0 for a constant, below "
            "0 for a value that is worse than a constant",
            better="max",
        ),
    }
    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "ent_coef")
    COMPARES_DRAWS: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("ent_coef")
        check_number("gae_lambda", self.gae_lambda, least=0, most=1)
        check_number("vf_coef", self.vf_coef, least=0)
        check_flag("normalize_advantage", self.normalize_advantage)

    @property
    def uses_vtrace(self) -> bool:
        """True if targets are corrected along the unroll for actors with older weights."""
        return False

    def check_distribution(self, name: str) -> None:
        self._refuse_greedy(name)

    def check_unroll_length(self, unroll_length: int) -> None:
        """Raise ValueError for unrolls of a single step, along which V-trace has nothing to correct."""
        if self.uses_vtrace and unroll_length < 2:
            raise ValueError(
                f"`unroll_length` must be at least 2 for {type(self).__name__} with V-trace, which corrects along an "
                f"unroll. Received: unroll_length={unroll_length}"
            )

    def rows(self, batch: Mapping[str, Tensor], evaluate: Evaluate) -> dict[str, Tensor]:
        """Return the batch with values and log-probabilities under the weights before the update, and the targets.

        `on_policy [B]` is there in mixed precision: in these columns `target_log_prob` replaces the actors'
        log-probabilities, which they compute in a higher precision.
        """
        from keras import ops

        found = evaluate(batch)
        value, target_log_prob = found.value, found.log_prob
        batch = {**batch, "target_log_prob": target_log_prob, "truncation_value": found.truncation_value}
        if (on_policy := batch.pop("on_policy", None)) is not None:
            batch["behaviour_log_prob"] = ops.where(on_policy, target_log_prob, batch["behaviour_log_prob"])
        return {**batch, "value": value[:-1], **self.targets(batch, value)}

    def check_metrics(self, names: Collection[str]) -> None:
        for name in ("target_kl", "desired_kl"):
            if getattr(self, name, None) is not None and divergence_metric(names) is None:
                raise ValueError(f"`{name}` needs a loss that reports `approx_kl`. Received: a loss with {names}")

    def ends_update(self, metrics: Mapping[str, Tensor]) -> Tensor | None:
        """Return whether the divergence exceeds 1.5 x `target_kl`, a field that a subclass may have."""
        target_kl, measure = getattr(self, "target_kl", None), divergence_metric(metrics)
        return None if target_kl is None or measure is None else metrics[measure] > 1.5 * target_kl

    def targets(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Tensor]:
        """Return the fields that a loss needs of a whole batch, at least `advantage` and `return`, each `[T, B]`.

        batch: As for `rows`, with `target_log_prob [T, B]`; value: `[T + 1, B]`. Every field joins the minibatches.
        """
        from actor_learner.algorithms.returns import gae

        advantage = gae(value=value, **_outcomes(batch), gamma=self.gamma, gae_lambda=self.gae_lambda)
        return {"advantage": advantage, "return": advantage + value[:-1]}

    def vtrace_targets(
        self,
        batch: Mapping[str, Tensor],
        value: Tensor,
        *,
        rho_clip: float | None = 1.0,
        c_clip: float | None = 1.0,
        pg_rho_clip: float | None = 1.0,
    ) -> VTrace:
        """Return V-trace of a whole batch with this algorithm's gamma and lambda; arguments as for `targets`."""
        from actor_learner.algorithms.returns import vtrace

        return vtrace(
            value=value,
            log_rho=batch["target_log_prob"] - batch["behaviour_log_prob"],
            **_outcomes(batch),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            rho_clip=rho_clip,
            c_clip=c_clip,
            pg_rho_clip=pg_rho_clip,
        )

    def normalized_advantage(self, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the minibatch's advantages `[N]`; `normalize_advantage` normalizes them over its valid rows."""
        from actor_learner.algorithms.returns import normalize_valid

        advantage = minibatch["advantage"]
        return normalize_valid(advantage, minibatch["valid"]) if self.normalize_advantage else advantage

    def actor_critic_loss(
        self, policy_loss: Tensor, value: Tensor, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return policy_loss + vf_coef x mean squared error of `value [N]` - ent_coef x mean entropy, and metrics.

        `approx_kl` is the mean divergence from the behaviour policy.
        """
        from keras import ops

        from actor_learner.algorithms.returns import mean_divergence, mean_valid

        valid = minibatch["valid"]
        value_loss = mean_valid(ops.square(minibatch["return"] - value), valid)
        entropy = mean_valid(outputs["entropy"], valid)
        log_ratio = outputs["log_prob"] - minibatch["behaviour_log_prob"]
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean_divergence(log_ratio, valid),
        }

    def batch_metrics(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the explained variance of the values before the update."""
        from actor_learner.algorithms.returns import explained_variance

        return {"explained_variance": explained_variance(rows["value"], rows["return"], rows["valid"])}


def _outcomes(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the fields of a batch that returns are computed of."""
    return {name: batch[name] for name in ("reward", "terminated", "truncated", "truncation_value", "valid")}


def divergence_metric(names: Collection[str]) -> str | None:
    """Return the metric for `target_kl` and `desired_kl`: the divergence from the policy before the update.

    A subclass's loss may report `approx_kl` alone, in which the age of the actors' weights counts too.
    """
    return next((name for name in ("update_kl", "approx_kl") if name in names), None)
