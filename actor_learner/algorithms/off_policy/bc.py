"""Behaviour cloning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import NETWORK, Loss, LossGroup, Models, OffPolicy
from actor_learner.system.fields import check_number, refusal
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class BC(OffPolicy):
    """Behaviour cloning: supervised learning of the actions in a buffer, for every action space.

    Of Boxes with bounds the network gives means within them, as in TD3, and the loss is the squared error of actions
    scaled to -1 and 1, summed over their numbers. A density would be unbounded where recorded actions lie on the
    bounds. Of other spaces the loss is minus the log-probability of the recorded action, among allowed choices.

    The policy learns from the buffer alone: `offline_steps`, with `total_steps=0`.
    """

    action_noise: float = hyperparameter(
        0.1, "standard deviation of a saved policy's noise, in halves of the distance between the bounds"
    )

    UNUSED: ClassVar[tuple[str, ...]] = ("learning_starts", "updates_per_step", "gamma", "n_step", "tau", "clip_reward")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("action_noise", self.action_noise, least=0)

    def check_config(self, config: Any) -> None:
        super().check_config(config)
        if config.total_steps:
            expected = "0 for BC, which learns from recorded actions alone: set `offline_steps`"
            raise refusal("total_steps", expected, config.total_steps)

    def check_distribution(self, name: str) -> None:
        self._refuse_greedy(name)

    def network_options(self, action: Any) -> dict[str, Any]:
        bounded = all(leaf.is_bounded_box for leaf in action.leaves)
        return {"action_noise": self.action_noise} if bounded else {}

    def groups(self) -> tuple[LossGroup, ...]:
        return (LossGroup(NETWORK, self.loss),)

    def loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the mean squared error of scaled actions, or the mean of minus the log-probability."""
        from keras import ops

        parameters = models.parameters(minibatch["observation"])
        if models.bounded:
            of_row = ops.sum(ops.square(models.mean(parameters) - models.scaled(minibatch["action"])), axis=-1)
        else:
            of_row = -models.log_prob(parameters, minibatch["action"], minibatch.get("action_mask"))
        loss = ops.mean(minibatch["weight"] * of_row)
        return Loss(loss, {"loss": loss}, {"error": of_row})
