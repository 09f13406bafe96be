"""What algorithms have in common: hyperparameters, their validation, and advantages by GAE."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actor_learner.algorithms import optimizers, schedules
from actor_learner.algorithms.optimizers import Optimizer
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import NamedFields, check_count, check_flag, check_number, refusal

if TYPE_CHECKING:
    import keras

    from actor_learner.algorithms.returns import VTrace

Tensor = Any


def hyperparameter(default: Any, documentation: str) -> Any:
    """A dataclass field with the line of documentation that the command line shows."""
    return field(default=default, metadata={"help": documentation})


@dataclass(frozen=True, kw_only=True)
class Algorithm(NamedFields, ABC):
    """Hyperparameters that every actor-critic algorithm here has.

    An algorithm of one's own subclasses this, `A2C` or `PPO`, as a frozen dataclass, and overrides
    `loss`, `targets` or both. Both are pure functions, traced into the compiled update; in them,
    fields named in `SCHEDULED` are tensors with the value of the moment.

    Raises ValueError for a value out of range.
    """

    learning_rate: Schedule = hyperparameter(3e-4, "step size of the optimizer, or a schedule")
    gamma: float = hyperparameter(0.99, "discount factor, 0 to 1")
    gae_lambda: float = hyperparameter(0.95, "trade-off of bias and variance in GAE, 0 to 1")
    ent_coef: Schedule = hyperparameter(0.0, "weight of the entropy bonus, or a schedule")
    vf_coef: float = hyperparameter(0.5, "weight of the value loss")
    max_grad_norm: float | None = hyperparameter(0.5, "largest global norm of the gradient; none: not clipped")
    normalize_advantage: bool = hyperparameter(False, "normalize advantages within each minibatch")
    normalize_reward: bool = hyperparameter(False, "divide rewards by the running std of the discounted return")
    clip_reward: str | float | None = hyperparameter(None, "'sign', or a bound that rewards are clipped to")
    epochs: int = hyperparameter(1, "passes over each batch")
    minibatch_size: int | None = hyperparameter(None, "rows in a minibatch; none: the whole batch")
    optimizer: Optimizer = hyperparameter(
        None, "adam or rmsprop; none: the algorithm's own; in code also a Keras optimizer to clone, with its own rate"
    )

    WHOSE: ClassVar[str] = "the algorithm"

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "ent_coef")
    """Fields that may be schedules; each update sees them as tensors."""

    NEVER_NEGATIVE: ClassVar[tuple[str, ...]] = ("learning_rate",)
    """Those among them of which a schedule must give no negative value."""

    @property
    def name(self) -> str:
        """Lower-case name of the class, as used in run directories."""
        return type(self).__name__.lower()

    def __post_init__(self) -> None:
        """Checks ranges, and turns NumPy's numbers into Python's."""
        for name, value in [(f.name, getattr(self, f.name)) for f in fields(self)]:
            if isinstance(value, np.number):
                object.__setattr__(self, name, value.item())
        self._check_schedules()
        self._check_number("learning_rate", least=0)
        self._check_number("ent_coef")
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), least=0, most=1)
        check_number("vf_coef", self.vf_coef)
        for name in ("normalize_advantage", "normalize_reward"):
            check_flag(name, getattr(self, name))
        if self.max_grad_norm != math.inf:
            check_number("max_grad_norm", self.max_grad_norm, above=0, optional=True)
        check_count("epochs", self.epochs)
        check_count("minibatch_size", self.minibatch_size, optional=True)
        clip = self.clip_reward
        if clip is not None and clip != "sign" and not (isinstance(clip, (int, float)) and clip > 0):
            raise refusal("clip_reward", "None, 'sign' or a bound above 0", clip)
        self._check_optimizer()

    def _check_number(
        self, name: str, *, least: float | None = None, above: float | None = None, optional: bool = False
    ) -> None:
        """Check a number that may be a schedule, which is checked when it is evaluated."""
        value = getattr(self, name)
        if not (name in self.SCHEDULED and schedules.is_schedule(value)):
            check_number(name, value, least=least, above=above, optional=optional or self.default(name) is None)

    def _check_schedules(self) -> None:
        """Their form, and what they give at the start; a Keras schedule's values must wait until TensorFlow may run."""
        for name in self.SCHEDULED:
            value = getattr(self, name)
            if value is None and self.default(name) is None:
                continue
            schedules.check_schedule(name, value, self.default(name))
            if schedules.needs_total_steps(value):
                self._evaluate(name, progress_remaining=1.0, env_steps=0)

    def _check_optimizer(self) -> None:
        if self.optimizer is None or self.optimizer in tuple(optimizers.BY_NAME):
            return
        if isinstance(self.optimizer, (str, type)) or not hasattr(self.optimizer, "get_config"):
            names = ", ".join(map(repr, optimizers.BY_NAME))
            raise refusal("optimizer", f"{names} or a keras.optimizers.Optimizer", self.optimizer)
        for name in ("learning_rate", "max_grad_norm"):
            if getattr(self, name) != self.default(name):
                raise ValueError(
                    f"`{name}` belongs in the optimizer when one is passed in. "
                    f"Received: optimizer={type(self.optimizer).__name__}, {name}={getattr(self, name)!r}"
                )

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a hyperparameter."""
        return next(f.default for f in fields(cls) if f.name == name)

    def at(self, values: Mapping[str, Tensor]) -> Algorithm:
        """This algorithm with scheduled fields replaced by the (tensor) values of one update, unchecked."""
        instance = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def scheduled_values(self, *, progress_remaining: float, env_steps: int) -> dict[str, float]:
        """What the fields in `SCHEDULED` are worth now, without those that are None.

        Raises ValueError where a schedule gives a negative rate or something that isn't finite.
        """
        return {
            name: self._evaluate(name, progress_remaining=progress_remaining, env_steps=env_steps)
            for name in self.SCHEDULED
            if getattr(self, name) is not None
        }

    def _evaluate(self, name: str, *, progress_remaining: float, env_steps: int) -> float:
        return schedules.evaluate_schedule(
            name,
            getattr(self, name),
            self.default(name),
            progress_remaining=progress_remaining,
            env_steps=env_steps,
            least=0.0 if name in self.NEVER_NEGATIVE else -math.inf,
        )

    def check_total_steps(self, total_steps: int | None) -> None:
        """Called before a run, whose length may not be known.

        Raises ValueError if a schedule needs to know it and it isn't known, or if one starts with what can't be;
        warns of one that ends early.
        """
        for name in self.SCHEDULED:
            value = getattr(self, name)
            if total_steps is None and schedules.needs_total_steps(value):
                raise ValueError(
                    f"`{name}` is a schedule of what remains of a run, which needs `total_steps`. "
                    f"Received: {name}={value!r}, total_steps=None"
                )
            if total_steps is not None:
                schedules.warn_of_early_end(name, value, total_steps)
        self.scheduled_values(progress_remaining=1.0, env_steps=0)

    @property
    def uses_vtrace(self) -> bool:
        """Whether targets are corrected along the unroll for actors with older weights."""
        return False

    def check_unroll_length(self, unroll_length: int) -> None:
        """Raises ValueError for unrolls of a single step, along which V-trace has nothing to correct."""
        if self.uses_vtrace and unroll_length < 2:
            raise ValueError(
                f"`unroll_length` must be at least 2 for {type(self).__name__} with V-trace, which corrects along an "
                f"unroll. Received: unroll_length={unroll_length}"
            )

    @property
    def clones_optimizer(self) -> bool:
        """Whether a Keras optimizer was passed in, which sets learning rate and clipping itself."""
        return self.optimizer is not None and not isinstance(self.optimizer, str)

    @property
    def changes_learning_rate(self) -> bool:
        """Whether the learning rate is written before each update, so that no callback may set it."""
        return not self.clones_optimizer and schedules.is_schedule(self.learning_rate)

    def adapted_learning_rate(self, learning_rate: float, metrics: Mapping[str, float]) -> float | None:
        """The rate for the next update, from the one in force and what this update reports. None: as it is."""
        return None

    def make_optimizer(self) -> keras.Optimizer:
        """A new optimizer: a clone of the one passed in, the one that is named, or `default_optimizer`."""
        if self.optimizer is None:
            return self.default_optimizer()
        if isinstance(self.optimizer, str):
            return optimizers.BY_NAME[self.optimizer](self.initial_learning_rate, self.max_grad_norm)
        return type(self.optimizer).from_config(self.optimizer.get_config())

    def default_optimizer(self) -> keras.Optimizer:
        """Adam with epsilon 1e-5, clipped by the global norm."""
        return optimizers.adam(self.initial_learning_rate, self.max_grad_norm)

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate before the first update."""
        return self._evaluate("learning_rate", progress_remaining=1.0, env_steps=0)

    def targets(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Tensor]:
        """What the loss needs of a whole batch: `advantage` and `return`, each `[T, B]`.

        batch: the trajectory's fields, `[T, B, ...]`, rewards scaled, and `target_log_prob [T, B]` of the actions
        under the network before the update; value: `[T + 1, B]`. Every field joins the minibatches.
        """
        from actor_learner.algorithms.returns import gae

        advantage = gae(*_rows(batch, value), gamma=self.gamma, gae_lambda=self.gae_lambda)
        return {"advantage": advantage, "return": advantage + value[:-1]}

    def vtrace_targets(
        self,
        batch: Mapping[str, Tensor],
        value: Tensor,
        *,
        rho_clip: float | None = 1.0,
        c_clip: float | None = 1.0,
        pg_rho_clip: float | None = 1.0,
    ) -> VTrace:
        """V-trace of a whole batch with this algorithm's gamma and lambda; arguments as for `targets`."""
        from actor_learner.algorithms.returns import vtrace

        return vtrace(
            *_rows(batch, value),
            batch["target_log_prob"] - batch["behaviour_log_prob"],
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            rho_clip=rho_clip,
            c_clip=c_clip,
            pg_rho_clip=pg_rho_clip,
        )

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimize, and scalars to report.

        outputs: `log_prob [N]` of the minibatch's actions, `entropy [N]`, `value [N]`, `parameters [N, P]`
        and the network's further outputs. minibatch: `observation`, `action`, `behaviour_log_prob`,
        `target_log_prob` and `value` (before the update), `valid`, and whatever `targets` gave; `[N, ...]` each.
        """

    def normalized_advantage(self, minibatch: Mapping[str, Tensor]) -> Tensor:
        """The minibatch's advantages `[N]`, normalized over its valid rows if `normalize_advantage` says so."""
        from actor_learner.algorithms.returns import normalize_valid

        advantage = minibatch["advantage"]
        return normalize_valid(advantage, minibatch["valid"]) if self.normalize_advantage else advantage

    def actor_critic_loss(
        self, policy_loss: Tensor, value: Tensor, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """policy_loss + vf_coef x mean squared error of `value [N]` - ent_coef x mean entropy; and what is reported.

        `approx_kl` is the mean divergence from the behaviour policy.
        """
        from keras import ops

        from actor_learner.algorithms.returns import mean_divergence, mean_valid

        valid = minibatch["valid"]
        value_loss = mean_valid(ops.square(minibatch["return"] - value), valid)
        entropy = mean_valid(outputs["entropy"], valid)
        log_ratio = outputs["log_prob"] - minibatch["behaviour_log_prob"]
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean_divergence(log_ratio, valid),
        }


def divergence_metric(names: Collection[str]) -> str | None:
    """Which of the metrics `target_kl` and `desired_kl` go by: the one against the policy before the update.

    A loss of one's own may report `approx_kl` alone, in which the age of the actors' weights counts too.
    """
    return next((name for name in ("update_kl", "approx_kl") if name in names), None)


def _rows(batch: Mapping[str, Tensor], value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `gae` and `vtrace` take first, in their order."""
    return (
        batch["reward"],
        value,
        batch["terminated"],
        batch["truncated"],
        batch["truncation_value"],
        batch["valid"],
    )
