"""The models of an off-policy algorithm: the network, its critics, and slowly moving copies of their weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK, OffPolicy
from actor_learner.algorithms.q_learning import allowed_only
from actor_learner.learner import backend, owned
from actor_learner.networks import contract
from actor_learner.spaces.kinds import middle
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import choices, drop_mask
from actor_learner.system.types import Nest, Tensor


def kinds_in_training(algorithm: Hyperparameters) -> tuple[type[Any], ...]:
    """Return the kinds of layers that the algorithm's losses call in training mode, where they ask for it."""
    return contract.BATCHES if algorithm.BATCH_STATISTICS else ()


class TrainedModels:
    """The models of an off-policy algorithm, as its losses call them. `target`: by the slowly moving copy.

    `training`: layers that normalize by batches do so, and their statistics move; only with the algorithm's
    `BATCH_STATISTICS`.

    The copies are variables beside the models, which are called with them: so any model has a copy, a subclassed one
    too.

    Attributes:
        bounded: True if all actions are of Boxes with bounds.
        choices: the number of choices of a Discrete space; 0: of another space.
        variables: the algorithm's own trained variables, by name.
    """

    def __init__(
        self, network: keras.Model, critics: Sequence[keras.Model], algorithm: OffPolicy, spaces: Spaces
    ) -> None:
        self.network, self.critics = network, list(critics)
        self.batches = kinds_in_training(algorithm)
        self.choices = choices(spaces.action_space)
        self.critic_size = algorithm.critic_size * (self.choices or 1)
        self._leaves = spaces.action.leaves
        self.bounded = all(leaf.is_bounded_box for leaf in self._leaves)
        self._squashed = contract.distribution_and_hold(network)[0] == "squashed"
        self._distribution = contract.network_distribution(network, spaces)
        self.action_size = sum(math.prod(leaf.shape) for leaf in self._leaves)
        self._flatten = spaces.action.flatten
        self.variables: dict[str, keras.Variable] = algorithm.make_variables(self.action_size)
        of_group = {NETWORK: [network], CRITICS: self.critics}
        if wrong := [name for name, one in self.variables.items() if not isinstance(one, keras.Variable)]:
            expected = f"`make_variables` of {type(algorithm).__name__} must return variables, `models` models"
            raise ValueError(f"{expected}. Received: {wrong[0]}={self.variables[wrong[0]]!r}")
        self.own = algorithm.own
        if taken := [name for name in self.own if name in {**of_group, **self.variables}]:
            raise ValueError(f"`models` must name its parts unlike other groups. Received: {taken[0]!r}")
        self._copied = [model for name in algorithm.TARGETS for model in of_group[name]]
        self._copies: dict[int, list[keras.Variable]] = {}
        self.calls_a_copy = False

    def make_targets(self) -> None:
        """Copy the weights. All models must be built."""
        for model in self._copied:
            self._copies[id(model)] = [
                keras.Variable(value, trainable=False, dtype=weight.dtype, autocast=False)
                for weight, value in zip(model.weights, model.get_weights(), strict=True)  # Keras would share `value`
            ]

    @property
    def targets(self) -> list[keras.Variable]:
        """The variables of all copies."""
        return [copy for model in self._copied for copy in self._copies[id(model)]]

    def trained(self, group: str) -> list[keras.Variable]:
        """Return the variables that a group trains."""
        if group in self.variables:
            return [self.variables[group]]
        if group in self.own:
            return owned.trained(self.own[group])
        if group not in (NETWORK, CRITICS):
            raise ValueError(f"A loss group must be of a model or variable that there is. Received: {group!r}")
        models = [self.network] if group == NETWORK else self.critics
        return [variable for model in models for variable in model.trainable_variables]

    def of_group(self, group: str) -> dict[str, keras.Model]:
        """Return the models that a group trains, by the beginning of their layers' names in metrics."""
        if group == CRITICS:
            return {f"critic_{number}": critic for number, critic in enumerate(self.critics)}
        models = {"": self.network} if group == NETWORK else {group: self.own.get(group)}
        return {name: model for name, model in models.items() if isinstance(model, keras.Model)}

    def is_number(self, group: str) -> bool:
        """Return whether a group is a variable of the algorithm's own, rather than a model."""
        return group in self.variables or isinstance(self.own.get(group), keras.Variable)

    @property
    def batch_statistics(self) -> list[keras.Variable]:
        """The statistics of layers that normalize by batches, where losses move them."""
        models = (self.network, *self.critics)
        layers = (layer for model in models for layer in contract.layers_of(model, self.batches))
        return [one for layer in layers for one in layer.non_trainable_variables]

    def outputs(self, observation: Nest, *, target: bool = False, training: bool = False) -> Mapping[str, Tensor]:
        """Return the network's outputs, `[M, ...]` each."""
        kinds = self.batches if training else ()
        with self._weights(self.network, target), contract.in_training(self.network, kinds):
            return contract.call_network(self.network, observation)

    def parameters(self, observation: Nest, *, target: bool = False, training: bool = False) -> Tensor:
        """Return the `parameters [M, P]` of `outputs`."""
        return self.outputs(observation, target=target, training=training)["parameters"]

    def log_prob(self, parameters: Tensor, action: Nest, mask: Tensor | None = None) -> Tensor:
        """Return the log-probability `[M]` of a trajectory's actions. mask: allowed choices; None: all are."""
        return self._distribution.log_prob(parameters, self._flatten(action), mask)

    def sample(self, parameters: Tensor, noise: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return actions within -1 and 1, `[M, d]`, and their log-density `[M]` there. noise: standard normal.

        Of a Discrete space: the probabilities of all choices, `[M, n]`, and the mean of their logarithms, `[M]`.
        """
        if not self.choices:
            return self._distribution.draw(parameters, noise)
        return ops.softmax(allowed_only(parameters, mask)), -self._distribution.entropy(parameters, mask)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most likely actions within -1 and 1, `[M, d]`."""
        return self._within_one(self._distribution.mode(parameters))

    def mean(self, parameters: Tensor) -> Tensor:
        """Return the means of actions in units in which bounds are -1 and 1, `[M, d]`; some may be beyond these."""
        return self._within_one(self._distribution.mode(parameters), clipped=False)

    def scaled(self, action: Nest) -> Tensor:
        """Return a trajectory's actions as critics see them, `[M, d]`, within -1 and 1; one-hot choices `[M, n]`."""
        if self.choices:
            return ops.one_hot(action, self.choices, dtype="float32")
        return self._within_one(self._flatten(action))

    def expected(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the values `[..., M]` of actions: of a Discrete space the means of `[..., M, n]` by probabilities."""
        return ops.sum(action * values, axis=-1) if self.choices else values

    def _within_one(self, leaves: Sequence[Tensor], *, clipped: bool = True) -> Tensor:
        rows = [
            ops.reshape(values, (-1, math.prod(leaf.shape))) for leaf, values in zip(self._leaves, leaves, strict=True)
        ]
        action = rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=-1)
        if self._squashed:
            return ops.tanh(action)
        middles = [middle(leaf.space, np.float32) for leaf in self._leaves]
        centre, half = (np.concatenate([part.reshape(-1) for part in parts]) for parts in zip(*middles, strict=True))
        scaled = (action - centre) / half
        return ops.clip(scaled, -1.0, 1.0) if clipped else scaled

    def critic_outputs(
        self, observation: Nest, action: Tensor, *, target: bool = False, training: bool = False
    ) -> Tensor:
        """Return what each critic gives for an action, `[critics, M, critic_size]`."""
        found, kinds = [], contract.NOISE + (self.batches if training else ())
        for critic in self.critics:
            with self._weights(critic, target), contract.in_training(critic, kinds):
                output = self.call_critic(critic, observation, action)
            found.append(ops.reshape(ops.cast(output, "float32"), (-1, self.critic_size)))
        return ops.stack(found)

    def critic_values(
        self, observation: Nest, action: Tensor, *, target: bool = False, training: bool = False
    ) -> Tensor:
        """Return the value of an action by each critic, the mean of its outputs, `[critics, M]`.

        Of a Discrete space: those of all choices, `[critics, M, n]`.
        """
        outputs = self.critic_outputs(observation, action, target=target, training=training)
        if self.choices:
            return outputs
        return ops.squeeze(outputs, -1) if self.critic_size == 1 else ops.mean(outputs, axis=-1)

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of tensors, without a gradient, as one program where the update isn't one already."""
        return backend.fused(function)

    def call_critic(self, critic: keras.Model, observation: Nest, action: Tensor) -> Tensor:
        """Return what a critic returns for an observation, without its mask, and an action."""
        seen = drop_mask(observation)
        return critic(seen if self.choices else (seen, action), training=False)

    @contextlib.contextmanager
    def _weights(self, model: keras.Model, target: bool) -> Iterator[None]:
        """Let a model have the weights of its copy, if `target`. Its random generators go on."""
        self.calls_a_copy = target
        if not target:
            yield
            return
        weights = {id(weight) for weight in model.weights}
        others = [variable for variable in model.variables if id(variable) not in weights]
        pairs = [*zip(others, others, strict=True), *zip(model.weights, self._copies[id(model)], strict=True)]
        # Read outside of the scope, which needs all variables.
        with keras.StatelessScope([(one, ops.convert_to_tensor(value.value)) for one, value in pairs]) as scope:
            yield
            self.calls_a_copy = False
        for variable in others:
            variable.assign(scope.get_current_value(variable))

    def _pairs(self) -> Iterator[tuple[keras.Variable, keras.Variable, bool]]:
        """Yield the weights of copied models, their copies, and whether they are trained."""
        for model in self._copied:
            trained = {id(variable) for variable in model.trainable_variables}
            for weight, copy in zip(model.weights, self._copies[id(model)], strict=True):
                yield weight, copy, id(weight) in trained

    @property
    def statistics(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """The weights of copied models that aren't trained, such as statistics of observations, and their copies."""
        return [(weight, copy) for weight, copy, trained in self._pairs() if not trained]

    def copy_statistics(self) -> None:
        """Copy the weights that aren't trained."""
        for weight, copy in self.statistics:
            copy.assign(weight.value)

    def move_targets(self, rate: Any) -> None:
        """Move the copies by a part of the way to the weights; 1 makes them equal. Statistics are always copied."""
        for weight, copy, trained in self._pairs():
            copy.assign(_between(copy.value, weight.value, rate) if trained else weight.value)


def _between(before: Tensor, after: Tensor, rate: Any) -> Tensor:
    if isinstance(rate, float):
        moved = before + rate * (after - before)
        return moved if rate < 1.0 else after
    moved = before + ops.cast(rate, before.dtype) * (after - before)
    return ops.where(rate < 1.0, moved, after)
