"""The thread that starts a pool's actors, listens to them, notices their deaths and ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from actor_learner.actors.processes.child import ActorProcess
from actor_learner.actors.processes.orphan_reaper import Warden
from actor_learner.actors.transport.messages import Failure, Message

_BEGIN_SECONDS = 10.0
_GRACE_SECONDS = 2.0
"""For actors to close their environments when the pool is closed."""
_GRACE_AFTER_FAILURE_SECONDS = 0.5
_DEATH_SECONDS = 2.0
"""For a killed process to be gone."""
_STUCK_SECONDS = 60.0
"""For a killed process that a driver or a file system holds in the kernel to be gone, before all is given up."""
_LOST_SECONDS = 0.5
"""For an actor that has closed its connection to end by itself."""
_START_SECONDS = 30.0
"""For what a new process needs to be had again, where it wasn't."""
_POLL_SECONDS = 0.05
"""How often to look at what can't be waited for."""
_MOST_LINES = 1000


class ActorEnd(NamedTuple):
    """How an actor's process ended."""

    actor: int
    failure: Failure | None
    """Its exception, if it could say so."""
    exit_code: int | None
    """Minus the signal, if it was one; None if not known."""
    tail: str
    """The end of what it printed."""
    reason: str | None
    """Why the pool ended it; None if it ended by itself."""


class Owner(Protocol):
    """Whoever the actors work for. All is called in the watcher's thread, with `condition` held."""

    def payload(self, actor: int) -> bytes:
        """What a new process of this actor is told."""

    def receive(self, actor: int, message: Message, payload: Any) -> bool:
        """Hears every message but FAILED; returns whether those who wait on the condition should look."""

    def ended(self, end: ActorEnd) -> Exception | None:
        """An actor is gone, with all that it started. None: another process is to do its work; else why all end."""

    def may_start(self, actor: int) -> bool:
        """Whether this actor's first process may be started now; asked again after each turn until it may."""

    def tick(self, seconds: float) -> None:
        """So many seconds have passed since the last one."""

    def closing(self) -> None:
        """Actors are about to be asked to end."""


