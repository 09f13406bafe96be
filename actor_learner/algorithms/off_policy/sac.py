"""Soft actor-critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from actor_learner.algorithms.hyperparameters import Metric, hyperparameter
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK, Loss, LossGroup, Models, OffPolicy
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_count, check_number, refusal
from actor_learner.system.types import Tensor

_TEMPERATURE = "log_ent_coef"
_AUTO = "auto"
_SHARE = 0.98
"""Of the entropy of even choices: what "auto" aims at (arXiv:1910.07207, in its code)."""


@dataclass(frozen=True, kw_only=True)
class SAC(OffPolicy):
    """Soft actor-critic with two critics and a temperature that is learned (arXiv:1812.05905).

    For Boxes with bounds, or for a Discrete space (arXiv:1910.07207), with or without masks: critics then return a
    value of each choice, and what is a sample's for Boxes is the mean over all choices, by the policy.

    Defaults are SB3's. As in SB3, entropies are those of actions scaled to -1 and 1, for any bounds of the space. SB3
    draws uniform actions until `learning_starts`; here the untrained policy acts, whose squashed standard normals are
    nearly uniform.
    """

    learning_rate: Schedule = hyperparameter(3e-4, "step size of the optimizers, or a schedule: linear_1e-3 falls to 0")
    ent_coef: float | str = hyperparameter(_AUTO, "weight of the entropy; auto: learned; auto_0.1: learned, from 0.1")
    target_entropy: float | str = hyperparameter(
        _AUTO, "entropy that auto aims at; auto: minus the action's dimensions; Discrete: 0.98 of the largest"
    )
    target_update_interval: int = hyperparameter(1, "gradient steps from one move of the targets to the next")

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "ent_coef": Metric("weight of the entropy"),
        "ent_coef_loss": Metric("loss of the logarithm of `ent_coef`, if that is learned"),
    }
    DISTRIBUTION: ClassVar[tuple[str, str]] = (
        "squashed",
        "whose actions are squashed Gaussians, behind al.ActionDistribution('squashed'), for a Box with bounds",
    )
    NUM_CRITICS: ClassVar[int] = 2
    TAKES_CHOICES: ClassVar[bool] = True
    TARGETS: ClassVar[tuple[str, ...]] = (CRITICS,)
    NOISE: ClassVar[tuple[str, ...]] = ("next_action", "action")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("target_update_interval", self.target_update_interval)
        if isinstance(self.ent_coef, str):
            self._first_ent_coef()
        else:
            check_number("ent_coef", self.ent_coef, least=0)
        if self.target_entropy != _AUTO:
            check_number("target_entropy", self.target_entropy)

    def network_options(self, action: Any) -> dict[str, Any]:
        squashed = {} if action.leaves[0].is_discrete else {"distribution": "squashed"}
        return {**squashed, "state_dependent_std": True}

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy for a resumed run, whose temperature goes on as it was learned, or stays a number."""
        new = super().changed(changes)
        if new.ent_coef != self.ent_coef and any(isinstance(each.ent_coef, str) for each in (self, new)):
            raise refusal("ent_coef", "another number, where it was a number: a learned one goes on", new.ent_coef)
        return new

    @property
    def moves_every(self) -> int:
        return self.target_update_interval

    @property
    def inherits_variables(self) -> bool:
        return self.ent_coef == _AUTO

    def make_variables(self, action_size: int) -> dict[str, Any]:
        if not isinstance(self.ent_coef, str):
            return {}
        import keras

        return {_TEMPERATURE: keras.Variable(math.log(self._first_ent_coef()), dtype="float32", name=_TEMPERATURE)}

    def _first_ent_coef(self) -> float:
        """Return the first coefficient of "auto" or "auto_0.1"; raises ValueError for other texts."""
        name, _, first = str(self.ent_coef).partition("_")
        try:
            value = float(first or 1.0)
        except ValueError:
            value = math.nan
        if name != _AUTO or not 0 < value < math.inf:
            raise refusal("ent_coef", "a number of at least 0, 'auto', or 'auto_' and a first number", self.ent_coef)
        return value

    def groups(self) -> tuple[LossGroup, ...]:
        """Return the critics, the network, and the temperature, if it is learned: in SB3's order of their steps."""
        groups = (LossGroup(CRITICS, self.critic_loss), LossGroup(NETWORK, self.policy_loss))
        learned = (LossGroup(_TEMPERATURE, self.temperature_loss),) if isinstance(self.ent_coef, str) else ()
        return (*groups, *learned)

    def critic_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return half of the critics' squared errors, summed over critics (arXiv:1812.05905, eq. 5 and 6)."""
        from keras import ops

        action, log_prob, ent_coef = self.next_action(models, minibatch)
        values, following = self._values(models, minibatch, action)
        value = models.expected(ops.min(following, axis=0), action) - ent_coef * log_prob
        target = ops.stop_gradient(minibatch["reward"] + minibatch["discount"] * value)
        error = target - models.expected(values, models.scaled(minibatch["action"]))
        loss = 0.5 * ops.sum(ops.mean(minibatch["weight"] * ops.square(error), axis=-1))
        metrics = {"critic_loss": loss, "q_value": ops.mean(values), "ent_coef": ent_coef}
        return Loss(loss, metrics, {"error": ops.mean(error, axis=0), "ent_coef": ent_coef})

    def _values(self, models: Models, minibatch: Mapping[str, Tensor], next_action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the rows' actions, and the targets' values of the next ones, `[critics, M]` each.

        Those of a Discrete space are of all choices, `[critics, M, n]`.
        """
        following = models.critic_values(minibatch["next_observation"], next_action, target=True)
        return models.critic_values(minibatch["observation"], models.scaled(minibatch["action"])), following

    def next_action(self, models: Models, minibatch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return new actions for the next observations, `[M, d]`, their log-density `[M]`, and the entropy's weight.

        Of a Discrete space: the probabilities of all choices, `[M, n]`, and the mean of their logarithms.
        """
        from keras import ops

        parameters = models.parameters(minibatch["next_observation"])
        noise = self.noise(minibatch, "next_action")
        action, log_prob = models.sample(parameters, noise, minibatch.get("next_action_mask"))
        learned = models.variables.get(_TEMPERATURE)
        ent_coef = ops.convert_to_tensor(self.ent_coef, "float32") if learned is None else ops.exp(learned.value)
        return action, log_prob, ent_coef

    def policy_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the mean of ent_coef x log-density - `joint_value`, for new actions (arXiv:1812.05905, eq. 7)."""
        from keras import ops

        observation = minibatch["observation"]
        noise, mask = self.noise(minibatch, "action"), minibatch.get("action_mask")
        action, log_prob = models.sample(models.parameters(observation, training=True), noise, mask)
        value = models.expected(self.joint_value(models.critic_values(observation, action)), action)
        loss = ops.mean(minibatch["ent_coef"] * log_prob - value)
        return Loss(loss, {"policy_loss": loss, "entropy": -ops.mean(log_prob)}, {"log_prob": log_prob})

    def joint_value(self, values: Tensor) -> Tensor:
        """Return the value `[M]` that the policy raises, of those by all critics `[critics, M]`: the least."""
        from keras import ops

        return ops.min(values, axis=0)

    def temperature_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return -log ent_coef x the mean of log-density + target entropy (arXiv:1812.05905, eq. 18, as SB3 has it)."""
        from keras import ops

        wanted = -float(models.action_size) if self.target_entropy == _AUTO else float(self.target_entropy)
        if models.choices and self.target_entropy == _AUTO:
            mask = ops.cast(minibatch.get("action_mask", np.ones((1, models.choices))), "float32")
            wanted = _SHARE * ops.log(ops.sum(mask, axis=-1))
        log_ent_coef = models.variables[_TEMPERATURE].value
        loss = -log_ent_coef * ops.mean(minibatch["log_prob"] + wanted)
        return Loss(loss, {"ent_coef_loss": loss})
