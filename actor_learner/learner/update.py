"""The update, as it is traced into one compiled graph: from a raw batch to new weights and metrics."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from keras import ops, tree

from actor_learner.algorithms.base import Algorithm, Evaluated
from actor_learner.learner import backend
from actor_learner.learner.batch import (
    Nest,
    Tensor,
    in_chunks,
    minibatch_of,
    side_by_side,
    with_bootstrap_row,
    without_bootstrap_row,
    without_invalid,
)
from actor_learner.learner.finite import all_finite, have_finite_squares
from actor_learner.learner.loss_scaling import LossScaling
from actor_learner.learner.rewards import RewardScaling, clip_reward
from actor_learner.learner.rollback import Snapshot
from actor_learner.networks import contract
from actor_learner.spaces.spaces import Spaces

ROWS_FOR_EACH_CHECKED = 64
"""The new network is called with one row for each 64 that it learned from: half a percent of the arithmetic."""

MAXIMUM_CHECKED_ROWS = 128


class Update:
    """One update of a network that is built. Calling it mutates weights, optimizer and running statistics.

    If a metric, a number of this state or an output of the new network isn't finite, all of it stays as it was.
    """

    def __init__(
        self,
        network: keras.Model,
        algorithm: Algorithm,
        spaces: Spaces,
        optimizer: keras.Optimizer,
        trainable: Sequence[keras.Variable],
        reward_scaling: RewardScaling | None,
    ) -> None:
        self._network = network
        self._algorithm = algorithm
        self._optimizer = optimizer
        self._loss_scaling = LossScaling(optimizer)
        self._trainable = list(trainable)
        self._reward_scaling = reward_scaling
        self._distribution = contract.network_distribution(network, spaces)
        self._actions = spaces.action
        self.metric_names: tuple[str, ...] = ()
        self.batch_metric_names: tuple[str, ...] = ()
        self.checked_names: tuple[str, ...] = ()

    def __call__(
        self, batch: Mapping[str, Nest], order: Tensor, num_minibatches: Tensor, schedule: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Update once, and undo the update if something in it isn't finite.

        Args:
            batch: The fields of a trajectory; `on_policy [B]`, in mixed precision, marks columns that the present
                weights have collected.
            order: Row indices `[minibatches, devices, rows]`, among those of a device, -1 for none.
            num_minibatches: The number of minibatches that are learned.
            schedule: Values of scheduled hyperparameters; `learning_rate` is there if it is to be written.

        Returns:
            Metrics as a float32 vector, in the order of `metric_names`, "undone" (0 or 1) last; and which of the things
            in `checked_names` are finite. Tracing fills these names, and `batch_metric_names`, which are metrics of
            the whole batch, where NaN stands for no value.
        """
        before = Snapshot(self.state)
        metrics, batch_metrics, rows = self._learn_batch(batch, order, num_minibatches, schedule)
        self.checked_names, finite = self._finite(metrics, self._outputs(rows, order))
        undone = ops.logical_not(ops.all(finite))
        metrics |= batch_metrics | {"learning_rate": self._optimizer.learning_rate, "undone": undone}
        values = ops.stack([ops.cast(value, "float32") for value in metrics.values()])
        before.put_back_where(undone)
        self.metric_names, self.batch_metric_names = tuple(metrics), tuple(batch_metrics)
        return values, finite

    @property
    def state(self) -> list[keras.Variable]:
        """All variables that an update may assign."""
        return list(itertools.chain(*self._state_parts().values()))

    def _state_parts(self) -> dict[str, list[keras.Variable]]:
        trained = {id(variable) for variable in self._trainable}
        return {
            "weights": list(self._trainable),
            "optimizer": list(self._optimizer.variables),
            "statistics": [
                *(variable for variable in self._network.variables if id(variable) not in trained),
                *([] if self._reward_scaling is None else self._reward_scaling.variables),
            ],
        }

    def _finite(self, metrics: Mapping[str, Tensor], outputs: Sequence[Tensor]) -> tuple[tuple[str, ...], Tensor]:
        """Return the names of metrics, of the parts of the state and of outputs, and which of them are finite.

        Weights must have finite squares, too.
        """
        parts = {name: [variable.value for variable in part] for name, part in self._state_parts().items()}
        weights = have_finite_squares(parts.pop("weights"))
        parts["outputs"] = list(outputs)
        finite = [
            ops.isfinite(ops.stack(list(metrics.values()))),
            ops.stack([weights, *map(all_finite, parts.values())]),
        ]
        return (*metrics, "weights", *parts), ops.concatenate(finite, axis=0)

    def _learn_batch(
        self, batch: Mapping[str, Nest], order: Tensor, num_minibatches: Tensor, schedule: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Nest]]:
        """Learn, and update the statistics. Returns metrics of minibatches, of the batch, and `[T x B]` rows."""
        schedule = dict(schedule)
        if (rate := schedule.pop("learning_rate", None)) is not None:
            self._optimizer.learning_rate = rate
        algorithm = self._algorithm.at(schedule)
        batch = without_invalid(batch)
        batch["reward"] = self._scaled_reward(batch)
        final: dict[str, Nest] = {name: batch.pop(name) for name in ("final_observation", "final_row") if name in batch}
        batch.pop("start", None)
        fields = algorithm.rows(batch, functools.partial(self._evaluate, final))
        rows = side_by_side({**fields, "observation": without_bootstrap_row(batch["observation"])})
        metrics, scaling_metrics = self._learn(algorithm, rows, order, num_minibatches)
        for layer in contract.normalization_layers(self._network):
            layer.update(contract.normalized_leaf(layer, rows["observation"]), rows["valid"])
        return metrics, algorithm.batch_metrics(rows) | scaling_metrics, rows

    def _outputs(self, rows: Mapping[str, Nest], order: Tensor) -> list[Tensor]:
        """Return the new network's outputs for some of the learned rows, values squared, as in any loss."""
        minibatches, _, size = order.shape
        count = min(size, max(1, minibatches * size // ROWS_FOR_EACH_CHECKED), MAXIMUM_CHECKED_ROWS)
        outputs = self._call(minibatch_of(rows, order[0, :, :count]), entropy=False)
        return [outputs["parameters"], outputs["log_prob"], ops.square(outputs["value"])]

    def _scaled_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        reward = clip_reward(batch["reward"], self._algorithm.rewards.clip)
        if self._reward_scaling is None:
            return reward
        ended = ops.logical_or(batch["terminated"], batch["truncated"])
        begins = batch["start"][0] if "start" in batch else None
        return self._reward_scaling.scale(reward, ended, batch["valid"], batch["env_index"], begins)

    def _evaluate(self, final: Mapping[str, Nest], batch: Mapping[str, Nest]) -> Evaluated:
        """Evaluate a batch under the present weights. final: Its `final_observation` and `final_row`, if it has them.

        A row that cut an episode off gets this network's value of the last observation, where the batch holds it: in
        `final_observation`, or in the next row, if that is invalid.
        """
        beside = {name: with_bootstrap_row(batch[name]) for name in ("action", "action_mask") if name in batch}
        rows = side_by_side({"observation": batch["observation"], **beside})

        def evaluate(rows: Mapping[str, Nest]) -> tuple[Tensor, Tensor]:
            outputs = self._call(rows, entropy=False)
            return outputs["value"], outputs["log_prob"]

        numbers = sum(math.prod(leaf.shape[1:]) for leaf in tree.flatten(rows["observation"]))
        value, log_prob = in_chunks(evaluate, rows, numbers, self.state)
        steps = batch["valid"].shape[0]
        value, log_prob = (backend.unflatten(values, steps + 1) for values in (value, log_prob))
        truncation_value = batch["truncation_value"]
        if final:
            truncation_value = self._truncation_values(final, batch, value)
        return Evaluated(value, log_prob[:-1], truncation_value)

    def _truncation_values(self, final: Mapping[str, Nest], batch: Mapping[str, Tensor], value: Tensor) -> Tensor:
        """Return `[T, B]` values of the last observations of truncated episodes; the actor's where they are unknown."""
        valid, truncated = batch["valid"], batch["truncated"]
        row = ops.expand_dims(ops.arange(valid.shape[0], dtype="int32"), 1)
        closes = ops.logical_and(truncated, ops.equal(row, final["final_row"]))
        invalid_next = ops.concatenate([ops.logical_not(valid[1:]), ops.zeros_like(valid[:1])], axis=0)
        known = ops.where(ops.logical_and(truncated, invalid_next), value[1:], batch["truncation_value"])

        def of_last() -> Tensor:
            outputs = contract.call_network(self._network, final["final_observation"])
            return ops.where(closes, ops.reshape(outputs["value"], (1, -1)), known)

        return backend.choose(ops.any(closes), of_last, lambda: known, self.state)

    def _learn(
        self, algorithm: Algorithm, rows: dict[str, Nest], order: Tensor, num_minibatches: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Step through the minibatches.

        Returns metrics as means over them, the one that ends the update included, and those of loss scaling.
        """
        names = self._metric_names(algorithm, rows, order)
        algorithm.check_metrics(names)

        def step(index: Tensor, stopped: Tensor, sums: Tensor, count: Tensor) -> tuple[Tensor, ...]:
            gradients, metrics = self._gradients(algorithm, minibatch_of(rows, order[index]))
            if (ends := algorithm.ends_update(metrics)) is None:
                ends = ops.convert_to_tensor(False)
                self._apply(gradients)
            else:
                backend.cond(ops.logical_not(ends), lambda: self._apply(gradients), self.state)
            values = ops.stack([ops.cast(metrics[name], "float32") for name in names])
            return index + 1, ends, sums + values, count + 1.0

        start = (np.int32(0), np.bool_(False), np.zeros(len(names), np.float32), np.float32(0.0))
        _, _, sums, count = backend.while_loop(
            lambda index, stopped, sums, count: ops.logical_and(index < num_minibatches, ops.logical_not(stopped)),
            step,
            tuple(map(ops.convert_to_tensor, start)),
            self.state,
        )
        means = sums / ops.maximum(count, 1.0)
        metrics = {name: means[index] for index, name in enumerate(names)}
        return metrics, self._loss_scaling.report(metrics, count)

    def _metric_names(self, algorithm: Algorithm, rows: dict[str, Nest], order: Tensor) -> list[str]:
        """Return the names of the loss's metrics, found by tracing it in a graph that is thrown away."""
        names: list[str] = []
        constants = {name: 1.0 for name in algorithm.SCHEDULED if getattr(algorithm, name) is not None}

        def probe(rows: dict[str, Nest], order: Tensor) -> None:
            names.extend(self._loss(algorithm.at(constants), minibatch_of(rows, order[0]))[1])

        backend.trace_once(probe, rows, order)
        return sorted([*names, "gradient_norm", *self._loss_scaling.step_metrics])

    def _call(self, rows: Mapping[str, Nest], *, entropy: bool) -> dict[str, Tensor]:
        """Return the network's outputs, with `log_prob [N]` of the rows' actions and the `entropy [N]`."""
        outputs = contract.call_network(self._network, rows["observation"])
        action, mask = self._actions.flatten(rows["action"]), rows.get("action_mask")
        outputs["log_prob"] = self._distribution.log_prob(outputs["parameters"], action, mask)
        if entropy:
            outputs["entropy"] = self._distribution.entropy(outputs["parameters"], mask)
        return outputs

    def _loss(self, algorithm: Algorithm, minibatch: dict[str, Nest]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = self._call(minibatch, entropy=True)
        for name in ("log_prob", "entropy", "value"):  # of an invalid row they may be so far off that a ratio overflows
            outputs[name] = ops.where(minibatch["valid"], outputs[name], ops.zeros_like(outputs[name]))
        loss, metrics = algorithm.loss(outputs, minibatch)
        if self._network.losses:
            loss = loss + ops.sum(ops.stack(self._network.losses))
        return loss, {**metrics, "loss": loss}

    def _gradients(
        self, algorithm: Algorithm, minibatch: dict[str, Nest]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        """Return the gradients of the scaled loss, for the optimizer, and metrics of the loss itself."""

        def scaled_loss() -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = self._loss(algorithm, minibatch)
            return self._loss_scaling.scaled(loss), metrics

        gradients, metrics = backend.gradients(scaled_loss, self._trainable, self.state)
        found = [gradient for gradient in gradients if gradient is not None]
        metrics["gradient_norm"] = backend.global_norm(self._loss_scaling.unscaled(found))
        return gradients, self._loss_scaling.without_skipped(metrics, found)

    def _apply(self, gradients: list[Tensor | None]) -> None:
        """Step the optimizer on the weights that have a gradient (a head that the loss ignores has none)."""
        backend.apply_gradients(self._optimizer, gradients, self._trainable)
        self._loss_scaling.bound()
