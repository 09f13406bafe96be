"""One actor in the caller's process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence

from actor_learner.actors.actor import Actor, Startup, make_environments
from actor_learner.actors.device_acting import RemoteStep, SharedStep
from actor_learner.actors.group import ActorGroup, ColumnSchedule, Plan
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.actors.transport.batches import Blocks
from actor_learner.actors.transport.messages import Assignment
from actor_learner.environments.calls import Call, Calls
from actor_learner.environments.environments import Environments
from actor_learner.environments.factory import EnvFactory
from actor_learner.spaces.spaces import Spaces, spaces_from_json, spaces_to_json
from actor_learner.system.types import Array


class LocalActors(ActorGroup):
    """One actor in the caller's process: for debuggers, with the same bytes as one actor process.

    It fills its columns in `wait`, however long that takes. An exception there is the environment's own.
    """

    _environments: dict[str, Environments]
    _actor: Actor | None = None
    _schedule: ColumnSchedule
    _step: SharedStep | None = None

    def __init__(self, factory: EnvFactory, startup: Startup) -> None:
        self._factory, self._startup = factory, startup
        self._memory = ArenaMemory()
        self._assigned: deque[tuple[tuple[Call, ...], Assignment]] = deque()
        self.calls, self._calls_passed_on = Calls(), 0
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        startup = dataclasses.replace(self._startup, calls=self.calls.repeated())
        self._calls_passed_on = self.calls.count
        self._environments = make_environments(self._factory, startup)
        for environments in self._environments.values():
            self._undo.callback(environments.close)

    def spaces(self, seconds: float) -> dict[str, Spaces]:
        found = {name: environments.spaces for name, environments in self._environments.items()}
        return spaces_from_json(spaces_to_json(found))  # as they arrive from a process

    def begin(self, plan: Plan, schedule: ColumnSchedule) -> Sequence[Blocks]:
        self._schedule = schedule
        self._memory.allocate(plan)
        memory, step_graph = self._memory, None
        if plan.step is not None and memory.step_rows is not None:
            self._step = SharedStep(plan.step, memory, plan.env_counts)
            step_graph = RemoteStep(memory.step_rows, self._act)
        policies = self._startup.make_policies(plan.exported, self._environments, step_graph)
        self._actor = Actor(self._startup, self._environments, policies, memory.plan.parts(memory.arena))
        return memory.blocks

    def _act(self) -> None:
        assert self._step is not None
        self._step.run(self._step.parts[0], {0: self._memory.oldest(0)})

    @property
    def version(self) -> int:
        return self._memory.version

    def publish(self, weights: Array) -> None:
        self._memory.weights.publish(weights)

    def set_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array]) -> None:
        self._memory.set_opponents(weights, frozen)

    def call(self, call: Call) -> None:
        if not call.optional:
            next(iter(self._environments.values())).check_call(call)
        super().call(call)

    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        assignment = self._memory.assign(actor, batch, block, start)
        self._assigned.append((self.calls.since(self._calls_passed_on), assignment))
        self._calls_passed_on = self.calls.count

    def wait(self, seconds: float) -> None:
        self.check()
        assert self._actor is not None
        try:
            while not self._schedule.complete():
                calls, assignment = self._assigned.popleft()
                self._actor.call(calls)
                done = self._actor.fill(assignment)
                self._memory.finish(0, done.batch)
                self._schedule.finish(0, done)
                if self._actor.error is not None:
                    raise self._actor.error
        except BaseException:  # the environments are in the middle of an unroll
            self.close()
            raise

    def close(self) -> None:
        if self.closed:
            return
        self.closed, self._actor, self._step = True, None, None  # which hold views on the memory and weights
        self._memory.close()
        self._undo.close()
