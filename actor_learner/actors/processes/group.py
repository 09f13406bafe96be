"""actors in processes of their own."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from actor_learner.actors.actor import Startup
from actor_learner.actors.capacity import check_rest, starts_with_one
from actor_learner.actors.group import Array
from actor_learner.actors.processes.heartbeats import Heartbeats
from actor_learner.actors.processes.restarts import ASKED_TO, ActorError, Restart, RestartPolicy, cause_of, details_of
from actor_learner.actors.processes.supervisor import ActorEnd, Supervisor
from actor_learner.actors.scheduling import Schedule
from actor_learner.actors.transport.batches import ArenaPlan
from actor_learner.actors.transport.messages import HandOut, Message
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.environments.calls import Call, Calls, encode
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory
from actor_learner.policy.exported import ExportedPolicy

_SHOW_SECONDS = 0.2
"""How often what the actors print is shown while the caller waits."""
_SWEEP_SECONDS = 1.0


class ProcessActors:
    """Actors in processes of their own; one that dies or hangs is replaced, as `restarts` decides.

    startups: one per actor. arena: empty yet. logs_dir: gets `actor-N.log`, or None. heartbeats: judges who hangs.
    """

    def __init__(
        self,
        factory: EnvFactory,
        startups: Sequence[Startup],
        arena: Arena,
        logs_dir: Path | None,
        restarts: RestartPolicy,
        heartbeats: Heartbeats,
    ) -> None:
        self._arena, self._startups, self._factory = arena, startups, factory.dumps()
        self._restarts, self._heartbeats = restarts, heartbeats
        self._count = len(startups)
        self._plan: ArenaPlan | None = None
        self._stop_everywhere: Array | None = None
        self._hand_outs: Schedule | None = None
        self._one_first = starts_with_one(self._count)
        self._starting: set[int] = set()
        self._ready: set[int] = set()
        self._agreed: dict[str, Any] = {}
        """What all that are ready say of their spaces."""
        self._outstanding: Counter[int] = Counter()
        self._gone: dict[int, tuple[ActorEnd, float, int]] = {}
        """How those ended whose successors aren't ready yet, when, and the successors' incarnation."""
        self._replaced: deque[Restart] = deque()
        self.calls = Calls()
        self._told: Counter[int] = Counter()
        """How many of the calls each process has heard of."""
        logs = [logs_dir and logs_dir / f"actor-{actor}.log" for actor in range(self._count)]
        self._watcher = Supervisor(self._count, arena.descriptor, logs, self, heartbeats.interval)
        self.lock = self._watcher.condition

    def start(self) -> None:
        """Starts the thread that starts the processes."""
        self._watcher.start()

    # What the watcher calls, in its thread and with the lock held.

    def payload(self, actor: int) -> bytes:
        """What `actor.main` unpickles."""
        self._starting.add(actor)
        self._told[actor] = 0
        self._heartbeats.started(actor)
        startup = dataclasses.replace(self._startups[actor], incarnation=self._restarts.incarnation(actor))
        return pickle.dumps((startup, sys.argv, self._factory))

    def receive(self, actor: int, message: Message, payload: Any) -> bool:
        """An actor is ready, or has filled its columns."""
        if message is Message.READY:
            self._starting.discard(actor)
            self._agreed = self._agreed or payload
            if payload != self._agreed:
                raise EnvError(
                    "Every actor must build environments of the same spaces. "
                    f"Received: {self._agreed} at first, {payload} in actor {actor}"
                )
            self._ready.add(actor)
            if self._plan is not None:
                self._begin(actor)
            return len(self._ready) == self._count
        assert message is Message.DONE, message
        assert self._hand_outs is not None
        self._outstanding[actor] -= 1
        if not self._outstanding[actor]:
            self._heartbeats.idle(actor)
        self._restarts.unroll_finished(actor)
        return self._hand_outs.done(actor, payload)

    def may_start(self, actor: int) -> bool:
        """All at once, unless memory might not suffice: then the first one has to be ready, and to be small enough."""
        if not self._one_first or actor == 0:
            return True
        if 0 not in self._ready:
            return False
        check_rest(self._count, self._watcher.process_ids()[0])
        self._one_first = False
        return True

    def ended(self, end: ActorEnd) -> Exception | None:
        """An actor is gone."""
        self._note_restart(end.actor)  # of one that ended before it was ready
        if (error := self._restarts.judge(end)) is not None:
            return error
        self._ready.discard(end.actor)
        self._outstanding[end.actor] = 0
        self._gone[end.actor] = end, time.monotonic(), self._restarts.incarnation(end.actor)
        return None

    def _note_restart(self, actor: int) -> None:
        if actor in self._gone:
            end, since, incarnation = self._gone.pop(actor)
            seconds = time.monotonic() - since
            self._replaced.append(Restart(actor, incarnation, cause_of(end), details_of(end), seconds))

    def tick(self, seconds: float) -> None:
        """Ends the actors that give no sign of life, so that others take their places."""
        busy = [actor for actor, count in self._outstanding.items() if count]
        for actor, silent, where in self._heartbeats.look(seconds, self._starting, busy):
            self._watcher.end(actor, f"gave no sign of life for {silent:.3g} s, {where}")

    def closing(self) -> None:
        """Lets the actors give up their unrolls."""
        if self._stop_everywhere is not None:
            self._stop_everywhere.fill(1)

    # What the pool calls.

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON, once all actors have made and reset theirs.

        Raises EnvError if an environment can't be made or reset, or if the actors' spaces differ;
        TimeoutError if some aren't ready so many seconds later; ActorError if one ended.
        """
        if not self._wait(lambda: len(self._ready) == self._count, seconds):
            late = [actor for actor in range(self._count) if actor not in self._ready]
            raise TimeoutError(
                f"{_named(late)} not made and reset the environments within {seconds:g} s. "
                f"Received: start_timeout={seconds:g}"
            )
        return self._agreed

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: Schedule) -> None:
        """Shows the actors the arena; the policy lies in it."""
        with self.lock:
            self._hand_outs = hand_outs
            self._stop_everywhere = plan.stop_words(self._arena)[:1]
            self._heartbeats.attach(plan.heartbeats(self._arena)[:, 0])
            self._plan = plan
            for actor in self._ready:
                self._begin(actor)

    def _begin(self, actor: int) -> None:
        """Gives an actor that is ready what it needs, and what the process before it hasn't done."""
        assert self._hand_outs is not None
        self._watcher.send(actor, Message.BEGIN, self._plan)
        self._hand_outs.hand_out_again(actor)
        self._note_restart(actor)

    def call(self, call: Call) -> None:
        """Notes a call; one that environments refuse ends the crew when an actor is at it."""
        with self.lock:
            self.calls.add(call)

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Gives an actor columns to fill; one that isn't there gets them when it is."""
        if actor in self._ready:
            self._outstanding[actor] += 1
            if calls := self.calls.since(self._told[actor]):
                self._watcher.send(actor, Message.CALL, encode(calls))
                self._told[actor] = self.calls.count
            self._watcher.send(actor, Message.UNROLL, hand_out)

    def wait(self, hand_outs: Schedule, seconds: float) -> None:
        """Returns when there is a batch to take.

        Raises TimeoutError naming the actors that are late, ActorError if one failed or died and isn't replaced.
        """
        if not self._wait(hand_outs.complete, seconds):
            with self.lock:
                late = hand_outs.late()
            raise TimeoutError(
                f"{_named(late)} not filled the columns of the batch within {seconds:g} s. "
                f"Received: timeout={seconds:g}"
            )

    @property
    def idle(self) -> bool:
        """Whether no actor has columns to fill."""
        with self.lock:
            return not any(self._outstanding.values())

    def _wait(self, complete: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        watcher, condition = self._watcher, self._watcher.condition
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                watcher.sweep(_SWEEP_SECONDS)
            with condition:
                condition.wait_for(lambda: complete() or not watcher.running, min(max(remaining, 0), _SHOW_SECONDS))
                found = complete()
            self.check()
            if found or remaining <= 0:
                return found

    def check(self) -> None:
        """Shows what the actors printed. Raises what ended the actors, if anything did, after all are ended."""
        self._show_lines()
        if not self._watcher.running:
            self.close()
            self._raise()

    def _raise(self) -> NoReturn:
        error = self._watcher.error
        if isinstance(error, (ActorError, EnvError, MemoryError)):
            raise error
        if error is not None:
            raise RuntimeError(
                f"Actors can't be started or watched: {error}; `actor-learner doctor` tells the limits"
            ) from error
        raise RuntimeError("The pool is closed; make another.")

    def replaced(self) -> list[Restart]:
        """The replacements since this was asked last."""
        return [self._replaced.popleft() for _ in range(len(self._replaced))]

    def replace(self, actors: Iterable[int]) -> None:
        """Ends these actors' processes; others take their places."""
        for actor in actors:
            self._watcher.end(actor, ASKED_TO)

    def process_ids(self) -> dict[int, int]:
        """Of the actors that have a process now."""
        return self._watcher.process_ids()

    def _show_lines(self) -> None:
        """In the caller's thread: a blocked stdout blocks nobody else, and notebooks know where it belongs."""
        lines = self._watcher.lines
        if lines and sys.stdout is not None:
            text = "".join(lines.popleft() + "\n" for _ in range(len(lines)))
            sys.stdout.write(text)
            sys.stdout.flush()

    def close(self) -> None:
        """Ends the actors and what they started, and closes every descriptor; idempotent."""
        self._watcher.close()
        self._show_lines()
        if os.getpid() == self._watcher.process:
            with self.lock:
                self._stop_everywhere, self._hand_outs = None, None
                self._heartbeats.attach(None)


def _named(actors: Sequence[int]) -> str:
    return f"Actor {actors[0]} has" if len(actors) == 1 else f"Actors {', '.join(map(str, actors))} have"
