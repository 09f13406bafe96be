"""The update of an off-policy algorithm, as it is traced into one compiled graph: K gradient steps on drawn rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from keras import ops, tree

from actor_learner.algorithms.off_policy.base import NETWORK, LossGroup, OffPolicy
from actor_learner.learner import backend
from actor_learner.learner.diagnose import Diagnosis
from actor_learner.learner.models import TrainedModels
from actor_learner.learner.owned import variables
from actor_learner.learner.steps import (
    Snapshot,
    Steps,
    all_finite,
    apply_gradients,
    check_scalar,
    have_finite_squares,
    vector,
)
from actor_learner.system.fields import refusal
from actor_learner.system.types import Nest, Tensor

_CHECKED_ROWS = 128


class ReplayUpdate(Steps):
    """Up to K gradient steps of models that are built. Calling it mutates weights, targets and optimizers.

    optimizers: of each group, built. gradient_steps: those that were taken before. diagnose: measure the layers of each
    group in each of its steps.
    """

    def __init__(
        self,
        models: TrainedModels,
        algorithm: OffPolicy,
        optimizers: Mapping[str, keras.Optimizer],
        gradient_steps: int = 0,
        *,
        diagnose: bool = False,
    ) -> None:
        super().__init__(algorithm, optimizers[NETWORK])
        self._models, self._optimizers = models, dict(optimizers)
        self._own = [variable for part in models.own.values() for variable in variables(part)]
        self._statistics = [*self._own, *models.batch_statistics]
        self._diagnoses = {name: Diagnosis(models.of_group(name) if diagnose else {}) for name in optimizers}
        self._steps = keras.Variable(gradient_steps, dtype="int", trainable=False, name="gradient_steps")
        self.every: dict[str, int] = {}
        """Of metrics of groups that aren't stepped each time: the gradient steps from one of the group's to its next.

        Each of these metrics is a mean over all steps, with 0 for those that are left out.
        """

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
            Metrics as a float32 vector, in the order of `metric_names`; which of the things in `checked_names` are
            finite; the temporal-difference errors `[K, M]`, 0 where nothing was learned.
        """
        before = Snapshot(self.state)
        algorithm = self._at(schedule)
        self._share_learning_rate(self._optimizers.values())
        backend.cond(move_before_update > 0.0, lambda: self._models.move_targets(move_before_update), self.state)
        metrics, errors = self._learn(algorithm, rows, count)
        size = min(rows["reward"].shape[1], _CHECKED_ROWS)
        observation = tree.map_structure(lambda leaf: leaf[0, :size], rows["observation"])
        trained = [variable for name in self._optimizers for variable in self._models.trained(name)]
        optimizers = [variable for optimizer in self._optimizers.values() for variable in optimizer.variables]
        parts = {
            "weights": have_finite_squares([variable.value for variable in trained]),
            "optimizer": all_finite([variable.value for variable in optimizers]),
            "targets": all_finite([variable.value for variable in self._models.targets]),
            **({"statistics": all_finite([one.value for one in self._statistics])} if self._statistics else {}),
            "outputs": all_finite([self._models.parameters(observation)]),
        }
        return *self._end(before, metrics, {}, ops.isfinite(vector(metrics)), parts), errors

    @property
    def state(self) -> list[keras.Variable]:
        models = [self._models.network, *self._models.critics]
        optimizers = [variable for optimizer in self._optimizers.values() for variable in optimizer.variables]
        return [
            *(variable for model in models for variable in model.variables),
            *self._models.targets,
            *self._models.variables.values(),
            *self._own,
            *optimizers,
            self._steps,
        ]

    def _learn(self, algorithm: OffPolicy, rows: Mapping[str, Nest], count: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Step through the minibatches. Returns means of the metrics, and the errors `[K, M]`."""
        rows, names = dict(rows), list[str]()
        slots, size = rows["reward"].shape
        numbers = np.arange(slots, dtype=np.int32)[:, None]

        def learn(rows: dict[str, Nest], index: Tensor) -> tuple[Tensor, Tensor]:
            metrics, error = self._step(algorithm, tree.map_structure(lambda leaf: leaf[index], rows))
            names[:] = sorted(metrics)
            return vector(metrics, names), error

        learned = backend.traced(learn, self.state, rows, np.int32(0))

        def step(index: Tensor, sums: Tensor, errors: Tensor) -> tuple[Tensor, ...]:
            values, error = learned(rows, index)
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
        for every, groups in itertools.groupby(algorithm.groups(), key=lambda group: group.every):
            metrics |= self._step_groups(algorithm, list(groups), every, minibatch)
        if (every := algorithm.moves_every) == 1:
            self._models.move_targets(algorithm.tau)
        elif every is not None:
            due = ops.equal(self._steps.value % every, 0)
            backend.cond(due, lambda: self._models.move_targets(algorithm.tau), self.state)
        if "error" not in minibatch:
            name = type(algorithm).__name__
            raise ValueError(f"One of {name}'s losses must give `error`, of every row. Received: none")
        if (shape := tuple(minibatch["error"].shape)) != (rows := tuple(minibatch["reward"].shape)):
            raise refusal("error", f"a number for each of the rows {list(rows)}", f"a tensor of shape {list(shape)}")
        return metrics, minibatch["error"]

    def _step_group(
        self, algorithm: OffPolicy, group: LossGroup, minibatch: dict[str, Nest]
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        """Step a group's optimizer. Returns metrics, and the outputs for later groups."""

        def loss() -> tuple[Tensor, tuple[dict[str, Tensor], dict[str, Tensor]]]:
            with diagnosis.watching(lambda: self._models.calls_a_copy) as dead_units:
                of_group = group.loss(self._models, minibatch)
            models = self._models.of_group(group.name).values()
            extra = [ops.sum(ops.stack(model.losses)) for model in models if model.losses]
            value = check_scalar(f"loss of {group.name}", of_group.value)
            return sum(extra, value), ({**of_group.metrics, **dead_units}, dict(of_group.outputs))

        stepped, diagnosis = self._models.trained(group.name), self._diagnoses[group.name]
        gradients, (metrics, outputs) = backend.gradients(loss, stepped, self.state)
        if algorithm.max_grad_norm is not None or algorithm.clones_optimizer:
            name = "gradient_norm" if group.name == NETWORK else f"{group.name}_gradient_norm"
            metrics[name] = backend.global_norm([gradient for gradient in gradients if gradient is not None])
        measured = diagnosis.step(stepped, gradients)
        apply_gradients(self._optimizers[group.name], gradients, stepped)
        return metrics | measured(), outputs

    def _step_groups(
        self, algorithm: OffPolicy, groups: Sequence[LossGroup], every: int, minibatch: dict[str, Nest]
    ) -> dict[str, Tensor]:
        """Step groups that are due together, where they are due. Returns metrics.

        Each group's outputs join the minibatch, but for those of groups that may be left out.
        """

        def step(minibatch: dict[str, Nest]) -> dict[str, Tensor]:
            metrics: dict[str, Tensor] = {}
            for group in groups:
                of_group, outputs = self._step_group(algorithm, group, minibatch)
                metrics |= of_group
                minibatch |= {name: ops.stop_gradient(value) for name, value in outputs.items()}
            return metrics

        if every == 1:
            return step(minibatch)
        names: list[str] = []  # the whole step is left out: an optimizer with momentum moves on gradients of 0, too

        def step_all(minibatch: dict[str, Nest]) -> Tensor:
            metrics = step(dict(minibatch))
            names[:] = sorted(metrics)
            return vector(metrics, names)

        stepped = backend.traced(step_all, self.state, minibatch)
        is_due = ops.equal(self._steps.value % every, 0)
        values = backend.choose(
            is_due, lambda: stepped(minibatch), lambda: ops.zeros((len(names),), "float32"), self.state
        )
        self.every |= dict.fromkeys(names, every)
        return {name: values[index] for index, name in enumerate(names)}
