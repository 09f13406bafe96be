"""The update, as it is traced into one compiled graph: from a raw batch to new weights and metrics."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from actor_learner.algorithms.base import Algorithm, Evaluated
from actor_learner.learner import backend
from actor_learner.learner.batch import (
    in_sequences,
    minibatch_of,
    sequences_of,
    side_by_side,
    without_invalid,
)
from actor_learner.learner.diagnose import Diagnosis
from actor_learner.learner.network_calls import NetworkCalls
from actor_learner.learner.owned import Owned
from actor_learner.learner.rewards import RewardScaling, clip_reward
from actor_learner.learner.steps import (
    Snapshot,
    Steps,
    all_finite,
    apply_gradients,
    check_scalar,
    have_finite_squares,
    vector,
)
from actor_learner.networks import contract
from actor_learner.networks.memory import require_state
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.types import Nest, Tensor

LEARNED_ROWS_PER_CHECKED_ROW = 64
"""The new network is called with one row for each 64 that it learned from: half a percent of the arithmetic."""

MAX_CHECKED_ROWS = 128

_LOG_PROBS = ("behaviour_log_prob", "target_log_prob", "log_rho")
"""The fields of a minibatch from which ratios are computed."""


class Update(Steps):
    """One update of a network that is built. Calling it mutates weights, optimizer and running statistics.

    fitting: How many rows may enter the network at once without gradients, beyond `batch.CHUNK_NUMBERS`.
    diagnose: Measure the layers of the network and of the algorithm's own models in each minibatch.
    """

    def __init__(
        self,
        network: keras.Model,
        algorithm: Algorithm,
        spaces: Spaces,
        optimizer: keras.Optimizer,
        trainable: Sequence[keras.Variable],
        reward_scaling: RewardScaling | None,
        sequence_length: int,
        burn_in: int,
        fitting: int,
        owned: Owned,
        *,
        diagnose: bool = False,
    ) -> None:
        super().__init__(algorithm.at({"_outputs": self._network_outputs}), optimizer)
        self._owned, own = owned, list(owned.steps)
        self._groups = [(optimizer, list(trainable)), *own]
        if not any(group for _, group in self._groups):
            what = "A weight of the network must be trainable, or nothing is learned: set `trainable` of a layer"
            raise ValueError(f"{what}. Received: network={network.name!r}, all of its layers frozen")
        self._network = network
        self._diagnosis = Diagnosis({"": network, **owned.models} if diagnose else {})
        self._trainable = list(trainable)
        self._reward_scaling = reward_scaling
        self.calls = NetworkCalls(network, spaces, sequence_length, lambda: self.state, fitting)
        self._sequence_length, self._burn_in = sequence_length, burn_in
        self.batch_metric_names: tuple[str, ...] = ()

    def _network_outputs(self, minibatch: Mapping[str, Nest]) -> dict[str, Tensor]:
        return self.calls.outputs(minibatch, entropy=True)

    def __call__(
        self, batch: Mapping[str, Nest], order: Tensor, num_minibatches: Tensor, schedule: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Update once, and undo the update if something in it isn't finite.

        Args:
            batch: The fields of a trajectory; `on_policy [B]`, in mixed precision, marks columns that the present
                weights have collected.
            order: Row indices `[minibatches, devices, rows]`, among those of a device, -1 for none; with memory,
                indices of sequences.
            num_minibatches: The number of minibatches that are learned.
            schedule: Values of scheduled hyperparameters; `learning_rate` is there if it is to be written.

        Returns:
            Metrics as a float32 vector, in the order of `metric_names`; and which of the things in `checked_names` are
            finite. Tracing fills these names, and `batch_metric_names`, which are metrics of the whole batch, where NaN
            stands for no value.
        """
        before = Snapshot(self.state)
        with require_state():
            metrics, batch_metrics, minibatches = self._learn_batch(batch, order, num_minibatches, schedule)
            outputs = self._outputs(minibatches, order)
        self.batch_metric_names = tuple(batch_metrics)
        values = {name: [variable.value for variable in part] for name, part in self._state_parts().items()}
        of_weights = have_finite_squares(values.pop("weights"))
        of_metrics = ops.isfinite(vector(metrics))
        of_others = {name: all_finite(part) for name, part in {**values, "outputs": outputs}.items()}
        return self._end(before, metrics, batch_metrics, of_metrics, {"weights": of_weights, **of_others})

    @property
    def state(self) -> list[keras.Variable]:
        return list(itertools.chain(*self._state_parts().values()))

    def _state_parts(self) -> dict[str, list[keras.Variable]]:
        trained = {id(variable) for variable in self._trainable}
        return {
            "weights": [variable for _, group in self._groups for variable in group],
            "optimizer": [variable for optimizer, _ in self._groups for variable in optimizer.variables],
            "statistics": [
                *(variable for variable in self._network.variables if id(variable) not in trained),
                *([] if self._reward_scaling is None else self._reward_scaling.variables),
                *self._owned.statistics,
            ],
        }

    def _learn_batch(
        self, batch: Mapping[str, Nest], order: Tensor, num_minibatches: Tensor, schedule: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Nest]]:
        """Learn, and update the statistics. Returns metrics of minibatches, of the batch, and their rows."""
        algorithm = self._at(schedule)
        self._share_learning_rate(self._owned.optimizers.values())
        batch = without_invalid(batch)
        batch["reward"] = self._scaled_reward(batch)
        if not self.calls.memories:
            batch.pop("start", None)
        apart = "final_observation", "final_row", "final_action_mask", "shown_mask"
        final: dict[str, Nest] = {name: batch.pop(name) for name in apart if name in batch}
        states: list[Any] = []

        def evaluate(batch: Mapping[str, Nest]) -> Evaluated:
            evaluated, found = self.calls.evaluate(batch, final)
            states.append(found)
            return evaluated

        fields = algorithm.rows(batch, evaluate)
        _check_rows(algorithm, batch, fields)
        fields = {name: values for name, values in fields.items() if name not in ("start", "initial_state")}
        fields["observation"] = tree.map_structure(lambda leaf: leaf[:-1], batch["observation"])
        minibatches = rows = side_by_side(fields)
        if self.calls.memories:
            if not states:  # the algorithm needs no values
                evaluate(batch)
            minibatches = in_sequences({**fields, "start": batch["start"][:-1]}, self._sequence_length)
            minibatches["initial_state"] = tuple(map(backend.flatten, states[0]))
        metrics = self._learn(algorithm, minibatches, order, num_minibatches)
        for layer in contract.normalization_layers(self._network):
            layer.update(contract.normalized_leaf(layer, rows["observation"]), rows["valid"])
        return metrics, algorithm.batch_metrics(rows), minibatches

    def _minibatch(self, minibatches: Mapping[str, Nest], index: Tensor) -> dict[str, Nest]:
        """Return the rows of an index `[devices, M]`: rows, or those of sequences."""
        if self.calls.memories:
            return sequences_of(minibatches, index, self._burn_in)
        return minibatch_of(minibatches, index)

    def _outputs(self, minibatches: Mapping[str, Nest], order: Tensor) -> list[Tensor]:
        """Return the new network's outputs for some of the learned rows, values squared, as in any loss."""
        number, _, size = order.shape
        steps = self._sequence_length if self.calls.memories else 1
        count = min(size, max(1, number * size // LEARNED_ROWS_PER_CHECKED_ROW), max(1, MAX_CHECKED_ROWS // steps))
        outputs = self.calls.outputs(self._minibatch(minibatches, order[0, :, :count]), entropy=False)
        return [outputs["parameters"], outputs["log_prob"], ops.square(outputs["value"])]

    def _scaled_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        reward = clip_reward(batch["reward"], self._algorithm.rewards.clip)
        if self._reward_scaling is None:
            return reward
        ended = ops.logical_or(batch["terminated"], batch["truncated"])
        begins = batch["start"][0] if "start" in batch else None
        return self._reward_scaling.scale(reward, ended, batch["valid"], batch["env_index"], begins)

    def _learn(
        self, algorithm: Algorithm, rows: dict[str, Nest], order: Tensor, num_minibatches: Tensor
    ) -> dict[str, Tensor]:
        """Step through the minibatches. Returns metrics as means over them, the one that ends the update included."""
        names: list[str] = []
        ending: list[bool] = []

        def learn(rows: dict[str, Nest], order: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            """Learn from a minibatch. Returns whether it ends the update, and its metrics."""
            minibatch = self._minibatch(rows, order[index])
            trained = [variable for _, group in self._groups for variable in group]
            gradients, metrics = backend.gradients(lambda: self._loss(algorithm, minibatch), trained, self.state)
            of_network = gradients[: len(self._trainable)]
            metrics["gradient_norm"] = backend.global_norm([each for each in of_network if each is not None])
            stepped = self._diagnosis.step(trained, gradients)

            def apply() -> None:
                left = iter(gradients)
                for optimizer, group in self._groups:
                    apply_gradients(optimizer, list(itertools.islice(left, len(group))), group)

            ends = algorithm.ends_update(metrics)
            if ends is None:
                apply()
            else:
                backend.cond(ops.logical_not(ends), apply, self.state)
            metrics |= stepped()
            names[:], ending[:] = sorted(metrics), [ends is not None]
            algorithm.check_metrics(names)
            return ops.convert_to_tensor(False if ends is None else ends), vector(metrics, names)

        learned = backend.traced(learn, self.state, rows, order, np.int32(0))

        def step(index: Tensor, sums: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            ends, metrics = learned(rows, order, index)
            return ends, sums + metrics, count + 1.0

        nothing = tuple(map(ops.convert_to_tensor, (np.zeros(len(names), np.float32), np.float32(0.0))))
        if ending[0]:
            start = (*map(ops.convert_to_tensor, (np.int32(0), np.bool_(False))), *nothing)
            _, _, sums, count = backend.while_loop(
                lambda index, stopped, sums, count: ops.logical_and(index < num_minibatches, ops.logical_not(stopped)),
                lambda index, stopped, sums, count: (index + 1, *step(index, sums, count)),
                start,
                self.state,
            )
        else:
            sums, count = backend.repeat(
                num_minibatches, order.shape[0], lambda *at: step(*at)[1:], nothing, self.state
            )
        means = sums / ops.maximum(count, 1.0)
        return {name: means[index] for index, name in enumerate(names)}

    def _loss(self, algorithm: Algorithm, minibatch: dict[str, Nest]) -> tuple[Tensor, dict[str, Tensor]]:
        with self._diagnosis.watching() as dead_units:
            outputs = self.calls.outputs(minibatch, entropy=True)
            # Of an invalid row they may be so far off that a ratio overflows, and 0 times infinity is NaN.
            outputs = _zeroed_unless(minibatch["valid"], outputs, ("log_prob", "entropy", "value"))
            minibatch = _zeroed_unless(minibatch["valid"], minibatch, _LOG_PROBS)
            loss, metrics = algorithm.loss(outputs, minibatch)
        loss = check_scalar("loss", loss)
        for model in (self._network, *self._owned.models.values()):
            if model.losses:
                loss = loss + ops.sum(ops.stack(model.losses))
        return loss, {**metrics, **dead_units, "loss": loss}


def _check_rows(algorithm: Algorithm, batch: Mapping[str, Nest], fields: Mapping[str, Nest]) -> None:
    """Raise ValueError for a new field without something for each row: it would be shuffled, or dropped."""
    shape = tuple(batch["valid"].shape)
    for name, values in fields.items():
        for leaf in () if values is batch.get(name) or name == "observation" else tree.flatten(values):
            if (found := tuple(getattr(leaf, "shape", ())))[:2] != shape:
                raise ValueError(
                    f"What `rows` and `targets` of {type(algorithm).__name__} return must be [T, B, ...], here "
                    f"{list(shape)}. Received: {name} of shape {list(found)}"
                )


def _zeroed_unless(valid: Tensor, fields: dict[str, Nest], names: tuple[str, ...]) -> dict[str, Nest]:
    """Return the fields, those of these names with zeros at invalid rows."""
    found = {name: fields[name] for name in names if name in fields}
    return {**fields, **{name: ops.where(valid, value, ops.zeros_like(value)) for name, value in found.items()}}
