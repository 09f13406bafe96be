"""Deep Q-learning of distributions: of the return's quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import Loss, Models
from actor_learner.algorithms.off_policy.dqn import DQN
from actor_learner.algorithms.quantiles import quantile_loss
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_count, refusal
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class QRDQN(DQN):
    """DQN with quantile regression (arXiv:1710.10044), for Discrete action spaces, with or without masks.

    The network has a further output `quantiles [N, n, quantiles]` of each action's return. Their means are the values
    by which actions are chosen. All flags of DQN stay. Step size, Adam's epsilon, the final epsilon and gradients that
    aren't clipped are sb3-contrib's; it has 200 quantiles.
    """

    learning_rate: Schedule = hyperparameter(5e-5, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0")
    max_grad_norm: float | None = hyperparameter(None, "largest global norm of a gradient; none: not clipped")
    exploration_final_eps: float = hyperparameter(0.01, "probability of a random action after its fall")
    quantiles: int = hyperparameter(50, "quantiles of the return of each action")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("quantiles", self.quantiles)
        if self.loss_function != "huber":
            raise refusal("loss_function", "'huber' for QRDQN", self.loss_function)

    def network_options(self, action: Any) -> dict[str, Any]:
        return {**super().network_options(action), "quantiles": self.quantiles}

    def further_outputs(self, action: Any) -> Mapping[str, tuple[int, ...]]:
        return {"quantiles": (int(action.leaves[0].space.n), self.quantiles)}

    @property
    def adam_epsilon(self) -> float:
        """0.01 / `minibatch_size`: the paper's for 32 rows."""
        return 0.01 / self.minibatch_size

    def loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the mean loss of rows, weighted by importance: quantiles' losses, summed (arXiv:1710.10044, eq. 10).

        The error of a row, for priorities, is its loss: it doesn't vanish where the mean is right and the spread isn't.
        """
        from keras import ops

        target = ops.stop_gradient(self.target_values(models, minibatch))
        chosen = self.chosen_values(models, minibatch)
        of_row = ops.sum(quantile_loss(target, chosen, models.fused), axis=-1)
        loss = ops.mean(minibatch["weight"] * of_row)
        error = ops.mean(target, axis=-1) - ops.mean(chosen, axis=-1)
        metrics = {"loss": loss, "q_value": ops.mean(chosen), "td_error": ops.mean(ops.abs(error))}
        return Loss(loss, metrics, {"error": of_row})

    def action_values(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the quantiles `[M, n, N]` that are learned, of a network's outputs."""
        return outputs["quantiles"]
