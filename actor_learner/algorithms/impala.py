"""IMPALA: an actor-critic whose targets allow for actors that act with older weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from actor_learner.algorithms.actor_critic import ActorCritic
from actor_learner.algorithms.hyperparameters import Metric, hyperparameter
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.types import Tensor

CLIP_TOLERANCE = 1e-3
"""On-policy weights are 1 but for rounding; weights clipped by less than this aren't reported as clipped."""


@dataclass(frozen=True, kw_only=True)
class Impala(ActorCritic):
    """Importance-weighted actor-learner (arXiv:1802.01561): one gradient step on each batch, with V-trace targets.

    Made for `max_policy_lag` above 0; above 1, actors are `asynchronous` by default, as in the paper. The importance
    weights are computed before the update; further epochs and minibatches reuse them.

    Defaults: learning rate 7e-4, gamma 0.99, lambda 1, all clips 1, vf 0.5, ent 0, gradient norm 0.5 and RMSprop, which
        equal `A2C` if the actors' weights are the learner's. One clipped step serves policy and value. If returns are
        far from 1, `normalize_reward` keeps the value's gradient from crowding out the policy's.

    Losses are means over valid rows, and the value loss is a plain squared error. Published settings are for losses
    that are sums over N = unroll length x batch size, with a factor of a half in the value loss. To convert them, keep
    the learning rate and the entropy cost; set `vf_coef` to baseline cost / 2 and `max_grad_norm` to theirs / N. Divide
    RMSprop's epsilon by N^2, because Keras adds it inside the root, as TensorFlow 1 did. (TorchBeast adds its epsilon
    outside the root: divide it by N, and square it.)

    Example:
        IMPALA's Atari settings (rate 6e-4, baseline cost 0.5, entropy cost 0.01, norm 40, epsilon 0.1; N = 20 x 32),
        for `unroll_length=20` and 32 environments. A rate inside an optimizer counts gradient steps: one an update.

        >>> updates = 50_000_000 // (20 * 32)  # 200 million frames, of which four make a step
        >>> rate = keras.optimizers.schedules.PolynomialDecay(6e-4, decay_steps=updates, end_learning_rate=0.0)
        >>> optimizer = keras.optimizers.RMSprop(rate, rho=0.99, epsilon=0.1 / 640**2, global_clipnorm=40 / 640)
        >>> algorithm = al.Impala(optimizer=optimizer, vf_coef=0.25, ent_coef=0.01, clip_reward=1.0)
    """

    learning_rate: Schedule = hyperparameter(7e-4, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0")
    gae_lambda: float = hyperparameter(1.0, "V-trace's lambda: trade-off of bias and variance, 0 to 1")
    rho_clip: float | None = hyperparameter(
        1.0,
        "bound of the importance weights of the value's targets; it decides whose value is learned; none: not clipped",
    )
    c_clip: float | None = hyperparameter(
        1.0,
        "bound of the importance weights along the trace, which decides the speed of learning; none: not clipped",
    )
    pg_rho_clip: float | None = hyperparameter(
        1.0, "bound of the importance weights of the policy gradient; none: not clipped"
    )

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "rho": Metric("mean importance weight of the batch, not above `rho_clip`; 1 on-policy"),
        "rho_clip_fraction": Metric("share of rows whose importance weight is clipped to `rho_clip`"),
    }
    OPTIMIZER: ClassVar[str] = "rmsprop"
    CONFIG_DEFAULTS = MappingProxyType({**ActorCritic.CONFIG_DEFAULTS, "max_policy_lag": 1, "asynchronous": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rho_clip", "c_clip", "pg_rho_clip"):
            self._check_number(name, above=0, optional=True)

    @property
    def uses_vtrace(self) -> bool:
        return True

    def targets(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Tensor]:
        """Return V-trace's `advantage` (with its clipped weight) and `return`, and `log_rho` of the weights."""
        result = self.vtrace_targets(
            batch, value, rho_clip=self.rho_clip, c_clip=self.c_clip, pg_rho_clip=self.pg_rho_clip
        )
        log_rho = batch["target_log_prob"] - batch["behaviour_log_prob"]
        return {"advantage": result.policy_gradient_advantage, "return": result.target, "log_rho": log_rho}

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return - mean(advantage x log-prob) + vf_coef x mean squared value error - ent_coef x mean entropy."""
        from keras import ops

        from actor_learner.algorithms.returns import clip_weight, mean_valid

        valid = minibatch["valid"]
        policy_loss = -mean_valid(self.normalized_advantage(minibatch) * outputs["log_prob"], valid)
        loss, metrics = self.actor_critic_loss(policy_loss, outputs["value"], outputs, minibatch)
        rho = ops.exp(minibatch["log_rho"])
        metrics = {**metrics, "rho": mean_valid(clip_weight(rho, self.rho_clip), valid)}
        if self.rho_clip is not None:
            clipped = ops.cast(rho > self.rho_clip + CLIP_TOLERANCE, "float32")
            metrics["rho_clip_fraction"] = mean_valid(clipped, valid)
        return loss, metrics
