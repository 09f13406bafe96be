"""What algorithms have in common: hyperparameters, their validation, and advantages by GAE."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actor_learner.algorithms import schedules
from actor_learner.algorithms.schedules import Schedule

if TYPE_CHECKING:
    import keras

Tensor = Any


def hyperparameter(default: Any, documentation: str) -> Any:
    """A dataclass field with the line of documentation that the command line shows."""
    return field(default=default, metadata={"help": documentation})


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
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
    optimizer: Any = hyperparameter(None, "a Keras optimizer to clone; sets the learning rate and clipping itself")

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "ent_coef")
    """Fields that may be schedules; each update sees them as tensors."""

    @property
    def name(self) -> str:
        """Lower-case name of the class, as used in run directories."""
        return type(self).__name__.lower()

    def __post_init__(self) -> None:
        """Checks ranges, and turns NumPy's numbers into Python's."""
        for name, value in [(f.name, getattr(self, f.name)) for f in fields(self)]:
            if isinstance(value, np.number):
                object.__setattr__(self, name, value.item())
        for name in self.SCHEDULED:
            if getattr(self, name) is not None or self.default(name) is not None:
                schedules.check_schedule(name, getattr(self, name), self.default(name))
        self._check_range("learning_rate", 0.0, math.inf)
        for name in ("gamma", "gae_lambda", "vf_coef"):
            if not isinstance(getattr(self, name), (int, float)):
                raise ValueError(f"`{name}` must be a number. Received: {name}={getattr(self, name)!r}")
        for name in ("gamma", "gae_lambda"):
            self._check_range(name, 0.0, 1.0)
        for name in ("normalize_advantage", "normalize_reward"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}")
        for name in ("ent_coef", "vf_coef"):
            self._check_range(name, -math.inf, math.inf)
        norm = self.max_grad_norm
        if norm is not None and not (isinstance(norm, (int, float)) and norm > 0):
            raise ValueError(f"`max_grad_norm` must be above 0, or None. Received: max_grad_norm={norm!r}")
        for name in ("epochs", "minibatch_size"):
            self._check_count(name)
        clip = self.clip_reward
        if clip is not None and clip != "sign" and not (isinstance(clip, (int, float)) and clip > 0):
            raise ValueError(f"`clip_reward` must be None, 'sign' or a bound above 0. Received: clip_reward={clip!r}")
        self._check_optimizer()

    def _check_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is None or schedules.is_schedule(value):
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            expected = f"between {low:g} and {high:g}" if math.isfinite(high) else f"a number, at least {low:g}"
            expected = expected if math.isfinite(low) else "a finite number"
            raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")
        if not math.isfinite(value):
            raise ValueError(f"`{name}` must be a finite number. Received: {name}={value!r}")

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"`{name}` must be an integer, at least 1. Received: {name}={value!r}")

    def _check_optimizer(self) -> None:
        if self.optimizer is None:
            return
        if isinstance(self.optimizer, type) or not hasattr(self.optimizer, "get_config"):
            raise ValueError(
                f"`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer={self.optimizer!r}"
            )
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
        values = {}
        for name in self.SCHEDULED:
            if getattr(self, name) is None:
                continue
            value = schedules.evaluate_schedule(
                name,
                getattr(self, name),
                self.default(name),
                progress_remaining=progress_remaining,
                env_steps=env_steps,
            )
            if not math.isfinite(value) or (name == "learning_rate" and value < 0):
                raise ValueError(
                    f"The schedule of `{name}` must give finite values, and no negative learning rate. "
                    f"Received: {value} at {env_steps} env steps"
                )
            values[name] = value
        return values

    def check_total_steps(self, total_steps: int | None) -> None:
        """Raises ValueError if a schedule needs to know the length of the run, and it isn't known."""
        for name in self.SCHEDULED:
            value = getattr(self, name)
            if total_steps is None and schedules.needs_total_steps(value):
                raise ValueError(
                    f"`{name}` is a schedule of what remains of a run, which needs `total_steps`. "
                    f"Received: {name}={value!r}, total_steps=None"
                )

    def make_optimizer(self) -> keras.Optimizer:
        """A new optimizer: a clone of the one passed in, or `default_optimizer`."""
        if self.optimizer is None:
            return self.default_optimizer()
        return type(self.optimizer).from_config(self.optimizer.get_config())

    def default_optimizer(self) -> keras.Optimizer:
        """Adam with epsilon 1e-5, clipped by the global norm.

        Keras adds epsilon to the root of the *uncorrected* second moment, torch to the corrected one.
        """
        import keras

        return keras.optimizers.Adam(self.initial_learning_rate, epsilon=1e-5, global_clipnorm=self.max_grad_norm)

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate before the first update."""
        return self.scheduled_values(progress_remaining=1.0, env_steps=0)["learning_rate"]

    def targets(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Tensor]:
        """What the loss needs of a whole batch: `advantage` and `return`, each `[T, B]`.

        batch: the trajectory's fields, `[T, B, ...]`, rewards scaled; value: `[T + 1, B]`.
        """
        from actor_learner.returns import gae

        advantage = gae(
            batch["reward"],
            value,
            batch["terminated"],
            batch["truncated"],
            batch["truncation_value"],
            batch["valid"],
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        return {"advantage": advantage, "return": advantage + value[:-1]}

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimize, and scalars to report.

        outputs: `log_prob [N]` of the minibatch's actions, `entropy [N]`, `value [N]`, `parameters [N, P]`
        and the network's further outputs. minibatch: `observation`, `action`, `behaviour_log_prob`,
        `value` (before the update), `valid`, and whatever `targets` gave; `[N, ...]` each.
        """
