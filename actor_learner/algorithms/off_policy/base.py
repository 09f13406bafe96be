"""The base of algorithms that learn from a replay buffer: what is kept, how often it is learned, and the losses."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from actor_learner.algorithms.hyperparameters import Hyperparameters, Metric, hyperparameter
from actor_learner.system.fields import HINDSIGHT, check_choice, check_clip_reward, check_count, check_number, refusal
from actor_learner.system.types import Tensor

if TYPE_CHECKING:
    from actor_learner.learner.models import TrainedModels

NETWORK, CRITICS = "network", "critics"
"""The groups of weights that every algorithm may train, beside variables of its own."""


Models: TypeAlias = "TrainedModels"
"""The models of an off-policy algorithm, as its losses call them."""


class Loss(NamedTuple):
    """The loss of a group on a minibatch.

    Attributes:
        value: The scalar to minimize.
        metrics: Scalars to report.
        outputs: Fields that later groups of this step have in their minibatch, without a gradient. One group whose
            steps are never left out must give `error [M]`, the temporal-difference errors: the rows' priorities.
    """

    value: Tensor
    metrics: dict[str, Tensor]
    outputs: Mapping[str, Tensor] = MappingProxyType({})


class LossGroup(NamedTuple):
    """Weights that an optimizer steps, and their loss.

    Attributes:
        name: `NETWORK`, `CRITICS`, or the name of one of the algorithm's own models or variables.
        loss: A pure function of the models and of a minibatch: the fields of `Minibatches` but `indices`, `[M, ...]`
            each; `noise`, of which `OffPolicy.noise` gives a part by its name; and the `outputs` of the groups before
            this one.
        every: Gradient steps from one of this group's to its next. Groups with the same number that follow each other
            are stepped together; no others have the outputs of groups that may be left out.
    """

    name: str
    loss: Callable[[Models, Mapping[str, Any]], Loss]
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Hyperparameters):
    """The hyperparameters that algorithms with a replay buffer share, with SB3's meaning, defaults and most names.

    SB3's `batch_size` is `minibatch_size` here. One number, `updates_per_step` (gradient_steps / train_freq / n_envs),
    replaces its `train_freq` and `gradient_steps`. So the number of gradient steps depends neither on the number of
    environments nor on the length of an unroll.

    A new algorithm subclasses this as a frozen dataclass, and overrides `groups`.

    Raises ValueError for a value out of range.
    """

    buffer_size: int = hyperparameter(1_000_000, "capacity of the replay buffer, in env steps")
    learning_starts: int = hyperparameter(100, "env steps before the first gradient step")
    minibatch_size: int = hyperparameter(256, "rows in a minibatch")
    updates_per_step: float = hyperparameter(1.0, "gradient steps per env step, after learning_starts")
    gamma: float = hyperparameter(0.99, "discount factor, 0 to 1")
    n_step: int = hyperparameter(1, "largest number of rewards in a row's return; at most the unroll length")
    tau: float = hyperparameter(0.005, "fraction by which each move brings the targets to the weights; 1: copies")
    clip_reward: str | float | None = hyperparameter(None, "'sign', or a bound to which rewards are clipped")
    max_grad_norm: float | None = hyperparameter(None, "largest global norm of a gradient; none: not clipped")
    hindsight: Literal["future", "final", "episode"] | None = hyperparameter(
        None, "which achieved goals drawn rows get in place of their own: future, final, episode; none: keep their own"
    )
    hindsight_goals: float = hyperparameter(4.0, "with hindsight: other goals for each of a row's own")

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "critic_loss": Metric(
            "mean squared error of the critics (SAC: half of it; TQC: the quantile loss), summed over them"
        ),
    }
    REPLAYS: ClassVar[bool] = True
    OWN_DISTRIBUTION: ClassVar[bool] = True
    NEEDS_VALUE: ClassVar[bool] = False

    TARGETS: ClassVar[tuple[str, ...]] = ()
    """The groups that have slowly moving copies, `NETWORK` and `CRITICS`."""

    NOISE: ClassVar[tuple[str, ...]] = ()
    """The names of the parts of a minibatch's noise. A subclass adds its own: `NOISE = (*al.SAC.NOISE, "mine")`."""

    STRAY: ClassVar[tuple[str, ...]] = ("rows", "targets", "batch_metrics", "ends_update", "source")
    ADAM_EPSILON: ClassVar[float] = 1e-8  # torch's

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("buffer_size", "minibatch_size", "n_step"):
            check_count(name, getattr(self, name))
        check_count("learning_starts", self.learning_starts, 0)
        if self.updates_per_step == -1:
            raise ValueError(
                "`updates_per_step` must be above 0: 1.0 is what SB3 calls gradient_steps=-1. "
                "Received: updates_per_step=-1"
            )
        check_number("updates_per_step", self.updates_per_step, above=0, most=10_000)
        check_number("gamma", self.gamma, least=0, most=1)
        check_number("tau", self.tau, above=0, most=1)
        check_clip_reward(self.clip_reward)
        check_choice("hindsight", self.hindsight, (None, *HINDSIGHT))
        check_number("hindsight_goals", self.hindsight_goals, above=0)
        if self.BATCH_STATISTICS and self.minibatch_size == 1:
            expected = f"above 1 for {type(self).__name__}, which normalizes by minibatches"
            raise refusal("minibatch_size", expected, self.minibatch_size)
        if self.hindsight is not None and self.n_step != 1:
            raise refusal("n_step", "1 with `hindsight`, which computes the reward of a single step", self.n_step)
        if self.hindsight is not None and self.priority_exponent is not None:
            raise refusal("prioritized", "False with `hindsight`: errors are of goals, priorities of rows", True)

    @property
    def config_defaults(self) -> Mapping[str, Any]:
        """The defaults of fields of `TrainConfig`. Unrolls grow with `n_step`, because returns end with them.

        So do episodes in the buffer: with hindsight, an unroll is as long as the episodes of most robots.
        """
        network = {"hidden_sizes": (256, 256), "activation": "relu", "orthogonal_init": False}
        unroll_length = 4 * self.n_step if self.hindsight is None else 50
        return {**self.CONFIG_DEFAULTS, **network, "unroll_length": unroll_length}

    def check_total_steps(self, total_steps: int | None) -> None:
        super().check_total_steps(total_steps)
        if total_steps is not None and total_steps <= self.learning_starts:
            raise ValueError(
                "`learning_starts` must be below `total_steps`, or nothing would be learned. "
                f"Received: learning_starts={self.learning_starts}, total_steps={total_steps}"
            )
        if total_steps is not None and not self.due(total_steps - self.learning_starts):
            raise ValueError(
                "`updates_per_step` must make a gradient step due within the run, or nothing would be learned. "
                f"Received: updates_per_step={self.updates_per_step}, total_steps={total_steps}"
            )

    def check_config(self, config: Any) -> None:
        super().check_config(config)
        self.check_total_steps(config.all_steps)
        self.check_devices(config.devices)
        rows = sum(config.env_counts) * config.unroll_length
        if self.buffer_size < rows:
            expected = f"at least the {rows:,} env steps of a batch, num_envs x unroll_length"
            raise refusal("buffer_size", expected, self.buffer_size)

    def check_devices(self, devices: int) -> None:
        if devices > 1:
            kind = type(self).__name__
            raise refusal("devices", f"1 for {kind}, whose minibatches are too small to be shared", devices)

    def minibatch_rows(self, batch_rows: int) -> int:
        return self.minibatch_size

    def check_action_space(self, action: Any) -> None:
        """Raise ValueError for actions that the algorithm's critics can't take: other than Boxes with bounds.

        action: the space's `Structure`.
        """
        of_choices = self.TAKES_CHOICES and action.plain and action.leaves[0].is_discrete
        for leaf in action.leaves if self.num_critics and not of_choices else ():
            if not leaf.is_bounded_box:
                raise ValueError(
                    f"{type(self).__name__} needs actions that are Boxes with finite bounds, low below high; DQN and "
                    f"SAC take a Discrete space. Received: {leaf.label} of {leaf.space}"
                )

    def check_unroll_length(self, unroll_length: int) -> None:
        """Raise ValueError for unrolls that are shorter than a return."""
        if self.n_step > unroll_length:
            raise ValueError(
                "`n_step` must be at most `unroll_length`, since returns end with a column. "
                f"Received: n_step={self.n_step}, unroll_length={unroll_length}"
            )
        if self.hindsight is not None and unroll_length == 1:
            expected = "above 1 with `hindsight`, better as long as an episode, whose goals end with it"
            raise refusal("unroll_length", expected, unroll_length)

    def due(self, env_steps: int) -> int:
        """Return how many gradient steps belong to so many env steps after `learning_starts`."""
        return math.floor(env_steps * self.updates_per_step)

    def without_learning(self) -> Self:
        """Return this algorithm with a learning rate of 0, and gradient steps from the first batch on."""
        return replace(super().without_learning(), learning_starts=0)

    @property
    def priority_exponent(self) -> float | None:
        """The exponent of priorities by temporal-difference errors; None: draws are uniform."""
        return None

    def importance_exponent(self, progress_remaining: float) -> float:
        """Return the exponent with which importance weights correct for priorities."""
        return 0.0

    def make_variables(self, action_size: int) -> dict[str, Any]:
        """Return new variables that the algorithm trains beside the models, by name: none.

        action_size: numbers of a continuous action.
        """
        return {}

    @property
    def inherits_variables(self) -> bool:
        """True if these variables begin as those of the run that `init_from` names: no first values are given."""
        return True

    @property
    def critic_size(self) -> int:
        """The numbers that a critic returns for a row, and for each choice of a Discrete space."""
        return 1

    @property
    def critic_options(self) -> Mapping[str, Any]:
        """The options of `default_critic` that this algorithm chooses."""
        return {"outputs": self.critic_size}

    def further_outputs(self, action: Any) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes, for one row, of the outputs that losses need of a network beside `parameters`.

        action: the space's `Structure`.
        """
        return {}

    @property
    def noise_columns(self) -> int:
        """Standard normals that a row needs for each number of its action: one for each part of `NOISE`.

        A subclass may add others to `super().noise_columns`: they stand behind the parts in the minibatch's `noise`.
        """
        return len(self.NOISE)

    def noise(self, minibatch: Mapping[str, Any], name: str) -> Tensor:
        """Return a part of a minibatch's noise, standard normals `[M, d]` for actions of d numbers."""
        size, place = minibatch["noise"].shape[1] // self.noise_columns, self.NOISE.index(name)
        part: Tensor = minibatch["noise"][:, place * size : (place + 1) * size]
        return part

    def move_before_update(self, before: int, after: int) -> float:
        """Return how far targets move before an update's gradient steps, between these numbers of env steps."""
        return 0.0

    @property
    def moves_every(self) -> int | None:
        """The gradient steps after which targets move by `tau`; None: they don't within an update."""
        return None

    @abstractmethod
    def groups(self) -> tuple[LossGroup, ...]:
        """Return the groups of weights in the order of their steps, with their losses."""
