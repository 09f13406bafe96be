"""The base of algorithms that learn from each batch once: rows to learn from, and a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from actor_learner.algorithms.hyperparameters import Hyperparameters, RewardOptions, hyperparameter
from actor_learner.algorithms.source import ShuffledEpochs
from actor_learner.system.fields import check_clip_reward, check_count, check_flag, check_number
from actor_learner.system.types import Tensor


class Evaluated(NamedTuple):
    """A batch under the weights before the update.

    Attributes:
        value: `[T + 1, B]`
        log_prob: `[T, B]`, of the actions.
        truncation_value: `[T, B]`, of the last observation of an episode that the row cut off: the actor's where the
            batch lacks it.
        known: `[T, B]`, False where the value after the row is that of an observation whose mask the batch lacks; None:
            all are known. Of greedy policies alone, whose `value` is the highest of an allowed action.
    """

    value: Tensor
    log_prob: Tensor
    truncation_value: Tensor
    known: Tensor | None = None


Evaluate = Callable[[Mapping[str, Tensor]], Evaluated]


@dataclass(frozen=True, kw_only=True)
class Algorithm(Hyperparameters):
    """The hyperparameters of an algorithm that learns from each batch, and the methods that a learner calls.

    A new algorithm subclasses this, `ActorCritic`, `A2C` or `PPO`, as a frozen dataclass, and overrides `loss`. `rows`,
    `loss` and `batch_metrics` are pure functions, traced into the compiled update; in them, the fields in `SCHEDULED`
    are tensors with this update's values.

    Raises ValueError for a value out of range.
    """

    STRAY: ClassVar[tuple[str, ...]] = ("groups", "make_variables", "noise_columns", "further_outputs")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "targets" in vars(cls) and not hasattr(cls, "actor_critic_loss"):
            raise TypeError(f"{cls.__name__} has `targets`, as actor-critics have: subclass al.algorithms.ActorCritic")

    def source(self) -> ShuffledEpochs:
        """Return the source of an update's minibatches: each batch once, whole."""
        return ShuffledEpochs()

    def check_devices(self, devices: int) -> None:
        self.source().share(devices)

    def minibatch_rows(self, batch_rows: int) -> int:
        return self.source().shape(batch_rows)[1]

    def rows(self, batch: Mapping[str, Tensor], evaluate: Evaluate) -> dict[str, Tensor]:
        """Return the fields of minibatches, `[T, B, ...]` each: those of the batch.

        batch: The trajectory's fields, `[T, B, ...]` (observations `[T + 1, B, ...]`), with rewards clipped and scaled
            by `rewards`, and constants in invalid rows. evaluate: Costs a forward pass of the whole batch.
        """
        return dict(batch)

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar to minimize, and scalars to report.

        outputs: `log_prob [N]` of the minibatch's actions, `entropy [N]`, `value [N]`, `parameters [N, P]` and the
        network's further outputs. minibatch: The fields that `rows` returned, `[N, ...]` each. Those of the batch are

        - `observation` and `action`, nested like their spaces, as in a `Trajectory`;
        - `reward`, clipped and scaled by `rewards`;
        - `terminated`, `truncated` and `valid`: rows that aren't valid must not count;
        - `behaviour_log_prob` and `truncation_value`;
        - `action_mask [N, M]`, only where the environment gives masks.

        `ActorCritic` adds `value` and `target_log_prob` under the weights before the update, replaces
        `truncation_value` by its value under these weights, and adds the fields that `targets` returns, such as
        `advantage` and `return`. A network with memory learns from sequences, side by side in the rows `[steps x
        sequences]`. Then there are also `start [steps, sequences]` and `initial_state`.

        The distribution of the actions belongs to `parameters`: `al.ActionDistribution` gives log-probabilities and
        divergences from another policy.
        """

    def network_outputs(self, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's outputs for rows, in a `loss` alone: as it got them, for other observations too.

        minibatch: That of the loss, or a copy with another `observation`; with memory, its sequences are unrolled.
        """
        outputs: dict[str, Tensor] = self.__dict__["_outputs"](minibatch)
        return outputs

    def check_metrics(self, names: Collection[str]) -> None:
        """Raise ValueError if the loss doesn't report a metric that the algorithm needs."""

    def ends_update(self, metrics: Mapping[str, Tensor]) -> Tensor | None:
        """Return whether a minibatch with these metrics ends the update without a step. None: no minibatch does."""
        return None

    def batch_metrics(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return metrics of all rows `[N, ...]` of a batch, where NaN stands for no value: none."""
        return {}


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """The hyperparameters of algorithms that learn each batch in epochs of shuffled minibatches: actor-critics and PQN.

    Raises ValueError for a value out of range.
    """

    gamma: float = hyperparameter(0.99, "discount factor, 0 to 1")
    normalize_reward: bool = hyperparameter(False, "divide rewards by the running std of the discounted return")
    clip_reward: str | float | None = hyperparameter(None, "'sign', or a bound to which rewards are clipped")
    epochs: int = hyperparameter(1, "passes over each batch")
    minibatch_size: int | None = hyperparameter(None, "rows in a minibatch; none: the whole batch")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("gamma", self.gamma, least=0, most=1)
        check_flag("normalize_reward", self.normalize_reward)
        check_count("epochs", self.epochs)
        check_count("minibatch_size", self.minibatch_size, optional=True)
        check_clip_reward(self.clip_reward)

    @property
    def rewards(self) -> RewardOptions:
        return RewardOptions(clip=self.clip_reward, scale=self.normalize_reward, gamma=self.gamma)

    def source(self) -> ShuffledEpochs:
        return ShuffledEpochs(self.epochs, self.minibatch_size)
