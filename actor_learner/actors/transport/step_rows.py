"""Shared rows through which actors have the learner's device act: row i belongs to environment i."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.graph import LoadedGraph
from actor_learner.spaces.packed import NUMBER, row_dtype, step_results, unpacked
from actor_learner.spaces.trajectory import Fields
from actor_learner.system.types import Array


class StepRows(NamedTuple):
    """Inputs and outputs of a policy's step, `[B]` packed rows for B environments."""

    inputs: Array  # those of the step graph
    outputs: Array  # leaves of the action, its log-probability, and leaves of the state

    @classmethod
    def fields(cls, exported: ExportedPolicy, num_envs: int) -> Fields:
        """Return the shape and the dtype of both, by their names."""
        spaces = exported.spaces()
        inputs = [(leaf.shape, leaf.dtype) for leaf in spaces.observation.leaves]
        numbers = [(1,), *exported.state_shapes] if exported.state_shapes else []
        numbers.append((exported.noise_columns,))
        if exported.masked:
            numbers.append((spaces.mask_size,))
        inputs += [(shape, NUMBER) for shape in numbers]
        return {
            "inputs": ((num_envs,), row_dtype(inputs)),
            "outputs": ((num_envs,), step_results(spaces, exported.state_shapes)),
        }

    def part(self, start: int, stop: int) -> Self:
        """Return the rows `[start, stop)`."""
        return self._replace(inputs=self.inputs[start:stop], outputs=self.outputs[start:stop])


class RemoteStep(LoadedGraph):
    """A policy's step graph that runs elsewhere, on rows in shared memory.

    ask: Returns as soon as the outputs of these rows are there.
    """

    def __init__(self, rows: StepRows, ask: Callable[[], None]) -> None:
        super().__init__(len(rows.outputs))
        self._inputs, self._outputs, self._ask = unpacked(rows.inputs), unpacked(rows.outputs), ask

    def _run_batch(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        for row, array in zip(self._inputs, inputs, strict=True):
            row[...] = array
        self._ask()
        return [self._outputs[output].copy() for output in outputs]  # an environment may keep its action

    def renew(self) -> None:
        """Do nothing: the version of the weights is that of the actor's assignment."""

    def discard(self) -> None:
        """Do nothing, as `renew` does."""