class Supervisor:
    """Owns the actors' processes, from `start` to `close`; all of the rest goes by messages.

    num_actors: how many. arena: descriptor of the arena. logs: a file per actor, or None. owner: hears what happens.
    tick_seconds: how often it hears that time goes by.

    One thread does it all, because an actor dies with the *thread* that started it, and because a caller
    that is interrupted in the midst of closing must not leave anything behind.
    """

    def __init__(
        self, num_actors: int, arena: int, logs: Sequence[Path | None], owner: Owner, tick_seconds: float
    ) -> None:
        self.condition = threading.Condition()
        self.error: BaseException | None = None
        """Why the actors were ended, if they weren't asked to by `close`."""
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        """What the actors printed, for the caller's thread to show; the oldest are dropped."""
        self._num_actors, self._arena, self._logs = num_actors, arena, logs
        self._owner, self._tick_seconds = owner, tick_seconds
        self._actors: dict[int, ActorProcess] = {}
        self._lost: dict[int, float] = {}
        self._failures: dict[int, Failure] = {}
        self._reasons: dict[int, str] = {}
        self._killed: dict[int, float] = {}
        self._to_start: dict[int, float] = {}
        self._without_pidfd: set[int] = set()
        """Actors whose end has to be looked for."""
        self._dropped: set[int] = set()
        """Descriptors that aren't listened to any more since this turn began."""
        self._closing = self._sweeping = False
        self.process = os.getpid()
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reading, selectors.EVENT_READ, self._on_wake)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actor-watcher", daemon=True)

    def start(self) -> None:
        """Starts the thread, which starts the actors, and waits until their processes are there.

        They get ready by themselves. A process that is started while another thread loads TensorFlow from a disk that
        has to be read can be refused by Linux ("Bad address").
        """
        self._thread.start()
        self._begun.wait(_BEGIN_SECONDS)

    @property
    def running(self) -> bool:
        """False once the actors are being ended, for whatever reason."""
        return not self._closing

    def process_ids(self) -> dict[int, int]:
        """Of each actor that has a process now; the id of its process group and session as well."""
        with self.condition:
            return {number: actor.pid for number, actor in sorted(self._actors.items())}

    def send(self, actor: int, message: Message, payload: Any = None) -> None:
        """Sends a small message; does nothing if the actor is gone, which is noticed elsewhere."""
        with self.condition, contextlib.suppress(OSError):
            if actor in self._actors:
                self._actors[actor].channel.send(message, payload)

    def end(self, actor: int, reason: str) -> None:
        """Ends an actor's process and what it started; soon, from any thread."""
        with self.condition:
            self._reasons.setdefault(actor, reason)
            self._wake()

    def sweep(self, seconds: float) -> None:
        """Returns when everything that had arrived by now has been looked at, or so many seconds later.

        Without it a caller that slept past its deadline would judge before this thread has had its turn.
        """
        with self.condition:
            self._sweeping = True
            self._wake()
            self.condition.wait_for(lambda: not self._sweeping or self._closing, seconds)

    def close(self) -> None:
        """Ends all actors and their children and closes everything; idempotent, from any thread.

        Returns when it's done, within about five seconds. Interrupting it doesn't interrupt the ending.
        """
        if os.getpid() != self.process:  # a fork of the caller holds copies; the actors aren't its own
            return
        self._closing = True
        self._wake()
        if self._thread.ident is None:
            self._close_all()
        elif self._thread is not threading.current_thread():
            self._thread.join(_GRACE_SECONDS + _DEATH_SECONDS + 2.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            os.write(self._wake_writing, b"x")

    def _on_wake(self) -> None:
        os.read(self._wake_reading, 4096)

    # From here on everything runs in the watcher's own thread.

    def _run(self) -> None:
        warden = None
        try:
            warden = Warden()
            waiting = deque(range(self._num_actors))
            last = time.monotonic()
            while not self._closing:
                while waiting and self._may_start(waiting[0]):
                    self._start_actor(waiting.popleft(), warden)
                self._begun.set()
                self._turn(self._tick_seconds, warden)
                self._start_missing(warden)
                if (elapsed := time.monotonic() - last) >= self._tick_seconds:
                    last += elapsed
                    with self.condition:
                        self._owner.tick(elapsed)
        except BaseException as error:
            self._fail(error)
        self._begun.set()
        self._end(warden)

    def _fail(self, error: BaseException) -> None:
        with self.condition:
            self.error = self.error or error
            self._closing = True

    def _may_start(self, number: int) -> bool:
        with self.condition:
            return not self._closing and self._owner.may_start(number)

    def _start_actor(self, number: int, warden: Warden) -> None:
        if self._closing:
            return
        with self.condition:
            payload = self._owner.payload(number)
        show = functools.partial(self._show, number)
        actor = ActorProcess(number, payload, self._arena, self._logs[number], show)
        warden.watch(actor.pid)
        self._selector.register(actor.channel, selectors.EVENT_READ, functools.partial(self._on_message, actor))
        self._selector.register(actor.output, selectors.EVENT_READ, functools.partial(self._on_output, actor))
        if actor.pidfd is not None:
            self._selector.register(actor.pidfd, selectors.EVENT_READ, functools.partial(self._on_death, actor, warden))
        with self.condition:
            self._actors[number] = actor
            if actor.pidfd is None:
                self._without_pidfd.add(number)
            self._reasons.pop(number, None)  # meant for the process before it
        self.send(number, Message.START)

    def _start_missing(self, warden: Warden) -> None:
        """Starts the processes that take the place of others. What they need may be had a little later."""
        for number, since in list(self._to_start.items()):
            try:
                self._start_actor(number, warden)
            except OSError:  # no file descriptor, process or memory left
                if time.monotonic() - since > _START_SECONDS:
                    raise
            else:
                del self._to_start[number]

    def _show(self, number: int, line: str) -> None:
        self.lines.append(f"[actor {number}] {line}")

    def _turn(self, seconds: float | None, warden: Warden | None) -> None:
        """Waits for something to happen, at most so long, and sees to all that has."""
        sweeping = self._sweeping
        if sweeping:
            seconds = 0.0
        elif self._lost or self._to_start or self._without_pidfd:
            seconds = _POLL_SECONDS if seconds is None else min(seconds, _POLL_SECONDS)
        self._dropped.clear()
        for key, _ in self._selector.select(seconds):
            if key.fd not in self._dropped:  # an earlier one of this turn may have ended this actor
                key.data()
        if self._lost or self._reasons or self._without_pidfd:  # seldom, and this is once per message
            self._look_after_silent(warden)
        if sweeping:
            with self.condition:
                self._sweeping = False
                self.condition.notify_all()

    def _look_after_silent(self, warden: Warden | None) -> None:
        now = time.monotonic()
        for actor in [self._actors[number] for number in self._without_pidfd if self._actors[number].ended()]:
            self._on_death(actor, warden)
        for number in [number for number, since in self._lost.items() if now - since > _LOST_SECONDS]:
            self._lost[number] = now
            self._actors[number].kill()
        for number in self._reasons.keys() & self._actors.keys():
            self._actors[number].kill()
            if now - self._killed.setdefault(number, now) > _STUCK_SECONDS:
                raise RuntimeError(
                    f"actor {number} ({self._reasons[number]}) was killed and doesn't end: the kernel holds it"
                )

    def _on_message(self, actor: ActorProcess) -> None:
        try:
            message, payload = actor.channel.receive()
        except (EOFError, OSError):
            self._unregister(actor.channel.fileno())
            self._lost[actor.number] = time.monotonic()
            return
        with self.condition:
            if message is Message.FAILED:
                self._failures[actor.number] = payload
                self._lost.setdefault(actor.number, time.monotonic())
            elif self._owner.receive(actor.number, message, payload):
                self.condition.notify_all()

    def _on_output(self, actor: ActorProcess) -> None:
        if actor.drain() == 0:
            self._unregister(actor.output)

    def _unregister(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._dropped.add(descriptor)

    def _on_death(self, actor: ActorProcess, warden: Warden | None) -> None:
        """Its children are killed before it is reaped, while its id is still the group's.

        Its columns are another's only after that: it writes no more.
        """
        actor.kill()
        while actor.channel.fileno() in self._selector.get_map() and actor.channel.wait(0.0):
            self._on_message(actor)
        actor.drain_all()
        if warden is not None:
            warden.forget(actor.pid)
        exit_code = actor.reap(_DEATH_SECONDS)
        with self.condition:
            failure, reason = self._failures.pop(actor.number, None), self._reasons.pop(actor.number, None)
            self._drop(actor)
            if self._closing:
                return
            end = ActorEnd(actor.number, failure, None if failure else exit_code, actor.tail, reason)
            error = self._owner.ended(end)
            if error is None:
                self._to_start[actor.number] = time.monotonic()
            else:
                self._fail(error)

    def _drop(self, actor: ActorProcess) -> None:
        descriptors = (actor.channel.fileno(), actor.output, actor.pidfd)
        for descriptor in descriptors:
            if descriptor is not None and descriptor in self._selector.get_map():
                self._unregister(descriptor)
        with self.condition:
            del self._actors[actor.number]
            self._without_pidfd.discard(actor.number)
            self._lost.pop(actor.number, None)
            self._killed.pop(actor.number, None)
            actor.close()

    def _end(self, warden: Warden | None) -> None:
        """Asks, waits, kills, waits, closes. No step may keep the later ones from happening."""
        failed = self.error is not None
        for step in (
            self._owner.closing,
            self._ask_to_close,
            functools.partial(self._await_deaths, _GRACE_AFTER_FAILURE_SECONDS if failed else _GRACE_SECONDS, warden),
            self._kill_all,
            functools.partial(self._await_deaths, _DEATH_SECONDS, warden),
            self._close_all,
            warden.close if warden is not None else lambda: None,
        ):
            try:
                step()
            except Exception as error:
                self.error = self.error or error
        with self.condition:
            self.condition.notify_all()

    def _ask_to_close(self) -> None:
        for number in list(self._actors):
            self.send(number, Message.CLOSE)

    def _await_deaths(self, seconds: float, warden: Warden | None) -> None:
        deadline = time.monotonic() + seconds
        while self._actors and (remaining := deadline - time.monotonic()) > 0:
            self._turn(remaining, warden)

    def _kill_all(self) -> None:
        for actor in self._actors.values():
            actor.kill()

    def _close_all(self) -> None:
        for actor in list(self._actors.values()):  # killed, and not gone even so: in the kernel's hands
            self._drop(actor)
        with self.condition:
            if self._wake_writing >= 0:
                self._selector.close()
                os.close(self._wake_reading)
                os.close(self._wake_writing)
                self._wake_writing = -1
