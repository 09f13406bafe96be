"""Actors in processes of their own, on this machine."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pickle
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from actor_learner.actors.actor import Startup
from actor_learner.actors.arena_actors import ArenaActors, late_error
from actor_learner.actors.device_acting import ActingError, ActingThread, SharedStep
from actor_learner.actors.group import ActorError, ColumnSchedule, Plan, Restart
from actor_learner.actors.processes.restarts import REQUESTED, ActorEnd, Heartbeats, RestartPolicy
from actor_learner.actors.processes.supervisor import GRACE_SECONDS, Supervisor
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.actors.transport.batches import Blocks
from actor_learner.actors.transport.messages import Assignment, Done, Message
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.calls import encode
from actor_learner.environments.errors import EnvError
from actor_learner.spaces.spaces import Spaces, spaces_from_json
from actor_learner.system.child import NO_GPU, ONE_THREAD
from actor_learner.system.machine import available_cores

_SWEEP_SECONDS = 1.0
_logger = logging.getLogger(__name__)


class ProcessActors(ArenaActors):
    """Actors in processes of their own, which fill batches in shared memory. One that dies or hangs is replaced."""

    _acting: ActingThread | None = None  # where the learner's device acts

    def __init__(
        self,
        factory: bytes,
        startups: Sequence[Startup],
        settings: PoolSettings,
        logs_dir: Path | None = None,
        memory: ArenaMemory | None = None,
        condition: threading.Condition | None = None,
    ) -> None:
        """Prepare; `start` starts the actors.

        factory: A pickled `EnvFactory`. memory, condition: those of a group that these actors are a part of; it
        allocates the memory, and closes it.
        """
        _warn_of_crowding(len(startups))
        super().__init__(startups, settings, logs_dir, memory, condition)
        self._factory = factory
        self._restarts = RestartPolicy(settings)
        self._heartbeats = Heartbeats(settings)
        self.starting: set[int] = set()  # actors whose environments aren't built yet
        self._ready: set[int] = set()
        # The ends of actors whose successors aren't ready yet: how, when, and the successor's incarnation.
        self._ends: dict[int, tuple[ActorEnd, float, int]] = {}
        self._failed_unrolls: dict[int, Done] = {}  # unrolls that an environment's exception ended early
        self._calls_passed_on: Counter[int] = Counter()  # the number of calls that each process has got
        logs = {actor: logs_dir and logs_dir / f"actor-{actor}.log" for actor in self._startups}
        self._owns_memory, arena = memory is None, self._memory.arena.descriptor
        try:
            variables = variables_of(settings)
            timing = self._heartbeats.interval, self._condition
            self._supervisor = Supervisor(arena, logs, self, *timing, variables, settings.close_timeout)
        except BaseException:
            if self._owns_memory:
                self._memory.close()
            raise

    def start(self) -> None:
        self._supervisor.start()

    # Called by the supervisor, in its thread and with the lock held.

    def payload(self, actor: int) -> bytes:
        """Return the startup of a new process of this actor, for `worker.main`."""
        self.starting.add(actor)
        # A later call isn't for the columns that it has to fill first.
        self._calls_passed_on[actor] = before = self._memory.calls_before([actor], self.calls.count)
        self._heartbeats.start(actor)
        startup, calls = self._startups[actor], self.calls.repeated(before)
        startup = dataclasses.replace(startup, incarnation=self._incarnation(actor), calls=calls)
        return pickle.dumps((startup, sys.argv, self._factory))

    def receive(self, actor: int, message: Message, payload: Any) -> bool:
        """Take any message but FAILED; return whether to notify the threads that wait on the condition."""
        if message is Message.READY:
            self._receive_spaces(actor, payload)
            return self._all_ready()
        if message is Message.ACT:
            assert self._acting is not None
            self._acting.ask(actor)
            return False
        assert message is Message.DONE, message
        if payload.failed:  # the actor ends next
            self._failed_unrolls[actor] = payload
            return False
        self._restarts.finish_unroll(actor)
        return self._finish(actor, payload)

    def _finish(self, actor: int, done: Done) -> bool:
        self._memory.finish(actor, done.batch)
        if not self._memory.is_pending(actor):
            self._heartbeats.pause(actor)
        complete = self._schedule.finish(actor, done)  # which may assign the actor its next columns
        if self._acting is not None:
            self._acting.look()
        return complete

    def _receive_spaces(self, actor: int, spaces: dict[str, Any]) -> None:
        self.starting.discard(actor)
        self._compare_spaces(spaces, f"in actor {actor}")
        self._ready.add(actor)
        if self._has_begun:
            self._begin(actor)

    def judge_end(self, end: ActorEnd) -> Exception | None:
        """Judge the end of a process. None: another one takes its place; else all actors end with this error."""
        self._record_restart(end.actor)  # of an actor that ended before it was ready
        if (error := self._restarts.judge(end)) is not None:
            return error
        self._ready.discard(end.actor)
        if self._acting is not None:
            self._acting.forget(end.actor)
        if (done := self._failed_unrolls.pop(end.actor, None)) is not None and self._finish(end.actor, done):
            self._condition.notify_all()
        self._ends[end.actor] = end, time.monotonic(), self._incarnation(end.actor)
        return None

    def _incarnation(self, actor: int) -> int:
        return self._startups[actor].incarnation + self._restarts.incarnation(actor)

    def _record_restart(self, actor: int) -> None:
        if actor in self._ends:
            end, since, incarnation = self._ends.pop(actor)
            seconds = time.monotonic() - since
            self._replaced.append(Restart(actor, incarnation, end.cause, end.details, seconds))

    def tick(self, seconds: float) -> None:
        """End the actors that give no sign of life."""
        busy = [actor for actor in self._ready if self._memory.is_pending(actor)]
        if self._acting is not None:
            busy = [actor for actor in busy if not self._acting.is_waiting(actor)]
        for actor, silent, where in self._heartbeats.find_silent(seconds, self.starting, busy):
            self._supervisor.end(actor, f"gave no sign of life for {silent:.3g} s, {where}")

    def stop(self) -> None:
        """Have unrolls given up: all actors are about to get CLOSE."""
        self._memory.stop()

    # Called by the pool.

    def spaces(self, seconds: float) -> dict[str, Spaces]:
        if not self._wait(self._all_ready, seconds):
            late = [actor for actor in self._startups if actor not in self._ready]
            raise late_error(late, "made and reset the environments", "start_timeout", seconds)
        return spaces_from_json(self._spaces)

    def _all_ready(self) -> bool:
        return len(self._ready) == len(self._startups)

    def begin(self, plan: Plan, schedule: ColumnSchedule) -> Sequence[Blocks]:
        if self._owns_memory:
            self._memory.allocate(plan)
        if plan.step is not None:
            step = SharedStep(plan.step, self._memory, plan.env_counts)
            step.compile()
            supervisor = self._supervisor
            answer = functools.partial(supervisor.send, message=Message.ACTED)
            self._acting = ActingThread(step, self._memory, self.lock, answer, supervisor.fail)
        with self.lock:
            self._schedule = schedule
            self._heartbeats.words = self._memory.heartbeats
            self._has_begun = True
            for actor in self._ready:
                self._begin(actor)
        return self._memory.blocks

    def _begin(self, actor: int) -> None:
        """Send an actor that is ready the plan of the arena, and the columns that its predecessor hasn't filled."""
        self._supervisor.send(actor, Message.BEGIN, self._memory.plan)
        for assignment in self._memory.assign_again(actor):
            self._send(actor, assignment)
        self._record_restart(actor)

    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        assignment = self._memory.assign(actor, batch, block, start, self.calls.count)
        if actor in self._ready:  # else it gets them when it is
            self._send(actor, assignment)

    def _send(self, actor: int, assignment: Assignment) -> None:
        if calls := self.calls.since(self._calls_passed_on[actor], assignment.calls):
            self._supervisor.send(actor, Message.CALL, encode(calls))
            self._calls_passed_on[actor] = assignment.calls
        self._supervisor.send(actor, Message.UNROLL, assignment)

    def end_early(self, block: int) -> None:
        self._memory.end_early(block)

    def _catch_up(self) -> None:
        self._supervisor.sweep(_SWEEP_SECONDS)

    @property
    def _has_ended(self) -> bool:
        return not self._supervisor.running

    def _failure(self) -> BaseException | None:
        error = self._supervisor.error
        if error is None or isinstance(error, (ActingError, ActorError, EnvError, MemoryError)):
            return error
        text = f"Actors can't be started or watched: {error}; `actor-learner doctor` reports the limits"
        failure = RuntimeError(text)
        failure.__cause__ = error
        return failure

    @property
    def restart_count(self) -> int:
        return self._restarts.count

    def replace(self, actors: Iterable[int]) -> None:
        for actor in actors:
            self._supervisor.end(actor, REQUESTED)

    def process_ids(self) -> dict[int, int]:
        return self._supervisor.process_ids()

    def close(self) -> None:
        self._supervisor.close()
        if self._acting is not None:
            self._acting.close()
            self._acting = None  # it holds weights on the device
        self._show_lines()
        while self._supervisor.unclosed:
            actor, name = self._supervisor.unclosed.popitem()
            limit = f"in `{name}` didn't close within close_timeout={self._settings.close_timeout:g} s, so that it"
            cause = f"didn't end its env step within {GRACE_SECONDS:g} s and" if name is None else limit
            _logger.warning("Actor %d %s was killed: files that its environments write may be incomplete", actor, cause)
        if os.getpid() == self._supervisor.process:  # a fork's copy of the lock may be locked for ever
            with self.lock:
                self._heartbeats.words = None
        if self._owns_memory:
            self._memory.close()


def variables_of(settings: PoolSettings) -> dict[str, str]:
    """Return the environment variables of processes that step environments: one thread, and no GPU by default."""
    return ONE_THREAD | ({} if settings.envs_see_gpu else NO_GPU)


def _warn_of_crowding(num_actors: int) -> None:
    if num_actors > (cores := available_cores()):
        text = "There are more actors than cores, which helps only where environments wait for something."
        level = 5  # the caller of ActorPool
        warnings.warn(f"{text} Received: num_actors={num_actors}, cores={cores}", UserWarning, stacklevel=level)
