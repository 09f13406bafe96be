"""Acting on the learner's device: rows in shared memory, the policy's step for several actors, and its thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from actor_learner.actors.transport.messages import Assignment
from actor_learner.config.pool_checks import first_envs
from actor_learner.environments.errors import describe_error
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.graph import LoadedGraph
from actor_learner.spaces.packed import NUMBER, row_dtype, step_results, unpacked
from actor_learner.spaces.trajectory import Fields
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.actors.transport.arena_memory import ArenaMemory
    from actor_learner.learner.acting import DeviceStep

_JOIN_SECONDS = 10.0


class StepRows(NamedTuple):
    """Inputs and outputs of a policy's step, `[B]` packed rows in shared memory, one for each environment."""

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


class SharedStep:
    """Computes the step of several actors in one call of the device.

    The parts of the actors are fixed, and a call is for all rows of a part, whoever asks: so an environment's action is
    the same however fast the others are.
    """

    def __init__(self, step: DeviceStep, memory: ArenaMemory, env_counts: Sequence[int]) -> None:
        self._step, self._memory = step, memory
        self._weights: dict[int, Any] = {}  # by their versions
        firsts = [*first_envs(env_counts), sum(env_counts)]
        self._places = list(pairwise(firsts))
        # Halves of the actors: while the device acts for one, the other one's environments step.
        count, middle = len(env_counts), -(-len(env_counts) // 2)
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
                rows.outputs[start - first : stop - first] = results[start - first : stop - first]

    def _rows_of(self, part: range) -> StepRows:
        assert self._memory.step_rows is not None
        return self._memory.step_rows.part(self._places[part[0]][0], self._places[part[-1]][1])

    def _load(self, version: int, slot: int) -> Any:
        """Return a version of the weights on the device; its slot stays as it is while an assignment names it."""
        if version not in self._weights:
            oldest = self._memory.oldest_version()
            self._weights = {number: weights for number, weights in self._weights.items() if number >= oldest}
            self._weights[version] = self._step.load(self._memory.weights.read(slot))
        return self._weights[version]


class ActingError(RuntimeError):
    """The error of a policy that can't run on the learner's device."""


class Request(NamedTuple):
    """An actor's wish to have its rows' step computed, by the version of an assignment."""

    actor: int
    assignment: Assignment


class ActingThread:
    """Computes the step of a part of the actors as soon as each of them that has columns to fill has asked for it.

    lock: The group's. answer: Called with it held, for each actor that has been served. fail: Called with an exception.
    """

    def __init__(
        self,
        step: SharedStep,
        memory: ArenaMemory,
        lock: contextlib.AbstractContextManager[bool],
        answer: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._step, self._memory, self._lock, self._answer, self._fail = step, memory, lock, answer, fail
        self._asked: dict[int, Request] = {}
        self._in_work: set[range] = set()
        self._calls: queue.SimpleQueue[tuple[range, list[Request]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="device-acting", daemon=True)
        self._thread.start()

    # Called with the group's lock held.

    def ask(self, actor: int) -> None:
        """Take an actor's request, for the oldest columns that it hasn't filled."""
        self._asked[actor] = Request(actor, self._memory.oldest(actor))
        self.look()

    def forget(self, actor: int) -> None:
        """Drop the request of an actor that has ended: another process asks anew."""
        self._asked.pop(actor, None)

    def is_waiting(self, actor: int) -> bool:
        return actor in self._asked

    def look(self) -> None:
        """Begin what can be computed now; to be called when an actor has filled its columns, too."""
        for part in self._step.parts:
            requests = [self._asked[actor] for actor in part if actor in self._asked]
            missing = any(self._memory.is_pending(actor) and actor not in self._asked for actor in part)
            if requests and not missing and part not in self._in_work:
                self._in_work.add(part)
                self._calls.put((part, requests))

    def close(self) -> None:
        """End the thread after the call that it is in; idempotent, from any thread, with no lock held."""
        self._calls.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:  # `close` ends the wait
                part, requests = call
                self._step.run(part, {request.actor: request.assignment for request in requests})
                with self._lock:
                    self._in_work.discard(part)
                    for request in requests:
                        if self._asked.get(request.actor) is request:
                            del self._asked[request.actor]
                            self._answer(request.actor)
                    self.look()
        except BaseException as error:
            reason = describe_error(error, with_place=False)
            failure = ActingError(f"The learner's device can't act: {reason}; acting='actors' does without")
            failure.__cause__ = error
            self._fail(failure)
