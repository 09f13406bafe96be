"""The network's calls in an update: on minibatches, and on a whole batch before it is learned."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops, tree

from actor_learner.algorithms.base import Evaluated
from actor_learner.algorithms.q_learning import FORBIDDEN, allowed_only
from actor_learner.learner import backend
from actor_learner.learner.batch import CHUNK_NUMBERS, in_chunks, side_by_side
from actor_learner.networks import contract
from actor_learner.networks.distributions import GREEDY
from actor_learner.networks.memory import Memories, StepLayout
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.types import Nest, Tensor

_ROWS = StepLayout(backend.scan, backend.unflatten, backend.flatten)
State = tuple[Tensor, ...]


class NetworkCalls:
    """Calls a network with the rows of a batch.

    sequence_length: Steps of a sequence in which a network with memory learns. variables: Those that a call may assign.
    fitting: How many rows are known to fit into a device's memory at once.
    """

    def __init__(
        self,
        network: keras.Model,
        spaces: Spaces,
        sequence_length: int,
        variables: Callable[[], backend.Variables],
        fitting: int = 1,
    ) -> None:
        self._network, self._actions = network, spaces.action
        self._distribution = contract.network_distribution(network, spaces)
        self._greedy = contract.distribution_and_hold(network)[0] == GREEDY
        self.memories = Memories(network)
        self._length, self._variables, self._fitting = sequence_length, variables, fitting

    def outputs(self, rows: Mapping[str, Nest], *, entropy: bool) -> dict[str, Tensor]:
        """Return the network's outputs, with `log_prob [N]` of the rows' actions and the `entropy [N]`.

        The `value` of a greedy policy is the highest of an allowed action.

        With memory the rows are `[steps x sequences]`; `start [steps, sequences]` and `initial_state` are among them.
        """
        outputs, _ = self._call(rows)
        if entropy:
            outputs["entropy"] = self._distribution.entropy(outputs["parameters"], rows.get("action_mask"))
        return outputs

    def _call(self, rows: Mapping[str, Nest]) -> tuple[dict[str, Tensor], State]:
        """Return the network's outputs with `log_prob`, and the state after these steps."""
        remembering: contextlib.AbstractContextManager[list[Tensor]] = contextlib.nullcontext([])
        if self.memories:
            remembering = self.memories.stepping(rows["start"], rows["initial_state"], _ROWS)
        with remembering as state:
            outputs = contract.call_network(self._network, rows["observation"])
        action = self._actions.flatten(rows["action"])
        mask = rows.get("action_mask")
        outputs["log_prob"] = self._distribution.log_prob(outputs["parameters"], action, mask)
        outputs["value"] = self._value(outputs, mask)
        return outputs, tuple(state)

    def _value(self, outputs: Mapping[str, Tensor], mask: Tensor | None) -> Tensor:
        """Return the states' values `[N]`. mask: allowed actions, bool `[N, M]`; None: all are."""
        if not self._greedy:
            return outputs["value"]
        return ops.max(allowed_only(outputs["parameters"][:, :-1], mask), axis=-1)  # the last is epsilon

    def evaluate(self, batch: Mapping[str, Nest], final: Mapping[str, Nest]) -> tuple[Evaluated, State]:
        """Evaluate a batch under the present weights, and return the states with which its sequences begin.

        A row that cut an episode off gets this network's value of the last observation, where the batch holds it: in
        `final_observation`, or in the next row, if that is invalid.

        final: The batch's `final_observation`, `final_row` and masks of all observations, those that it has. The states
        are `[K, B, ...]` each, for K sequences after one another; none without memory.
        """
        shown = final.get("shown_mask")
        value, log_prob, states = self._values(batch, batch["observation"], shown)
        truncation_value = batch["truncation_value"]
        seen = ops.zeros_like(batch["truncated"])
        if "final_row" in final:
            truncation_value, seen = self._truncation_values(final, batch, value)
        known = None
        if shown is not None:
            last = ops.logical_and(seen, _is_known(truncation_value))
            after = ops.where(batch["truncated"], last, _is_known(value[1:]))
            known = ops.logical_or(batch["terminated"], after)
        return Evaluated(value, log_prob[:-1], truncation_value, known), states

    def _values(
        self, batch: Mapping[str, Nest], observation: Nest, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, State]:
        """Return values and log-probabilities `[T + 1, B]`, and the states as `evaluate` does.

        mask: `[T + 1, B, M]`, of the observations; None: that of the rows.
        """
        own = {name: batch[name] for name in ("action", "action_mask") if name in batch}
        beside = tree.map_structure(lambda leaf: ops.concatenate([leaf, leaf[-1:]], axis=0), own)  # T + 1 rows, too
        if mask is not None:
            beside["action_mask"] = mask
        fields = {"observation": observation, **beside}
        steps = batch["valid"].shape[0]
        if self.memories:
            return self._values_of_sequences(fields, batch, steps)
        rows = side_by_side(fields)
        numbers = _numbers(rows["observation"])
        value, log_prob = in_chunks(self._value_and_log_prob, rows, numbers, self._variables(), self._fitting)
        value, log_prob = (backend.unflatten(values, steps + 1) for values in (value, log_prob))
        return value, log_prob, ()

    def _value_and_log_prob(self, rows: Mapping[str, Nest]) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(rows, entropy=False)
        return outputs["value"], outputs["log_prob"]

    def _values_of_sequences(
        self, fields: Mapping[str, Nest], batch: Mapping[str, Nest], steps: int
    ) -> tuple[Tensor, Tensor, State]:
        """Compute as `_values` does, by some steps at a time, so that memory is bounded and states are known."""
        start, state = batch["start"], tuple(batch["initial_state"])
        length = self._steps_at_once(fields)
        if length == steps:
            value, log_prob, _ = self._unroll(fields, start, state)
            return value, log_prob, tuple(leaf[None] for leaf in state)

        def pieces(leaf: Tensor) -> Tensor:
            return ops.reshape(leaf[:-1], (steps // length, length, *leaf.shape[1:]))

        def piece(state: State, inputs: Any) -> tuple[State, Any]:
            fields, start = inputs
            value, log_prob, after = self._unroll(fields, start, state)
            return after, (value, log_prob, state)

        state, (value, log_prob, states) = backend.scan(piece, state, tree.map_structure(pieces, (dict(fields), start)))
        last_fields, last_start = tree.map_structure(lambda leaf: leaf[-1:], (dict(fields), start))
        last = self._unroll(last_fields, last_start, state)
        value, log_prob = (
            ops.concatenate([ops.reshape(some, (steps, *some.shape[2:])), bootstrap], axis=0)
            for some, bootstrap in zip((value, log_prob), last[:2], strict=True)
        )
        return value, log_prob, tuple(leaf[:: self._length // length] for leaf in states)

    def _steps_at_once(self, fields: Mapping[str, Nest]) -> int:
        """Return how many steps enter the network at once: those of a sequence, or a part of them to bound memory."""
        devices, columns = backend.device_count(), tree.flatten(fields["observation"])[0].shape[1]
        by_numbers = CHUNK_NUMBERS * devices // max(1, _numbers(fields["observation"]))
        fitting = max(1, by_numbers, self._fitting * devices // columns)
        return next(length for length in range(self._length, 0, -1) if self._length % length == 0 and length <= fitting)

    def _unroll(self, fields: Mapping[str, Nest], start: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return values and log-probabilities `[S, B]` of S steps, and the state after them."""
        rows = {**side_by_side(fields), "start": start, "initial_state": state}
        outputs, after = self._call(rows)
        value, log_prob = (backend.unflatten(outputs[name], start.shape[0]) for name in ("value", "log_prob"))
        return value, log_prob, after

    def _truncation_values(
        self, final: Mapping[str, Nest], batch: Mapping[str, Tensor], value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `[T, B]` values of the last observations of truncated episodes, and where the batch holds them.

        Elsewhere they are the actor's.
        """
        valid, truncated = batch["valid"], batch["truncated"]
        row = ops.expand_dims(ops.arange(valid.shape[0], dtype="int32"), 1)
        is_final = ops.logical_and(truncated, ops.equal(row, final["final_row"]))
        invalid_next = ops.concatenate([ops.logical_not(valid[1:]), ops.zeros_like(valid[:1])], axis=0)
        is_next = ops.logical_and(truncated, invalid_next)
        known = ops.where(is_next, value[1:], batch["truncation_value"])

        def with_final_values() -> Tensor:
            if self.memories:
                last = self._final_values_with_memory(final, is_final, batch)
            else:
                outputs = contract.call_network(self._network, final["final_observation"])
                last = ops.reshape(self._value(outputs, final.get("final_action_mask")), (1, -1))
            return ops.where(is_final, last, known)

        values = backend.choose(ops.any(is_final), with_final_values, lambda: known, self._variables())
        return values, ops.logical_or(is_final, is_next)

    def _final_values_with_memory(
        self, final: Mapping[str, Nest], is_final: Tensor, batch: Mapping[str, Nest]
    ) -> Tensor:
        """Return values `[T, B]` of observations that end an episode, as seen after these rows; right where `is_final`.

        The network sees the batch once more, with these observations in the rows after, where no episode starts.
        """
        follows = ops.concatenate([ops.zeros_like(is_final[:1]), is_final], axis=0)

        def put(leaf: Tensor, last: Tensor) -> Tensor:
            rows = ops.reshape(follows, (*follows.shape, *(1,) * (len(leaf.shape) - 2)))
            return ops.where(rows, last[None], leaf)

        observation = tree.map_structure(put, batch["observation"], final["final_observation"])
        mask = put(final["shown_mask"], final["final_action_mask"]) if "shown_mask" in final else None
        start = ops.logical_and(batch["start"], ops.logical_not(follows))
        return self._values({**batch, "start": start}, observation, mask)[0][1:]


def _is_known(value: Tensor) -> Tensor:
    """Return whether these are values of an allowed action: there is none where the batch lacks the mask."""
    return value > FORBIDDEN / 2


def _numbers(observation: Nest) -> int:
    """Return how many numbers a row `[...]` of observations holds, or a step `[B, ...]` of a batch's."""
    return sum(math.prod(leaf.shape[1:]) for leaf in tree.flatten(observation))
