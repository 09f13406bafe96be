"""Advantage actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actor_learner.algorithms.actor_critic import ActorCritic
from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class A2C(ActorCritic):
    """Advantage actor-critic (arXiv:1602.01783, synchronous): one gradient step on each whole batch.

    Defaults are SB3's: learning rate 7e-4, gamma 0.99, lambda 1, vf 0.5, ent 0, gradient norm 0.5, no advantage
    normalization, and RMSprop with alpha 0.99 and epsilon 1e-5 outside the root.
    """

    learning_rate: Schedule = hyperparameter(7e-4, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0")
    gae_lambda: float = hyperparameter(1.0, "trade-off of bias and variance in GAE, 0 to 1")

    OPTIMIZER: ClassVar[str] = "rmsprop"

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return - mean(advantage x log-prob) + vf_coef x mean squared value error - ent_coef x mean entropy."""
        from actor_learner.algorithms.returns import mean_valid

        policy_loss = -mean_valid(self.normalized_advantage(minibatch) * outputs["log_prob"], minibatch["valid"])
        return self.actor_critic_loss(policy_loss, outputs["value"], outputs, minibatch)
