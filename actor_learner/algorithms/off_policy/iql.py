"""Implicit Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms.hyperparameters import Metric, hyperparameter
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK, Loss, LossGroup, Models, OffPolicy
from actor_learner.system.fields import check_number
from actor_learner.system.types import Tensor

_MAX_EXPONENT = 80.0
"""Beyond, the exponential overflows before its bound is taken."""


@dataclass(frozen=True, kw_only=True)
class IQL(OffPolicy):
    """Implicit Q-learning (arXiv:2110.06169), for Box action spaces with bounds, from recorded data.

    It never asks for the value of an action that isn't in the data. The network's `value` V is an expectile of the
    critics' values of recorded actions; critics learn from V of the next observation; the policy clones recorded
    actions, weighted by how much better than V they are. Afterwards it may go on with env steps.

    Advantages are in units of the return: scale rewards so that returns of the data differ by some hundreds to some
    thousands, or change `temperature`. Defaults are the paper's for locomotion.
    """

    expectile: float = hyperparameter(0.7, "expectile of the value, between 0 and 1; 0.5: the mean")
    temperature: float = hyperparameter(3.0, "factor of advantages in the weights of actions; 0 clones all alike")
    max_weight: float = hyperparameter(100.0, "largest weight of an action")

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "advantage_weight": Metric(
            "mean weight of recorded actions in the policy's loss: exp(temperature x advantage), bounded"
        ),
    }
    DISTRIBUTION: ClassVar[tuple[str, str]] = (
        "gaussian",
        "whose actions are Gaussians, for a Box with bounds, and that returns a `value`",
    )
    NUM_CRITICS: ClassVar[int] = 2
    NEEDS_VALUE: ClassVar[bool] = True
    TARGETS: ClassVar[tuple[str, ...]] = (CRITICS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("expectile", self.expectile, above=0, most=1)
        check_number("temperature", self.temperature, least=0)
        check_number("max_weight", self.max_weight, above=0)

    def network_options(self, action: Any) -> dict[str, Any]:
        return {"bounded_mean": True}

    @property
    def moves_every(self) -> int:
        return 1

    def groups(self) -> tuple[LossGroup, ...]:
        """Return the network, with policy and value, and the critics."""
        return LossGroup(NETWORK, self.network_loss), LossGroup(CRITICS, self.critic_loss)

    def network_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the expectile loss of the value (eq. 5), plus that of the policy (eq. 7)."""
        from keras import ops

        outputs = models.outputs(minibatch["observation"])
        action = models.scaled(minibatch["action"])
        best = ops.min(models.critic_values(minibatch["observation"], action, target=True), axis=0)
        advantage = ops.stop_gradient(best) - outputs["value"]
        side = ops.where(advantage < 0.0, 1.0 - self.expectile, self.expectile)
        value_loss = ops.mean(minibatch["weight"] * side * ops.square(advantage))
        exponent = self.temperature * ops.stop_gradient(advantage)
        weight = ops.minimum(ops.exp(ops.minimum(exponent, _MAX_EXPONENT)), self.max_weight)
        log_prob = models.log_prob(outputs["parameters"], minibatch["action"])
        policy_loss = -ops.mean(minibatch["weight"] * weight * log_prob)
        metrics = {"value_loss": value_loss, "policy_loss": policy_loss, "advantage_weight": ops.mean(weight)}
        return Loss(value_loss + policy_loss, metrics)

    def critic_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the critics' mean squared errors, summed over critics (eq. 6)."""
        from keras import ops

        following = ops.stop_gradient(models.outputs(minibatch["next_observation"])["value"])
        target = minibatch["reward"] + minibatch["discount"] * following
        values = models.critic_values(minibatch["observation"], models.scaled(minibatch["action"]))
        error = target - values
        loss = ops.sum(ops.mean(minibatch["weight"] * ops.square(error), axis=-1))
        return Loss(loss, {"critic_loss": loss, "q_value": ops.mean(values)}, {"error": ops.mean(error, axis=0)})
