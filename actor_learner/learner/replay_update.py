"""The update of an off-policy algorithm, as it is traced into one compiled graph: K gradient steps on drawn rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK, LossGroup, OffPolicy
from actor_learner.learner import backend
from actor_learner.learner.finite import Snapshot, all_finite, have_finite_squares
from actor_learner.learner.models import TrainedModels
from actor_learner.system.types import Nest, Tensor

_CHECKED_ROWS = 128


class ReplayUpdate:
    """Up to K gradient steps of models that are built. Calling it mutates weights, targets and optimizers.

    If a metric, a number of this state or an output of the new network isn't finite, all of it stays as it was.

    optimizers: of each group, built. gradient_steps: those that were taken before.
    """

    def __init__(
        self,
        models: TrainedModels,
        algorithm: OffPolicy,
        optimizers: Mapping[str, keras.Optimizer],
        gradient_steps: int = 0,
    ) -> None:
        self._models, self._algorithm, self._optimizers = models, algorithm, dict(optimizers)
        self._steps = keras.Variable(gradient_steps, dtype="int", trainable=False, name="gradient_steps")
        self.metric_names: tuple[str, ...] = ()
        self.every: dict[str, int] = {}
        """Of metrics of groups that aren't stepped each time: the gradient steps from one of the group's to its next.

        Each of these metrics is a mean over all steps, with 0 for those that are left out.
        """
        self.checked_names: tuple[str, ...] = ()

    def __call__(
        self, rows: Mapping[str, Nest], count: Tensor, move_before_update: Tensor, schedule: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Step `count` times, and undo it all if something isn't finite.

        Args:
            rows: The fields of `Minibatches`, `[K, M, ...]` each, and `noise`.
            count: The number of minibatches that are learned, from the first on.
            move_before_update: How far targets move before.
            schedule: Values of scheduled hyperparameters; `learning_rate` is there if it is to be written.

        Returns:
            Metrics as a float32 vector, in the order of `metric_names`, "undone" (0 or 1) last; which of the things in
            `checked_names` are finite; the temporal-difference errors `[K, M]`, 0 where nothing was learned.
        """
        before = Snapshot(self.state)
        schedule = dict(schedule)
        if (rate := schedule.pop("learning_rate", None)) is not None:
            self._optimizers[NETWORK].learning_rate = rate
        algorithm = self._algorithm.at(schedule)
        self._share_learning_rate()
        backend.cond(move_before_update > 0.0, lambda: self._models.move_targets(move_before_update), self.state)
        metrics, errors = self._learn(algorithm, rows, count)
        self.checked_names, finite = self._finite(metrics, rows)
        undone = ops.logical_not(ops.all(finite))
        metrics |= {"learning_rate": self._optimizers[NETWORK].learning_rate, "undone": undone}
        values = ops.stack([ops.cast(value, "float32") for value in metrics.values()])
        before.put_back_where(undone)
        self.metric_names = tuple(metrics)
        return values, finite, errors

    def _share_learning_rate(self) -> None:
        """Give every optimizer the network's learning rate, which a callback may have changed."""
        rate = self._optimizers[NETWORK].learning_rate
        for name, optimizer in self._optimizers.items():
            if name != NETWORK and isinstance(rate, keras.Variable):  # else a Keras schedule, which each has
                optimizer.learning_rate.assign(rate.value)

    @property
    def state(self) -> list[keras.Variable]:
        """All variables that an update may assign, or that change between updates."""
        models = [self._models.network, *self._models.critics]
        optimizers = [variable for optimizer in self._optimizers.values() for variable in optimizer.variables]
        return [
            *(variable for model in models for variable in model.variables),
            *self._models.targets,
            *self._models.variables.values(),
            *optimizers,
            self._steps,
        ]

    def _learn(self, algorithm: OffPolicy, rows: Mapping[str, Nest], count: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Step through the minibatches. Returns means of the metrics, and the errors `[K, M]`."""
        names = self._metric_names(rows)
        slots, size = rows["reward"].shape
        numbers = np.arange(slots, dtype=np.int32)[:, None]

        def step(index: Tensor, sums: Tensor, errors: Tensor) -> tuple[Tensor, ...]:
            metrics, error = self._step(algorithm, _minibatch(rows, index))
            values = ops.stack([ops.cast(metrics[name], "float32") for name in names])
            return index + 1, sums + values, ops.where(ops.equal(numbers, index), error[None], errors)

        start = (np.int32(0), np.zeros(len(names), np.float32), np.zeros((slots, size), np.float32))
        _, sums, errors = backend.while_loop(
            lambda index, sums, errors: index < count, step, tuple(map(ops.convert_to_tensor, start)), self.state
        )
        means = sums / ops.cast(ops.maximum(count, 1), "float32")
        return {name: means[index] for index, name in enumerate(names)}, errors

    def _step(self, algorithm: OffPolicy, minibatch: dict[str, Nest]) -> tuple[dict[str, Tensor], Tensor]:
        """Step each group's optimizer once, then move the targets. Returns metrics and the errors `[M]`."""
        metrics: dict[str, Tensor] = {}
        self._steps.assign(self._steps.value + 1)
        for group in algorithm.groups():
            of_group, outputs = self._step_group(algorithm, group, minibatch)
            metrics |= of_group
            minibatch |= {name: ops.stop_gradient(value) for name, value in outputs.items()}
        if (every := algorithm.moves_every) == 1:
            self._models.move_targets(algorithm.tau)
        elif every is not None:
            due = ops.equal(self._steps.value % every, 0)
            backend.cond(due, lambda: self._models.move_targets(algorithm.tau), self.state)
        if "error" not in minibatch:
            raise ValueError(f"One of {algorithm.name}'s losses must give `error`, of every row. Received: none")
        return metrics, minibatch["error"]

    def _step_group(
        self, algorithm: OffPolicy, group: LossGroup, minibatch: dict[str, Nest]
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        """Step a group's optimizer, where it is due. Returns metrics, and the outputs for later groups."""

        def step(minibatch: dict[str, Nest]) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
            gradients, metrics, outputs = self._gradients(group, minibatch)
            if algorithm.max_grad_norm is not None and not algorithm.clones_optimizer:
                name = "gradient_norm" if group.name == NETWORK else f"{group.name}_gradient_norm"
                metrics[name] = backend.global_norm([gradient for gradient in gradients if gradient is not None])
            backend.apply_gradients(self._optimizers[group.name], gradients, self._models.trained(group.name))
            return metrics, outputs

        if group.every == 1:
            return step(minibatch)
        names: list[str] = []  # the whole step is left out: an optimizer with momentum moves on gradients of 0, too

        def probe(minibatch: dict[str, Nest]) -> None:
            names.extend(sorted(step(minibatch)[0]))

        def due() -> Tensor:
            metrics, _ = step(minibatch)
            return ops.stack([ops.cast(metrics[name], "float32") for name in names])

        backend.trace_once(probe, minibatch)
        is_due = ops.equal(self._steps.value % group.every, 0)
        values = backend.choose(is_due, due, lambda: ops.zeros((len(names),), "float32"), self.state)
        self.every |= dict.fromkeys(names, group.every)
        return {name: values[index] for index, name in enumerate(names)}, {}

    def _gradients(
        self, group: LossGroup, minibatch: dict[str, Nest]
    ) -> tuple[list[Tensor | None], dict[str, Tensor], Mapping[str, Tensor]]:
        """Return the gradients of a group's loss, its metrics, and the outputs for later groups."""

        def loss() -> tuple[Tensor, Any]:
            of_group = group.loss(self._models, minibatch)
            losses = {NETWORK: [self._models.network], CRITICS: self._models.critics}.get(group.name, [])
            extra = [ops.sum(ops.stack(model.losses)) for model in losses if model.losses]
            return sum(extra, of_group.value), (of_group.metrics, dict(of_group.outputs))

        gradients, (metrics, outputs) = backend.gradients(loss, self._models.trained(group.name), self.state)
        return gradients, dict(metrics), outputs

    def _metric_names(self, rows: Mapping[str, Nest]) -> list[str]:
        """Return the names of the metrics, found by tracing a step in a graph that is thrown away."""
        names: list[str] = []
        constants = {name: 1.0 for name in self._algorithm.SCHEDULED if getattr(self._algorithm, name) is not None}

        def probe(rows: Mapping[str, Nest]) -> None:
            names.extend(self._step(self._algorithm.at(constants), _minibatch(rows, 0))[0])

        backend.trace_once(probe, rows)
        return sorted(names)

    def _finite(self, metrics: Mapping[str, Tensor], rows: Mapping[str, Nest]) -> tuple[tuple[str, ...], Tensor]:
        """Return the names of metrics, of the parts of the state and of outputs, and which of them are finite."""
        trained = [variable for name in self._optimizers for variable in self._models.trained(name)]
        optimizers = [variable for optimizer in self._optimizers.values() for variable in optimizer.variables]
        size = min(rows["reward"].shape[1], _CHECKED_ROWS)
        observation = tree.map_structure(lambda leaf: leaf[0, :size], rows["observation"])
        parts = {
            "weights": have_finite_squares([variable.value for variable in trained]),
            "optimizer": all_finite([variable.value for variable in optimizers]),
            "targets": all_finite([variable.value for variable in self._models.targets]),
            "outputs": all_finite([self._models.parameters(observation)]),
        }
        found = ops.isfinite(ops.stack([ops.cast(value, "float32") for value in metrics.values()]))
        return (*metrics, *parts), ops.concatenate([found, ops.stack(list(parts.values()))], axis=0)


def _minibatch(rows: Mapping[str, Nest], index: Any) -> dict[str, Nest]:
    found: dict[str, Nest] = tree.map_structure(lambda leaf: leaf[index], dict(rows))
    return found
