"""The base of Q-learning: a network whose outputs are values of discrete actions, and exploration by epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actor_learner.algorithms.hyperparameters import Hyperparameters, Metric, hyperparameter
from actor_learner.system.fields import check_flag, check_number
from actor_learner.system.types import Tensor

FORBIDDEN = -1e30
"""Stands for the value of an action that a mask forbids."""


@dataclass(frozen=True, kw_only=True)
class QLearning(Hyperparameters):
    """The hyperparameters of exploration, and of the default network of action values, for Discrete action spaces.

    Epsilon falls linearly from `exploration_initial_eps` to `exploration_final_eps` in the first `exploration_fraction`
    of the run.
    """

    exploration_fraction: float = hyperparameter(0.1, "fraction of the run in which epsilon falls")
    exploration_initial_eps: float = hyperparameter(1.0, "probability of a random action at first")
    exploration_final_eps: float = hyperparameter(0.05, "probability of a random action after its fall")
    epsilon_ladder: float = hyperparameter(
        0.0, "environment i of N explores by epsilon ** (1 + this * i / (N - 1)), with the default network; Ape-X has 7"
    )
    dueling: bool = hyperparameter(False, "let the default network add a state's value and the actions' advantages")

    METRICS: ClassVar[Mapping[str, Metric]] = {
        "q_value": Metric("mean value of the actions in the drawn rows"),
        "td_error": Metric("mean absolute difference between targets and values"),
        "epsilon": Metric("probability of a random action"),
    }
    OWN_DISTRIBUTION: ClassVar[bool] = True
    DISTRIBUTION: ClassVar[tuple[str, str]] = (
        "greedy",
        "whose `parameters` are values of actions, behind al.ActionDistribution('greedy'), for a Discrete space",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"):
            check_number(name, getattr(self, name), least=0, most=1)
        check_number("epsilon_ladder", self.epsilon_ladder, least=0)
        check_flag("dueling", self.dueling)

    def check_action_space(self, action: Any) -> None:
        """Raise ValueError for actions other than a single Discrete."""
        if not action.plain or not action.leaves[0].is_discrete:
            raise ValueError(
                f"{type(self).__name__} needs a Discrete action space; SAC and TD3 take Boxes. "
                f"Received: action_space={action.space}"
            )

    def check_total_steps(self, total_steps: int | None) -> None:
        super().check_total_steps(total_steps)
        if self.exploration_fraction > 0 and self.exploration_initial_eps != self.exploration_final_eps:
            self._require_total_steps("exploration_fraction", total_steps)

    def _require_total_steps(self, name: str, total_steps: int | None) -> None:
        """Raise ValueError for a setting about parts of a run whose length is unknown."""
        if total_steps is None:
            raise ValueError(
                f"`{name}` is about parts of a run, which needs `total_steps` (of Learner). "
                f"Received: {name}={getattr(self, name)!r}, total_steps=None"
            )

    def network_options(self, action: Any) -> dict[str, Any]:
        options = {"distribution": "greedy", "dueling": self.dueling, "epsilon_ladder": self.epsilon_ladder}
        return {**options, "value_only": ()}  # the policy is the values

    def epsilon(self, env_steps: int, progress_remaining: float) -> float:
        passed = 1.0 - progress_remaining
        if passed >= self.exploration_fraction:
            return self.exploration_final_eps
        change = self.exploration_final_eps - self.exploration_initial_eps
        return self.exploration_initial_eps + change * passed / self.exploration_fraction


def value_of(values: Tensor, action: Tensor) -> Tensor:
    """Return the values `[M, ...]` of actions `[M]`, from those of all `[M, n]` or `[M, n, N]`."""
    from keras import ops

    chosen = ops.one_hot(action, values.shape[1], dtype="float32") > 0
    if len(values.shape) > 2:
        chosen = ops.expand_dims(chosen, -1)
    return ops.sum(ops.where(chosen, values, 0.0), axis=1)


def allowed_only(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values `[M, n]`, with `FORBIDDEN` where a mask `[M, n]` forbids the action; None: all are allowed."""
    from keras import ops

    return values if mask is None else ops.where(mask, values, FORBIDDEN)
