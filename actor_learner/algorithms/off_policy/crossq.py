"""Soft actor-critic without targets: critics and policy that normalize by batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import LossGroup, Models
from actor_learner.algorithms.off_policy.sac import SAC
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_count, refusal
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class CrossQ(SAC):
    """SAC whose critics normalize by batches and need no targets (arXiv:1902.05605), for Box action spaces with bounds.

    The critics see a minibatch's actions and the policy's next ones in one batch, in training mode, so that both have
    the same statistics. As in SBX (araffin/sbx, `crossq.py`), the policy is in training mode in its own loss alone, and
    the critics are in inference mode there; policy and temperature are stepped each `policy_delay` gradient steps.
    Defaults are the paper's, but for the critics' width. Actors and exported policies use the running statistics.
    """

    learning_rate: Schedule = hyperparameter(1e-3, "step size of the optimizers, or a schedule: linear_1e-3 falls to 0")
    policy_delay: int = hyperparameter(3, "gradient steps of the critics for each step of policy and temperature")
    critic_units: int | None = hyperparameter(
        None, "units of each of two hidden layers of critics, 2048 in the paper; none: as `hidden_sizes`"
    )

    TARGETS: ClassVar[tuple[str, ...]] = ()
    ADAM_BETA_1: ClassVar[float] = 0.5
    BATCH_STATISTICS: ClassVar[bool] = True
    TAKES_CHOICES: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("policy_delay", self.policy_delay)
        check_count("critic_units", self.critic_units, optional=True)
        for name in ("tau", "target_update_interval"):
            if getattr(self, name) != self.default(name):
                raise refusal(name, "left out for CrossQ, which has no targets", getattr(self, name))

    def network_options(self, action: Any) -> dict[str, Any]:
        return {**super().network_options(action), "batch_norm": True}

    @property
    def critic_options(self) -> Mapping[str, Any]:
        sizes = {} if self.critic_units is None else {"hidden_sizes": (self.critic_units,) * 2}
        return {**super().critic_options, "batch_norm": True, **sizes}

    def groups(self) -> tuple[LossGroup, ...]:
        critics, *others = super().groups()
        return (critics, *(group._replace(every=self.policy_delay) for group in others))

    def _values(self, models: Models, minibatch: Mapping[str, Tensor], next_action: Tensor) -> tuple[Tensor, Tensor]:
        from keras import ops, tree

        observation = tree.map_structure(
            lambda *rows: ops.concatenate(rows), minibatch["observation"], minibatch["next_observation"]
        )
        action = ops.concatenate([models.scaled(minibatch["action"]), next_action])
        values, following = ops.split(models.critic_values(observation, action, training=True), 2, axis=1)
        return values, following
