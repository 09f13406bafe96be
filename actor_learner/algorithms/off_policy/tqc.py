"""Soft actor-critic with critics of distributions, whose highest quantiles targets leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import Loss, Models
from actor_learner.algorithms.off_policy.sac import SAC
from actor_learner.algorithms.quantiles import quantile_loss
from actor_learner.system.fields import check_count
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class TQC(SAC):
    """Truncated quantile critics (arXiv:2005.04269), for Box action spaces with bounds.

    A critic returns quantiles of the return, `[N, quantiles]`. Targets leave out the highest quantiles of all critics
    together, which keeps values from growing too high. All else is SAC's. Defaults are sb3-contrib's.
    """

    num_critics: int = hyperparameter(2, "number of critics")
    quantiles: int = hyperparameter(25, "quantiles of the return that each critic estimates")
    dropped_quantiles: int = hyperparameter(2, "for each critic, quantiles that targets leave out: the highest of all")

    TAKES_CHOICES: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_critics", self.num_critics)
        check_count("quantiles", self.quantiles)
        check_count("dropped_quantiles", self.dropped_quantiles, 0, most=self.quantiles - 1)

    @property
    def critic_size(self) -> int:
        return self.quantiles

    def critic_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the mean loss of quantiles, summed over critics (arXiv:2005.04269, eq. 10 to 13).

        The targets of each are the lowest quantiles of all critics' copies, sorted together.
        """
        from keras import ops

        action, log_prob, ent_coef = self.next_action(models, minibatch)
        following = models.critic_outputs(minibatch["next_observation"], action, target=True)
        joined = ops.reshape(ops.transpose(following, (1, 0, 2)), (-1, self.num_critics * self.quantiles))
        kept = self.num_critics * (self.quantiles - self.dropped_quantiles)
        value = ops.sort(joined, axis=-1)[:, :kept] - ops.expand_dims(ent_coef * log_prob, -1)
        reward, discount = (ops.expand_dims(minibatch[name], -1) for name in ("reward", "discount"))
        target = ops.stop_gradient(reward + discount * value)
        outputs = models.critic_outputs(minibatch["observation"], models.scaled(minibatch["action"]))
        losses = ops.mean(quantile_loss(target, outputs, models.fused), axis=-1)
        loss = ops.sum(ops.mean(minibatch["weight"] * losses, axis=-1))
        error = ops.mean(target, axis=-1) - ops.mean(outputs, axis=(0, 2))
        metrics = {"critic_loss": loss, "q_value": ops.mean(outputs), "ent_coef": ent_coef}
        return Loss(loss, metrics, {"error": error, "ent_coef": ent_coef})

    def joint_value(self, values: Tensor) -> Tensor:
        """Return the mean over critics (arXiv:2005.04269, eq. 14)."""
        from keras import ops

        return ops.mean(values, axis=0)
