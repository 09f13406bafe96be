"""Parallelised Q-learning: Q(lambda) along the unroll, without a replay buffer and without targets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from actor_learner.algorithms.base import Evaluate, OnPolicy
from actor_learner.algorithms.hyperparameters import hyperparameter
from actor_learner.algorithms.q_learning import QLearning, value_of
from actor_learner.algorithms.schedules import Schedule
from actor_learner.system.fields import check_number
from actor_learner.system.types import Tensor

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "GroupNormalization", "BatchNormalization")

_LONG_TRACE = 0.9
"""From this lambda on, returns follow many actions of actors with older weights."""


@dataclass(frozen=True, kw_only=True)
class PQN(QLearning, OnPolicy):
    """Q-learning on each batch once (arXiv:2407.04811, algorithm 1), for Discrete action spaces.

    A batch is learned in shuffled minibatches, for `epochs` passes. There is no replay buffer, and targets are computed
    by the present weights. Layer normalization keeps the values from growing without bound: the default network has it
    (`layer_norm`). A network with memory learns Q-values of histories.

    The loss is half of the mean squared error of the chosen actions' values. Its target is Peng's Q(lambda), which
    isn't cut at exploring actions: G_t = r_t + gamma [(1 - lambda) max_a Q(s_t+1, a) + lambda G_t+1].

    Maxima are over allowed actions. A row isn't learned if its target needs the value of an observation whose mask the
    batch doesn't hold: of the truncated rows of a column, only the last one's is sure to be there.

    The defaults are the paper's, but for Adam in place of RAdam: with `layer_norm` and `max_grad_norm` they differ only
    in the first updates.
    """

    learning_rate: Schedule = hyperparameter(
        2.5e-4, "step size of the optimizer, or a schedule: linear_1e-3 falls to 0"
    )
    max_grad_norm: float | None = hyperparameter(10.0, "largest global norm of the gradient; none: not clipped")
    q_lambda: float = hyperparameter(0.65, "trade-off of bias and variance in Q(lambda), 0 to 1")
    epochs: int = hyperparameter(2, "passes over each batch")
    minibatch_size: int | None = hyperparameter(128, "rows in a minibatch; none: the whole batch")

    CONFIG_DEFAULTS: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **OnPolicy.CONFIG_DEFAULTS,
            "unroll_length": 32,
            "hidden_sizes": (256, 256),
            "activation": "relu",
            "orthogonal_init": False,
            "layer_norm": True,
        }
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("q_lambda", self.q_lambda, least=0, most=1)

    def check_config(self, config: Any) -> None:
        super().check_config(config)
        if config.max_policy_lag > 1 and self.q_lambda > _LONG_TRACE:
            warnings.warn(
                "Returns follow the actions of actors whose weights are several versions old, and aren't corrected for "
                f"it: lower `q_lambda` or `max_policy_lag`. Received: q_lambda={self.q_lambda}, "
                f"max_policy_lag={config.max_policy_lag}",
                stacklevel=2,
            )

    def check_unroll_length(self, unroll_length: int) -> None:
        """Warn of unrolls of a single step, along which there is nothing to trace."""
        if unroll_length == 1 and self.q_lambda > 0:
            warnings.warn(
                "`q_lambda` has no effect in unrolls of one step: raise `unroll_length`, or set q_lambda to 0. "
                f"Received: unroll_length=1, q_lambda={self.q_lambda}",
                stacklevel=2,
            )

    def check_layers(self, layers: Iterable[Any]) -> None:
        """Warn of a network without normalization, whose values often grow without bound."""
        kinds = [type(layer).__name__ for layer in layers]
        if not any(kind in _NORMALIZATIONS for kind in kinds):
            warnings.warn(
                "PQN has no targets that move slowly: without layer normalization values often grow without bound. Add "
                "keras.layers.LayerNormalization after each hidden layer, before its activation (layer_norm=True in "
                f"the default network). Received: a network of {', '.join(dict.fromkeys(kinds))}",
                stacklevel=2,
            )

    def rows(self, batch: Mapping[str, Tensor], evaluate: Evaluate) -> dict[str, Tensor]:
        """Return the batch with the targets `return [T, B]`.

        A state's value V is that of its best action, so that G - V is GAE with `q_lambda`.
        """
        from keras import ops

        from actor_learner.algorithms.returns import gae

        found = evaluate(batch)
        valid = batch["valid"] if found.known is None else ops.logical_and(batch["valid"], found.known)
        advantage = gae(
            **{name: batch[name] for name in ("reward", "terminated", "truncated")},
            value=found.value,
            truncation_value=found.truncation_value,
            valid=valid,
            gamma=self.gamma,
            gae_lambda=self.q_lambda,
        )
        return {**batch, "valid": valid, "return": advantage + found.value[:-1]}

    def loss(self, outputs: Mapping[str, Tensor], minibatch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half of the mean squared error of the chosen actions' values, over valid rows."""
        from keras import ops

        from actor_learner.algorithms.returns import mean_valid

        valid = minibatch["valid"]
        chosen = value_of(outputs["parameters"][:, :-1], minibatch["action"])  # the last is epsilon
        error = ops.where(valid, minibatch["return"] - chosen, 0.0)
        loss = 0.5 * mean_valid(ops.square(error), valid)
        return loss, {"q_value": mean_valid(chosen, valid), "td_error": mean_valid(ops.abs(error), valid)}
