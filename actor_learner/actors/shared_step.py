"""The policy's step on the learner's device, for several actors at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from actor_learner.actors.group import ActingStep
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.actors.transport.messages import Assignment
from actor_learner.actors.transport.step_rows import StepRows
from actor_learner.system.fields import first_envs

_PARTS = 2
"""Parts of the actors that take turns: while the device acts for one of them, the other one's environments step."""


class SharedStep:
    """Computes the step of several actors in one call of the device.

    The parts of the actors are fixed, and a call is for all rows of a part, whoever asks: so an environment's action is
    the same however fast the others are.
    """

    def __init__(self, step: ActingStep, memory: ArenaMemory, env_counts: Sequence[int]) -> None:
        self._step, self._memory = step, memory
        self._weights: dict[int, Any] = {}  # by their versions
        firsts = [*first_envs(env_counts), sum(env_counts)]
        self._places = list(pairwise(firsts))
        count = len(env_counts)
        middle = -(-count // _PARTS)
        self.parts = [part for part in (range(middle), range(middle, count)) if part]

    def compile(self) -> None:
        """Compile the step for each part, so that no actor has to wait for it."""
        weights = self._load(self._memory.weights.newest.number, self._memory.weights.newest.slot)
        for part in self.parts:
            self._step(weights, self._rows_of(part).inputs)

    def run(self, part: range, asking: Mapping[int, Assignment]) -> None:
        """Write the outputs of the actors of a part that ask, each by the version of its assignment."""
        by_version: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for actor, assignment in asking.items():
            by_version[assignment.version, assignment.slot].append(actor)
        rows, first = self._rows_of(part), self._places[part[0]][0]
        for (version, slot), actors in by_version.items():
            results = self._step(self._load(version, slot), rows.inputs)
            for actor in actors:
                start, stop = self._places[actor]
                for output, result in zip(rows.outputs, results, strict=True):
                    output[start - first : stop - first] = result[start - first : stop - first]

    def _rows_of(self, part: range) -> StepRows:
        return self._memory.step_rows.part(self._places[part[0]][0], self._places[part[-1]][1])

    def _load(self, version: int, slot: int) -> Any:
        """Return a version of the weights on the device; its slot stays as it is while an assignment names it."""
        if version not in self._weights:
            oldest = self._memory.oldest_version()
            self._weights = {number: weights for number, weights in self._weights.items() if number >= oldest}
            self._weights[version] = self._step.load(self._memory.weights.read(slot))
        return self._weights[version]
