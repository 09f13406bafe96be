"""The actors of a pool behind one interface: in processes of their own, or one of them in the caller's."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from actor_learner.actor import Actor, Leaves, Startup, describe_spaces, make_environments
from actor_learner.env_spec import EnvError
from actor_learner.environments import EnvFactory, Environments
from actor_learner.hand_outs import HandOuts
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.transport.batches import ArenaPlan
from actor_learner.transport.messages import Done, HandOut, Message
from actor_learner.transport.shared_memory import Arena
from actor_learner.transport.watcher import ActorEnd, Watcher

OnDone = Callable[[int, Done], bool]
"""Hears that an actor has filled its columns; returns whether those who wait should look."""

_SHOW_SECONDS = 0.2
"""How often what the actors print is shown while the caller waits."""
_SWEEP_SECONDS = 1.0


class ActorError(RuntimeError):
    """An actor failed or died.

    actor: its number. traceback: of its exception, None if it couldn't say. exit_code: of its process, minus
    the signal if it was one; None if it hadn't ended by itself or that isn't known.
    """

    def __init__(self, message: str, actor: int, *, traceback: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.actor = actor
        self.traceback = traceback
        self.exit_code = exit_code


class Crew(Protocol):
    """The actors of a pool."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any, Any]:
        """Held while `begin`'s `on_done` runs, which may be in another thread."""

    def start(self) -> None:
        """Starts the actors; apart from the constructor, so that whoever is interrupted can close."""

    def spaces(self, seconds: float) -> dict[str, Any]:
        """The spaces of the environments as JSON, once all are made and reset."""

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, on_done: OnDone) -> None:
        """Shows the actors the arena, reserved, and the policy in it; from then on `on_done` hears what they fill."""

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Gives an actor columns to fill."""

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
        """Returns when there is a batch to take."""

    def check(self) -> None:
        """Raises what `wait` would, if an actor has failed by now."""

    def close(self) -> None:
        """Ends the actors; idempotent."""


class LocalCrew:
    """One actor in the caller's process: for debuggers, and the same bytes as one actor process."""

    def __init__(self, factory: EnvFactory, startup: Startup, arena: Arena) -> None:
        self._factory, self._startup, self._arena = factory, startup, arena
        self._environments: Environments | None = None
        self._observation: Leaves | None = None
        self._hand_outs: deque[HandOut] = deque()
        self._on_done: OnDone = _ignore
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

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, on_done: OnDone) -> None:
        """Shows the actor the arena and the policy."""
        self._on_done = on_done
        assert self._environments is not None
        assert self._observation is not None
        self._actor = Actor(self._startup, self._environments, self._observation, exported, self._arena, plan)

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Notes columns to fill, which happens in `wait`."""
        self._hand_outs.append(hand_out)

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
        """Fills columns until there is a batch, however long it takes. An exception is the environment's own."""
        self.check()
        assert self._actor is not None
        try:
            while not hand_outs.complete():
                self._on_done(0, self._actor.fill(self._hand_outs.popleft()))
        except BaseException:  # the environments are somewhere within an unroll
            self.close()
            raise

    def check(self) -> None:
        """Raises RuntimeError if the crew is closed."""
        if self._closed:
            raise RuntimeError("The pool is closed.")

    def close(self) -> None:
        """Closes the environments; idempotent."""
        if not self._closed:
            self._closed = True
            self._actor, self._on_done = None, _ignore
            if self._environments is not None:
                self._environments.close()


