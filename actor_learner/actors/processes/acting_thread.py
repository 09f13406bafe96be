"""The thread in the learner's process that acts on the learner's device for actors in processes of their own."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from actor_learner.actors.shared_step import SharedStep
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.actors.transport.messages import Assignment
from actor_learner.environments.errors import describe_error

_JOIN_SECONDS = 10.0


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
