"""Advantage actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actor_learner.algorithms.base import Algorithm, hyperparameter
from actor_learner.algorithms.schedules import Schedule

if TYPE_CHECKING:
    import keras

Tensor = Any


@dataclass(frozen=True, kw_only=True)
class A2C(Algorithm):
    """Advantage actor-critic (arXiv:1602.01783, synchronous): one gradient step on each whole batch.

    Defaults are SB3's: learning rate 7e-4, gamma .99, lambda 1, vf .5, ent 0, gradient norm .5, no
    advantage normalization, and RMSprop with alpha .99 and epsilon 1e-5 outside the root.
    """

    learning_rate: Schedule = hyperparameter(7e-4, "step size of the optimizer, or a schedule")
    gae_lambda: float = hyperparameter(1.0, "trade-off of bias and variance in GAE, 0 to 1")

    def default_optimizer(self) -> keras.Optimizer:
        """RMSprop as torch's with epsilon 1e-5 outside the root, which is Keras's 1e-10 inside it."""
        import keras

        return keras.optimizers.RMSprop(
            self.initial_learning_rate, rho=0.99, epsilon=1e-10, global_clipnorm=self.max_grad_norm
        )

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """- mean(advantage x log-prob) + vf_coef x mean squared value error - ent_coef x mean entropy."""
        from keras import ops

        from actor_learner.returns import mean_valid, normalize_valid

        valid, advantage = minibatch["valid"], minibatch["advantage"]
        if self.normalize_advantage:
            advantage = normalize_valid(advantage, valid)
        policy_loss = -mean_valid(advantage * outputs["log_prob"], valid)
        value_loss = mean_valid(ops.square(minibatch["return"] - outputs["value"]), valid)
        entropy = mean_valid(outputs["entropy"], valid)
        log_ratio = outputs["log_prob"] - minibatch["behaviour_log_prob"]
        approx_kl = mean_valid(ops.exp(log_ratio) - 1.0 - log_ratio, valid)
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": approx_kl,
        }
