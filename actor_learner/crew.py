"""The actors of a pool behind one interface: in processes of their own, or one of them in the caller's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from actor_learner.actor import Actor, Leaves, Startup, describe_spaces, make_environments
from actor_learner.capacity import check_rest, starts_with_one
from actor_learner.env_calls import Call, Calls, encode
from actor_learner.env_spec import EnvError
from actor_learner.environments import EnvFactory, Environments
from actor_learner.hand_outs import HandOuts
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.restarts import ASKED_TO, ActorError, Restart, Restarts, cause_of, details_of
from actor_learner.transport.batches import ArenaPlan
from actor_learner.transport.heartbeats import Heartbeats
from actor_learner.transport.messages import HandOut, Message
from actor_learner.transport.shared_memory import Arena
from actor_learner.transport.watcher import ActorEnd, Watcher

Array = np.ndarray[Any, Any]

_SHOW_SECONDS = 0.2
"""How often what the actors print is shown while the caller waits."""
_SWEEP_SECONDS = 1.0


class Crew(Protocol):
    """The actors of a pool."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any, Any]:
        """Held while hand-outs hear what was done, which may be in another thread."""

    def start(self) -> None:
        """Starts the actors; apart from the constructor, so that whoever is interrupted can close."""

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON, once all are made and reset."""

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: HandOuts) -> None:
        """Shows the actors the arena, reserved, and the policy in it; from then on `hand_outs` hear what they fill."""

    @property
    def calls(self) -> Calls:
        """Of the environments' methods: what an actor gets to hear before it fills anything."""

    def call(self, call: Call) -> None:
        """Notes a call of a method of every environment, which each actor makes before its next hand-out."""

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Gives an actor columns to fill."""

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
        """Returns when there is a batch to take."""

    @property
    def idle(self) -> bool:
        """Whether the actors have filled all that was handed out to them."""

    def check(self) -> None:
        """Raises what `wait` would, if an actor has failed by now."""

    def replaced(self) -> list[Restart]:
        """The replacements since this was asked last."""

    def replace(self, actors: Iterable[int]) -> None:
        """Ends these actors' processes, soon; others take their places."""

    def process_ids(self) -> dict[int, int]:
        """Of the actors that have a process now."""

    def close(self) -> None:
        """Ends the actors; idempotent."""


class LocalCrew:
    """One actor in the caller's process: for debuggers, and the same bytes as one actor process."""

    def __init__(self, factory: EnvFactory, startup: Startup, arena: Arena) -> None:
        self._factory, self._startup, self._arena = factory, startup, arena
        self._environments: Environments | None = None
        self._observation: Leaves | None = None
        self._to_do: deque[tuple[tuple[Call, ...], HandOut]] = deque()
        self.calls, self._told = Calls(), 0
        self._actor: Actor | None = None
        self.lock = contextlib.nullcontext()
        self._closed = False

    def start(self) -> None:
        """Makes and resets the environments. Raises EnvError if that fails."""
        self._environments, self._observation = make_environments(self._factory, self._startup)

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON."""
        assert self._environments is not None
        return describe_spaces(self._environments)

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: HandOuts) -> None:
        """Shows the actor the arena and the policy."""
        assert self._environments is not None
        assert self._observation is not None
        self._actor = Actor(self._startup, self._environments, self._observation, exported, self._arena, plan)

    def call(self, call: Call) -> None:
        """Notes a call. Raises CallError if the environments have no such method."""
        assert self._environments is not None
        if not call.optional:
            self._environments.check_call(call)
        self.calls.add(call)

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Notes columns to fill, which happens in `wait`."""
        self._to_do.append((self.calls.since(self._told), hand_out))
        self._told = self.calls.count

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
        """Fills columns until there is a batch, however long it takes. An exception is the environment's own."""
        self.check()
        assert self._actor is not None
        try:
            while not hand_outs.complete():
                calls, hand_out = self._to_do.popleft()
                self._actor.call(calls)
                hand_outs.done(0, self._actor.fill(hand_out))
        except BaseException:  # the environments are somewhere within an unroll
            self.close()
            raise

    @property
    def idle(self) -> bool:
        """Always: what is handed out is filled in `wait` alone."""
        return True

    def check(self) -> None:
        """Raises RuntimeError if the crew is closed."""
        if self._closed:
            raise RuntimeError("The pool is closed; make another.")

    def replaced(self) -> list[Restart]:
        """None: there is no process but the caller's own."""
        return []

    def replace(self, actors: Iterable[int]) -> None:
        """Raises ValueError: there is no process but the caller's own."""
        raise ValueError("Actors can be replaced that have processes of their own. Received: num_actors=0")

    def process_ids(self) -> dict[int, int]:
        """None."""
        return {}

    def close(self) -> None:
        """Closes the environments; idempotent."""
        if not self._closed:
            self._closed = True
            self._actor = None
            if self._environments is not None:
                self._environments.close()


class ProcessCrew:
    """Actors in processes of their own; one that dies or hangs is replaced, as `restarts` decides.

    startups: one per actor. arena: empty yet. logs_dir: gets `actor-N.log`, or None. heartbeats: judges who hangs.
    """

    def __init__(
        self,
        factory: EnvFactory,
        startups: Sequence[Startup],
        arena: Arena,
        logs_dir: Path | None,
        restarts: Restarts,
        heartbeats: Heartbeats,
    ) -> None:
        self._arena, self._startups, self._factory = arena, startups, factory.dumps()
        self._restarts, self._heartbeats = restarts, heartbeats
        self._count = len(startups)
        self._plan: ArenaPlan | None = None
        self._stop_everywhere: Array | None = None
        self._hand_outs: HandOuts | None = None
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
        self._watcher = Watcher(self._count, arena.descriptor, logs, self, heartbeats.interval)
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

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, hand_outs: HandOuts) -> None:
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

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
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
