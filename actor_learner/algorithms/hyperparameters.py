"""The base of all algorithms: hyperparameters, schedules and an optimizer."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from actor_learner.algorithms import optimizers, schedules
from actor_learner.algorithms.optimizers import Optimizer
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import NamedFields, check_number, refusal

if TYPE_CHECKING:
    import keras


def hyperparameter(default: Any, documentation: str) -> Any:
    """Return a dataclass field with the line of documentation that the command line shows."""
    return field(default=default, metadata={"help": documentation})


class Metric(NamedTuple):
    """A metric of metrics.jsonl."""

    meaning: str
    subject: str = "learning"
    """The heading of its curve in a run's report; "" for one that is told elsewhere."""
    better: str | None = None
    """Its better direction, "max" or "min"; None: unknown. That of a loss is "min"."""


class RewardOptions(NamedTuple):
    """The changes that the learner makes to rewards before an algorithm sees them."""

    clip: str | float | None = None
    """"sign", or a bound that rewards are clipped to."""
    scale: bool = False
    """True: divide rewards by the running std of the return discounted by `gamma`."""
    gamma: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(NamedFields, ABC):
    """The hyperparameters of every algorithm, and its optimizer. Fields in `SCHEDULED` may be schedules.

    Raises ValueError for a value out of range.
    """

    learning_rate: Schedule = hyperparameter(3e-4, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0")
    max_grad_norm: float | None = hyperparameter(0.5, "largest global norm of the gradient; none: not clipped")
    optimizer: Optimizer = hyperparameter(
        None, "adam or rmsprop; none: the algorithm's own; in Python also a Keras optimizer to clone, with its own rate"
    )

    OWNER: ClassVar[str] = "the algorithm"

    METRICS: ClassVar[Mapping[str, Metric]] = {}
    """The metrics that the class adds to those of its bases."""

    REPLAYS: ClassVar[bool] = False
    """Whether rows are drawn from a replay buffer; else each batch is learned once."""

    OWN_DISTRIBUTION: ClassVar[bool] = False
    """Whether the algorithm decides what `parameters` mean. It then has no state's value of its own beside them."""

    DISTRIBUTION: ClassVar[tuple[str, str]] = ("", "")
    """The only distribution of actions that the algorithm learns, and what its network must be; "": any will do."""

    NEEDS_VALUE: ClassVar[bool] = True
    """Whether the network must return a state's `value`."""

    NUM_CRITICS: ClassVar[int] = 0
    """The number of critics, unless `num_critics` says otherwise."""

    TAKES_CHOICES: ClassVar[bool] = False
    """Whether the critics may be those of a Discrete space, which value all its choices at once."""

    CONFIG_DEFAULTS: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "unroll_length": 128,
            "max_policy_lag": 0,
            "asynchronous": False,
            "hidden_sizes": (64, 64),
            "activation": "tanh",
            "orthogonal_init": True,
            "layer_norm": False,
        }
    )
    """Fields of a config that have another default for other algorithms, unless `config_defaults` says otherwise."""

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)
    """Fields that may be schedules; each update sees them as tensors."""

    NEVER_NEGATIVE: ClassVar[tuple[str, ...]] = ("learning_rate",)
    """Scheduled fields that must never be negative."""

    CHANGEABLE: ClassVar[tuple[str, ...]] = ("max_grad_norm", "ent_coef", "vf_coef", "target_kl", "target_entropy")
    """Fields that may change where a run is resumed, like those in `SCHEDULED`."""

    COMPARES_DRAWS: ClassVar[bool] = False
    """Whether the loss takes the ratio of the learner's and the actors' probabilities of an action."""

    UNUSED: ClassVar[tuple[str, ...]] = ()
    """Fields of its bases that the algorithm has no use for, and that are no flags."""

    STRAY: ClassVar[tuple[str, ...]] = ()
    """Methods that the learner of such an algorithm never calls."""

    OPTIMIZER: ClassVar[str] = "adam"
    """The algorithm's own optimizer."""

    ADAM_EPSILON: ClassVar[float] = 1e-5
    """Of the optimizer "adam", unless `adam_epsilon` says otherwise."""

    ADAM_BETA_1: ClassVar[float] = 0.9
    """Of the optimizer "adam": the share of the mean gradient that a step keeps."""

    BATCH_STATISTICS: ClassVar[bool] = False
    """Whether losses call layers that normalize by batches in training mode, where they ask for it (`training`).

    Else these layers keep their statistics, and a warning names them.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if stray := [name for name in cls.STRAY if name in vars(cls)]:
            once, drawn = "learn from each batch once", "learn from a replay buffer"
            this, other = (drawn, once) if cls.REPLAYS else (once, drawn)
            raise TypeError(
                f"{cls.__name__} has `{stray[0]}`, which only algorithms have that {other}: algorithms that {this} "
                f"never call it. Received: class {cls.__name__}"
            )

    def __new__(cls, *arguments: Any, **values: Any) -> Self:
        """Raise TypeError for a class whose fields are none, because it isn't a dataclass."""
        own = inspect.get_annotations(cls) if "__dataclass_fields__" not in vars(cls) else {}
        if found := [name for name, kind in own.items() if "ClassVar" not in str(kind)]:
            expected = f"put @dataclass(frozen=True, kw_only=True) above it, or `{found[0]}` is no field"
            raise TypeError(f"{cls.__name__} isn't a dataclass: {expected}. Received: class {cls.__name__}")
        return super().__new__(cls, *arguments, **values)

    @property
    def config_defaults(self) -> Mapping[str, Any]:
        """The fields of `TrainConfig` where they aren't given."""
        return self.CONFIG_DEFAULTS

    @property
    def num_critics(self) -> int:
        """The number of critics."""
        return self.NUM_CRITICS

    @property
    def adam_epsilon(self) -> float:
        """The epsilon of the optimizer "adam", as Keras adds it: before the bias correction."""
        return self.ADAM_EPSILON

    def __post_init__(self) -> None:
        """Check ranges, and turn NumPy's numbers into Python's."""
        for name, value in [(f.name, getattr(self, f.name)) for f in fields(self)]:
            if isinstance(value, np.number):
                object.__setattr__(self, name, value.item())
        self._check_schedules()
        self._check_number("learning_rate", least=0)
        if self.max_grad_norm != math.inf:
            check_number("max_grad_norm", self.max_grad_norm, above=0, optional=True)
        self._check_optimizer()

    def _check_number(
        self, name: str, *, least: float | None = None, above: float | None = None, optional: bool = False
    ) -> None:
        """Check a number that may be a schedule, which is checked when it is evaluated."""
        value = getattr(self, name)
        if not (name in self.SCHEDULED and schedules.is_schedule(value)):
            check_number(name, value, least=least, above=above, optional=optional or self.default(name) is None)

    def _check_schedules(self) -> None:
        """Check the form of schedules and, but for Keras's, which would load TensorFlow, their first values."""
        for one in fields(self):
            if (
                (one.type == Schedule or "Schedule" in str(one.type))
                and one.name not in self.SCHEDULED
                and schedules.is_schedule(value := getattr(self, one.name))
            ):
                raise refusal(one.name, f"a number, or named in SCHEDULED of {type(self).__name__}", value)
        for name in self.SCHEDULED:
            value = getattr(self, name)
            if value is None and self.default(name) is None:
                continue
            schedules.check_schedule(name, value, self.default(name))
            if schedules.needs_total_steps(value):
                self._evaluate(name, progress_remaining=1.0, env_steps=0)

    def _check_optimizer(self) -> None:
        if self.optimizer is None or self.optimizer in optimizers.NAMES:
            return
        if isinstance(self.optimizer, (str, type)) or not hasattr(self.optimizer, "get_config"):
            names = ", ".join(map(repr, optimizers.NAMES))
            raise refusal("optimizer", f"{names} or a keras.optimizers.Optimizer", self.optimizer)
        if hasattr(self.optimizer, "inner_optimizer") or getattr(self.optimizer, "loss_scale_factor", None) is not None:
            raise ValueError(
                "`optimizer` must not scale losses: float16, which needs it, is no longer supported; give one without, "
                f"and use bfloat16 or float32. Received: optimizer={type(self.optimizer).__name__}"
            )
        for name in ("learning_rate", "max_grad_norm"):
            if getattr(self, name) != self.default(name):
                raise ValueError(
                    f"`{name}` belongs in the optimizer when one is passed in. "
                    f"Received: optimizer={type(self.optimizer).__name__}, {name}={getattr(self, name)!r}"
                )

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy for a resumed run. Raises ValueError for fields that may not change there."""
        known = [one.name for one in fields(self) if one.name in (*self.SCHEDULED, *self.CHANGEABLE)]
        if not isinstance(changes, Mapping) or not changes.keys() <= {*known}:
            raise refusal("change", f"a dict of values of {', '.join(known)}", changes)
        return replace(self, **changes)

    @classmethod
    def default(cls, name: str) -> Any:
        return next(f.default for f in fields(cls) if f.name == name)

    def at(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with these attributes, unchecked: tensors in place of schedules, or parts of a learner."""
        instance = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def models(self, observation_space: Any, action_space: Any) -> Mapping[str, Any]:
        """Return what the algorithm owns beside the network, by name: none. A learner calls it once.

        Keras models that are built, variables, and `keras.random.SeedGenerator`s. In the methods that are traced into
        the update they are `self.own[name]`. Trainable variables are trained by the loss, each part by an optimizer of
        its own, which is made like the network's and has its learning rate; of an algorithm with a replay buffer, by
        the `LossGroup` of the part's name. Assigned ones keep what they are assigned, and each use of a seed draws
        other numbers. All are undone, saved and loaded with the network, and never reach the actors.
        """
        return {}

    @property
    def own(self) -> Mapping[str, Any]:
        """What `models` returned to the learner that this algorithm is of."""
        own: Mapping[str, Any] = self.__dict__.get("_own", {})
        return own

    def scheduled_values(self, *, progress_remaining: float, env_steps: int) -> dict[str, float]:
        """Return the present values of the fields in `SCHEDULED`, without those that are None.

        Raises ValueError if a schedule gives a negative rate or a number that isn't finite.
        """
        return {
            name: self._evaluate(name, progress_remaining=progress_remaining, env_steps=env_steps)
            for name in self.SCHEDULED
            if getattr(self, name) is not None
        }

    @property
    def has_function_schedule(self) -> bool:
        """True if a value is what a caller's own function returns, not Keras's or one that is named."""
        values = [getattr(self, name) for name in self.SCHEDULED]
        return any(callable(value) and not schedules.counts_env_steps(value) for value in values)

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
        """Check schedules before a run, whose length may be unknown.

        Raises ValueError if a schedule needs an unknown length, or starts out of range; warns if one ends early.
        """
        for name in self.SCHEDULED:
            value = getattr(self, name)
            if total_steps is None and schedules.needs_total_steps(value):
                raise ValueError(
                    f"`{name}` is a schedule of what remains of a run, which needs `total_steps` (of Learner). "
                    f"Received: {name}={value!r}, total_steps=None"
                )
            if total_steps is not None:
                schedules.warn_of_early_end(name, value, total_steps)
        self.scheduled_values(progress_remaining=1.0, env_steps=0)

    def check_config(self, config: Any) -> None:
        """Raise ValueError for a `TrainConfig` with fields that this algorithm has no use for."""
        kind, hindsight = type(self).__name__, getattr(self, "hindsight", None)
        if config.critics is not None and not self.num_critics:
            raise refusal("critics", f"None for {kind}, which has none", config.critics)
        if config.init_buffer is not None and not self.REPLAYS:
            raise refusal("init_buffer", f"None for {kind}, which has no replay buffer", config.init_buffer)
        if config.compute_reward is not None and hindsight is None:
            expected = "None without `hindsight` of an off-policy algorithm, which computes rewards of other goals"
            raise refusal("compute_reward", expected, config.compute_reward)
        if config.acts_on_device and hindsight is not None:
            expected = "None for an environment in JAX, which the learner's device steps (vectorization='sync' has"
            raise refusal("hindsight", f"{expected} actors step it)", hindsight)
        if config.exploration is not None and (not self.REPLAYS or self.DISTRIBUTION[0] == "greedy"):
            raise refusal("exploration", f"None for {kind}; SAC, TQC, CrossQ and TD3 take one", config.exploration)
        if self.OWN_DISTRIBUTION:
            self._check_default_network(config, kind)

    def _check_default_network(self, config: Any, kind: str) -> None:
        """Raise ValueError for options that this algorithm's default network hasn't, or a given network hasn't."""
        if config.initial_log_std and hasattr(self, "action_noise"):
            expected = f"left out for {kind}, whose actions have action_noise"
            raise refusal("initial_log_std", expected, config.initial_log_std)
        if config.centralized_value:
            raise refusal("centralized_value", f"left out for {kind}: PPO, A2C and Impala have such a value", True)
        if config.value_keys and self.DISTRIBUTION[0] == "greedy":
            raise refusal("value_keys", f"left out for {kind}, whose policy is its values", config.value_keys)
        if config.distribution != "gaussian":
            raise refusal("distribution", f"left out for {kind}, which has one of its own", config.distribution)
        given = config.network is not None or config.init_from is not None
        for name in ("dueling", "epsilon_ladder", "action_noise"):
            if given and hasattr(self, name) and getattr(self, name) != self.default(name):
                received = f"{name}={getattr(self, name)!r} beside a network that is given"
                raise ValueError(f"`{name}` is for the default network; build it into yours. Received: {received}")

    @abstractmethod
    def check_devices(self, devices: int) -> None:
        """Raise ValueError if so many devices can't share an update."""

    @abstractmethod
    def minibatch_rows(self, batch_rows: int) -> int:
        """Return the rows of a minibatch, from batches of so many."""

    def check_batch(self, env_steps: int, total_steps: int) -> None:
        """Warn if a run of `total_steps`, in batches of so many env steps, can't learn well."""

    def check_action_space(self, action: Any) -> None:
        """Raise ValueError for actions, a space's `Structure`, that the algorithm can't learn."""

    def check_distribution(self, name: str) -> None:
        """Raise ValueError if the algorithm can't learn a policy with this distribution of actions."""
        wanted, needed = self.DISTRIBUTION
        if wanted and name != wanted:
            raise ValueError(f"{type(self).__name__} needs a network {needed}. Received: distribution={name!r}")

    def _refuse_greedy(self, name: str) -> None:
        """Raise ValueError for the distribution of greedy policies, whose probabilities have no gradient."""
        if name == "greedy":
            raise ValueError(
                f"{type(self).__name__} can't learn a greedy policy, whose probabilities have no gradient; leave "
                "`distribution='greedy'` to algorithms that learn values. Received: distribution='greedy'"
            )

    def check_layers(self, layers: Iterable[Any]) -> None:
        """Warn of a network, given by its layers, that the algorithm is unlikely to learn well."""

    def check_unroll_length(self, unroll_length: int) -> None:
        """Raise ValueError if the algorithm can't learn from unrolls of this length."""

    def network_options(self, action: Any) -> dict[str, Any]:
        """Return the options of `default_network` that this algorithm chooses: none.

        action: the space's `Structure`.
        """
        return {}

    def epsilon(self, env_steps: int, progress_remaining: float) -> float | None:
        """Return the probability of a random action for the next env steps; None: the network's actions are random.

        progress_remaining: 1 at the beginning of a run, 0 at its end.
        """
        return None

    def without_learning(self) -> Self:
        """Return this algorithm with a learning rate of 0, for measurements: it costs what the other does."""
        return self if self.clones_optimizer else replace(self, learning_rate=0.0)

    @property
    def clones_optimizer(self) -> bool:
        """True if a Keras optimizer was passed in, which sets learning rate and clipping itself."""
        return self.optimizer is not None and not isinstance(self.optimizer, str)

    @property
    def changes_learning_rate(self) -> bool:
        """True if a schedule writes the learning rate before each update."""
        return not self.clones_optimizer and schedules.is_schedule(self.learning_rate)

    @property
    def rate_source(self) -> str | None:
        """What changes the learning rate beside callbacks, as a message names it; None: nothing."""
        if not self.clones_optimizer:
            return f"learning_rate={self.learning_rate!r}" if self.changes_learning_rate else None
        optimizer: Any = self.optimizer
        own = isinstance(optimizer.get_config().get("learning_rate"), Mapping)
        return f"optimizer={type(optimizer).__name__} with a schedule" if own else None

    def adapted_learning_rate(self, learning_rate: float, metrics: Mapping[str, float]) -> float | None:
        """Return the next update's learning rate, from the present one and this update's metrics. None: no change."""
        return None

    def make_optimizer(self) -> keras.Optimizer:
        """Return a new optimizer: a clone of the one passed in, the one that is named, or `default_optimizer`."""
        if self.optimizer is None:
            return self.default_optimizer()
        return self._named(self.optimizer) if isinstance(self.optimizer, str) else optimizers.clone(self.optimizer)

    def default_optimizer(self) -> keras.Optimizer:
        """Return the optimizer that `OPTIMIZER` names, clipped by the global norm; Adam has `adam_epsilon`."""
        return self._named(self.OPTIMIZER)

    def _named(self, name: str) -> keras.Optimizer:
        rate, norm = self.initial_learning_rate, self.max_grad_norm
        if name == "rmsprop":
            return optimizers.rmsprop(rate, norm)
        return optimizers.adam(rate, norm, self.adam_epsilon, self.ADAM_BETA_1)

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate before the first update."""
        return self._evaluate("learning_rate", progress_remaining=1.0, env_steps=0)

    @property
    def rewards(self) -> RewardOptions:
        """The changes that the learner makes to rewards: none."""
        return RewardOptions()
