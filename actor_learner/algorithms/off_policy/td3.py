"""Twin delayed deep deterministic policy gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK, Loss, LossGroup, Models, OffPolicy
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_count, check_number
from actor_learner.system.types import Tensor


@dataclass(frozen=True, kw_only=True)
class TD3(OffPolicy):
    """Twin delayed DDPG (arXiv:1802.09477), for Box action spaces with bounds.

    Defaults are SB3's, except `action_noise`: here it is a number, in halves of the distance between the bounds, and
    has the paper's value. SB3 draws uniform actions until `learning_starts`; here the untrained policy acts with noise.
    """

    learning_rate: Schedule = hyperparameter(1e-3, "step size of the optimizers, or a schedule: linear_1e-3 falls to 0")
    action_noise: float = hyperparameter(
        0.1, "standard deviation of exploration noise, in halves of the distance between the bounds"
    )
    policy_delay: int = hyperparameter(2, "gradient steps of the critics for each step of the policy")
    target_policy_noise: float = hyperparameter(0.2, "standard deviation of the noise on the targets' actions")
    target_noise_clip: float = hyperparameter(0.5, "bound of the noise on the targets' actions")

    DISTRIBUTION: ClassVar[tuple[str, str]] = (
        "gaussian",
        "whose actions are Gaussians around the policy's, for a Box with bounds",
    )
    NUM_CRITICS: ClassVar[int] = 2
    TARGETS: ClassVar[tuple[str, ...]] = (NETWORK, CRITICS)
    NOISE: ClassVar[tuple[str, ...]] = ("next_action",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("policy_delay", self.policy_delay)
        for name in ("action_noise", "target_policy_noise", "target_noise_clip"):
            check_number(name, getattr(self, name), least=0)

    def network_options(self, action: Any) -> dict[str, Any]:
        return {"action_noise": self.action_noise}

    @property
    def moves_every(self) -> int:
        return self.policy_delay

    def groups(self) -> tuple[LossGroup, ...]:
        return LossGroup(CRITICS, self.critic_loss), LossGroup(NETWORK, self.policy_loss, every=self.policy_delay)

    def critic_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return the critics' mean squared errors, summed over critics (arXiv:1802.09477, eq. 10 and 14)."""
        from keras import ops

        following = minibatch["next_observation"]
        noise = self.noise(minibatch, "next_action") * self.target_policy_noise
        noise = ops.clip(noise, -self.target_noise_clip, self.target_noise_clip)
        action = ops.clip(models.mode(models.parameters(following, target=True)) + noise, -1.0, 1.0)
        value = ops.min(models.critic_values(following, action, target=True), axis=0)
        target = ops.stop_gradient(minibatch["reward"] + minibatch["discount"] * value)
        values = models.critic_values(minibatch["observation"], models.scaled(minibatch["action"]))
        error = target - values
        loss = ops.sum(ops.mean(minibatch["weight"] * ops.square(error), axis=-1))
        return Loss(loss, {"critic_loss": loss, "q_value": ops.mean(values)}, {"error": ops.mean(error, axis=0)})

    def policy_loss(self, models: Models, minibatch: Mapping[str, Tensor]) -> Loss:
        """Return minus the mean value of the policy's actions by the first critic."""
        from keras import ops

        observation = minibatch["observation"]
        loss = -ops.mean(models.critic_values(observation, models.mode(models.parameters(observation)))[0])
        return Loss(loss, {"policy_loss": loss})