class ProcessCrew:
    """Actors in processes of their own.

    startups: one per actor. arena: empty yet. logs_dir: gets `actor-N.log`, or None.
    """

    def __init__(self, factory: EnvFactory, startups: Sequence[Startup], arena: Arena, logs_dir: Path | None) -> None:
        self._arena = arena
        self._count = len(startups)
        self._ready: dict[int, dict[str, Any]] = {}
        self._on_done: OnDone = _ignore
        self._stop: Callable[[], None] = lambda: None
        content = factory.dumps()
        self._watcher = Watcher(
            [pickle.dumps((startup, sys.argv, content)) for startup in startups],
            arena.descriptor,
            [logs_dir and logs_dir / f"actor-{startup.actor}.log" for startup in startups],
            self._receive,
            lambda: self._stop(),
        )
        self.lock = self._watcher.condition

    def start(self) -> None:
        """Starts the thread that starts the processes."""
        self._watcher.start()

    def _receive(self, actor: int, message: Message, payload: Any) -> bool:
        """In the watcher's thread; returns whether something that may be waited for is complete."""
        if message is Message.READY:
            self._ready[actor] = payload
            return len(self._ready) == self._count
        assert message is Message.DONE, message
        return self._on_done(actor, payload)

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
        for actor, described in self._ready.items():
            if described != self._ready[0]:
                raise EnvError(
                    f"Every actor must build environments of the same spaces. Received: {self._ready[0]} in actor 0, "
                    f"{described} in actor {actor}"
                )
        return self._ready[0]

    def begin(self, plan: ArenaPlan, exported: ExportedPolicy, on_done: OnDone) -> None:
        """Shows the actors the arena; the policy lies in it."""
        self._on_done = on_done
        everywhere = plan.stop_words(self._arena)[:1]
        self._stop = lambda: everywhere.fill(1)
        for actor in range(self._count):
            self._watcher.send(actor, Message.BEGIN, plan)

    def hand_out(self, actor: int, hand_out: HandOut) -> None:
        """Gives an actor columns to fill."""
        self._watcher.send(actor, Message.UNROLL, hand_out)

    def wait(self, hand_outs: HandOuts, seconds: float) -> None:
        """Returns when there is a batch to take.

        Raises TimeoutError naming the actors that are late, ActorError if one failed or died.
        """
        if not self._wait(hand_outs.complete, seconds):
            with self.lock:
                late = hand_outs.late()
            raise TimeoutError(
                f"{_named(late)} not filled the columns of the batch within {seconds:g} s. "
                f"Received: timeout={seconds:g}"
            )

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
        """Shows what the actors printed. Raises ActorError if one has failed, after all are ended."""
        self._show_lines()
        if not self._watcher.running:
            self.close()
            self._raise()

    def _raise(self) -> NoReturn:
        if self._watcher.end is not None:
            raise _error_of(self._watcher.end)
        if self._watcher.error is not None:
            error = self._watcher.error
            raise RuntimeError(f"Actors can't be started or watched: {error}") from error
        raise RuntimeError("The pool is closed.")

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
        if os.getpid() == self._watcher.owner:
            self._stop, self._on_done = lambda: None, _ignore


def _ignore(actor: int, done: Done) -> bool:
    return False


def _named(actors: Sequence[int]) -> str:
    return f"Actor {actors[0]} has" if len(actors) == 1 else f"Actors {', '.join(map(str, actors))} have"


def _error_of(end: ActorEnd) -> ActorError | EnvError:
    failure = end.failure
    if failure is None:
        return ActorError(_describe_death(end), end.actor, exit_code=end.exit_code)
    if failure.starting and failure.bad_environment:
        return EnvError(failure.text)
    if failure.bad_environment:  # our own check of what the environment gave: its line says it all
        return ActorError(f"Actor {end.actor} failed: {failure.text}", end.actor, traceback=failure.traceback)
    doing = "couldn't start" if failure.starting else "failed"
    message = f"Actor {end.actor} {doing}: {failure.summary}\n\nIn the actor:\n{failure.traceback}"
    return ActorError(message, end.actor, traceback=failure.traceback)


def _describe_death(end: ActorEnd) -> str:
    if end.exit_code is None:
        how = "is gone"
    elif end.exit_code >= 0:
        how = f"ended with exit code {end.exit_code}"
    elif -end.exit_code == signal.SIGKILL:
        how = "was killed (SIGKILL), perhaps because memory ran out"
    else:
        how = f"was ended by {signal.Signals(-end.exit_code).name}"
    printed = f"\n\nWhat it printed last:\n{end.tail}" if end.tail.strip() else ""
    return f"Actor {end.actor} {how}.{printed}"
