"""Deep Q-learning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import NETWORK, Loss, LossGroup, Models, OffPolicy
from actor_learner.algorithms.q_learning import QLearning, allowed_only, value_of
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_choice, check_count, check_flag, check_number
from actor_learner.system.types import Tensor

_FEW_STEPS = 16
"""Between two copies of the targets: CartPole with SB3 Zoo's settings diverged with 8, and learned with 128."""


@dataclass(frozen=True, kw_only=True)
class DQN(QLearning, OffPolicy):
    """Deep Q-learning (Mnih et al. 2015), for Discrete action spaces, with or without masks.

    Each addition is a flag: `double` (arXiv:1509.06461, eq. 4), `dueling` (arXiv:1511.06581, eq. 9), `prioritized`
    (arXiv:1511.05952), `n_step`. Defaults are SB3's. Epsilon is 1 until `learning_starts`; it falls from
    `exploration_initial_eps` to `exploration_final_eps` in the first `exploration_fraction` of the run.

    Every `target_update_interval` env steps, at the next update, the weights are copied to the targets. With `tau`
    below 1, the targets move by this fraction instead, once for each interval that has passed.
    """

    learning_rate: Schedule = hyperparameter(1e-4, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0")
    minibatch_size: int = hyperparameter(32, "rows in a minibatch")
    updates_per_step: float = hyperparameter(0.25, "gradient steps per env step, after learning_starts")
    tau: float = hyperparameter(1.0, "fraction by which each move brings the targets to the weights; 1: copies")
    target_update_interval: int = hyperparameter(10_000, "env steps from one move of the targets to the next")
    max_grad_norm: float | None = hyperparameter(10.0, "largest global norm of a gradient; none: not clipped")
    double: bool = hyperparameter(False, "choose the next action by the weights, and take its value from the targets")
    prioritized: bool = hyperparameter(False, "draw rows in proportion to a power of their errors")
    priority_alpha: float = hyperparameter(0.6, "with prioritized: that power; 0 draws uniformly")
    priority_beta: float = hyperparameter(
        0.4, "with prioritized: exponent of the weights that correct for it; it grows to 1"
    )
    loss_function: Literal["huber", "squared"] = hyperparameter("huber", "loss of the temporal-difference errors")

    TARGETS: ClassVar[tuple[str, ...]] = (NETWORK,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("target_update_interval", self.target_update_interval)
        for name in ("priority_alpha", "priority_beta"):
            check_number(name, getattr(self, name), least=0, most=1)
        for name in ("double", "prioritized"):
            check_flag(name, getattr(self, name))
        check_choice("loss_function", self.loss_function, ("huber", "squared"))

    def check_total_steps(self, total_steps: int | None) -> None:
        super().check_total_steps(total_steps)
        if self.prioritized:
            self._require_total_steps("prioritized", total_steps)

    def check_batch(self, env_steps: int, total_steps: int) -> None:
        """Warn if targets never move, or are copied so often that values may grow without bound."""
        if self.target_update_interval >= total_steps:
            warnings.warn(
                "Targets never move, so that values stay near the untrained network's: lower `target_update_interval`. "
                f"Received: target_update_interval={self.target_update_interval}, total_steps={total_steps}",
                stacklevel=2,
            )
        between = max(self.target_update_interval, env_steps) * self.updates_per_step
        if self.tau == 1.0 and between < _FEW_STEPS:
            warnings.warn(
                f"Targets are copied after {between:g} gradient steps: values often grow without bound below "
                f"{_FEW_STEPS}. Raise `target_update_interval`, or the env steps of a batch (num_envs x unroll_length, "
                f"SB3's train_freq). Received: target_update_interval={self.target_update_interval}, "
                f"updates_per_step={self.updates_per_step:g}, {env_steps} env steps in a batch",
                stacklevel=2,
            )

    def epsilon(self, env_steps: int, progress_remaining: float) -> float:
        return 1.0 if env_steps < self.learning_starts else super().epsilon(env_steps, progress_remaining)

    @property
    def priority_exponent(self) -> float | None:
        return self.priority_alpha if self.prioritized else None

    def importance_exponent(self, progress_remaining: float) -> float:
        """Return beta, which rises to 1 with the run (arXiv:1511.05952, section 3.4)."""
        return 1.0 - (1.0 - self.priority_beta) * progress_remaining

    def move_before_update(self, before: int, after: int) -> float:
        """Return 1 - (1 - tau)^n for n passed multiples of `target_update_interval`."""
        passed = after // self.target_update_interval - before // self.target_update_interval
        return 1.0 - (1.0 - self.tau) ** passed

    def groups(self) -> tuple[LossGroup, ...]:
        return (LossGroup(NETWORK, self.loss),)

    def loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the mean error of the chosen actions' values, weighted by importance."""
        from keras import ops

        target = ops.stop_gradient(self.target_values(models, minibatch))
        chosen = self.chosen_values(models, minibatch)
        error = target - chosen
        loss = ops.mean(minibatch["weight"] * self._error_loss(error))
        metrics = {"loss": loss, "q_value": ops.mean(chosen), "td_error": ops.mean(ops.abs(error))}
        return Loss(loss, metrics, {"error": error})

    def chosen_values(self, models: Models, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the values of the rows' actions by the weights, `[M]`, or `[M, N]` of N quantiles."""
        return value_of(self.action_values(models.outputs(minibatch["observation"])), minibatch["action"])

    def target_values(self, models: Models, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return what the values of the rows' actions are to be, `[M]`, or `[M, N]` of N quantiles.

        It is reward + discount x max Q(next observation), by the target network (Mnih et al. 2015, eq. 2), over allowed
        actions. With `double`, it has the target network's value of the action that the weights prefer. No gradient
        passes through it.
        """
        from keras import ops

        following = models.outputs(minibatch["next_observation"], target=True)
        preferred = models.outputs(minibatch["next_observation"]) if self.double else following
        allowed = allowed_only(preferred["parameters"][:, :-1], minibatch.get("next_action_mask"))
        value = value_of(self.action_values(following), ops.argmax(allowed, axis=-1))
        of_row = (-1,) + (1,) * (len(value.shape) - 1)
        reward, discount = (ops.reshape(minibatch[name], of_row) for name in ("reward", "discount"))
        return reward + discount * value

    def action_values(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the values `[M, n]` of all actions, or `[M, n, N]` of N quantiles, of a network's outputs."""
        return outputs["parameters"][:, :-1]  # the last is epsilon

    def _error_loss(self, error: Tensor) -> Tensor:
        """Return the loss of each error: Huber's with its bend at 1, or half of the square."""
        from keras import ops

        if self.loss_function == "squared":
            return 0.5 * ops.square(error)
        size = ops.abs(error)
        return ops.where(size < 1.0, 0.5 * ops.square(error), size - 0.5)
