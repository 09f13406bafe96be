"""Shared rows through which actors have the learner's device act: row i belongs to environment i."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import numpy as np

from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.graph import LoadedGraph
from actor_learner.spaces.trajectory import Fields
from actor_learner.system.types import Array

_INPUT, _OUTPUT = "input/", "output/"


class StepRows(NamedTuple):
    """Inputs and outputs of a policy's step, `[B, ...]` for B environments."""

    inputs: tuple[Array, ...]  # those of the step graph
    outputs: tuple[Array, ...]  # leaves of the action, its log-probability, and leaves of the state

    @classmethod
    def fields(cls, exported: ExportedPolicy, num_envs: int) -> Fields:
        """Return the shape and the dtype of each array, by its name."""
        spaces, number = exported.spaces(), np.dtype(np.float32)
        state = [(shape, number) for shape in exported.state_shapes]
        inputs = [(leaf.shape, leaf.dtype) for leaf in spaces.observation.leaves]
        if state:
            inputs += [((1,), number), *state]
        inputs.append(((exported.noise_columns,), number))
        if exported.masked:
            inputs.append(((spaces.mask_size,), number))
        outputs = [*((leaf.shape, leaf.dtype) for leaf in spaces.action.leaves), ((), number), *state]
        named = [(f"{_INPUT}{index}", field) for index, field in enumerate(inputs)]
        named += [(f"{_OUTPUT}{index}", field) for index, field in enumerate(outputs)]
        return {name: ((num_envs, *shape), dtype) for name, (shape, dtype) in named}

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the rows of the arrays of `fields`."""
        kinds = (_INPUT, _OUTPUT)
        return cls(*(tuple(array for name, array in arrays.items() if name.startswith(kind)) for kind in kinds))

    def part(self, start: int, stop: int) -> Self:
        """Return the rows `[start, stop)`."""
        return self._replace(
            inputs=tuple(array[start:stop] for array in self.inputs),
            outputs=tuple(array[start:stop] for array in self.outputs),
        )


class RemoteStep(LoadedGraph):
    """A policy's step graph that runs elsewhere, on rows in shared memory.

    ask: Returns as soon as the outputs of these rows are there.
    """

    def __init__(self, rows: StepRows, ask: Callable[[], None]) -> None:
        super().__init__(len(rows.outputs[0]))
        self._rows, self._ask = rows, ask

    def _run_batch(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        for row, array in zip(self._rows.inputs, inputs, strict=True):
            row[...] = array
        self._ask()
        return [self._rows.outputs[output].copy() for output in outputs]  # an environment may keep its action

    def renew(self) -> None:
        """Do nothing: the version of the weights is that of the actor's assignment."""

    def discard(self) -> None:
        """Do nothing, as `renew` does."""
