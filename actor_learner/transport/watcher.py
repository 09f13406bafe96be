"""The thread that starts a pool's actors, listens to them, notices their deaths and ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actor_learner.transport.messages import Failure, Message
from actor_learner.transport.process import ActorProcess
from actor_learner.transport.warden import Warden

_GRACE_SECONDS = 2.0
"""For actors to close their environments when the pool is closed."""
_GRACE_AFTER_FAILURE_SECONDS = 0.5
_DEATH_SECONDS = 2.0
"""For a killed process to be gone."""
_LOST_SECONDS = 0.5
"""For an actor that has closed its connection to end by itself."""
_POLL_SECONDS = 0.05
"""How often to look at what can't be waited for."""
_MOST_LINES = 1000


class ActorEnd(NamedTuple):
    """Why an actor is gone that wasn't asked to go."""

    actor: int
    failure: Failure | None
    """Its exception, if it could say so."""
    exit_code: int | None
    """Minus the signal, if it was one; None if not known."""
    tail: str
    """The end of what it printed."""


class Watcher:
    """Owns the actors' processes, from `start` to `close`; all of the rest goes by messages.

    payloads: one per actor. arena: descriptor of the arena. logs: a file per actor, or None.
    receive: called in the watcher's thread, with `condition` held, for each message but FAILED; returns
    whether those who wait on the condition should look. on_closing: called once before actors are ended.

    One thread does it all, because an actor dies with the *thread* that started it, and because a caller
    that is interrupted in the midst of closing must not leave anything behind.
    """

    def __init__(
        self,
        payloads: Sequence[bytes],
        arena: int,
        logs: Sequence[Path | None],
        receive: Callable[[int, Message, Any], bool],
        on_closing: Callable[[], None],
    ) -> None:
        self.condition = threading.Condition()
        self.end: ActorEnd | None = None
        """The first actor that was lost."""
        self.error: BaseException | None = None
        """What went wrong in this thread itself."""
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        """What the actors printed, for the caller's thread to show; the oldest are dropped."""
        self._payloads, self._arena, self._logs = payloads, arena, logs
        self._receive, self._on_closing = receive, on_closing
        self._actors: dict[int, ActorProcess] = {}
        self._lost: dict[int, float] = {}
        self._closing = self._sweeping = False
        self.owner = os.getpid()
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reading, selectors.EVENT_READ, self._on_wake)
        self._thread = threading.Thread(target=self._run, name="actor-watcher", daemon=True)

    def start(self) -> None:
        """Starts the thread, which starts the actors."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """False once an actor was lost, or the pool is being closed."""
        return not self._closing

    def send(self, actor: int, message: Message, payload: Any = None) -> None:
        """Sends a small message; does nothing if the actor is gone, which is noticed elsewhere."""
        with self.condition, contextlib.suppress(OSError):
            if actor in self._actors:
                self._actors[actor].channel.send(message, payload)

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
        if os.getpid() != self.owner:  # a fork of the caller holds copies; the actors aren't its own
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
            for number, payload in enumerate(self._payloads):
                self._start_actor(number, payload, warden)
            self._payloads = ()
            while not self._closing:
                self._turn(None, warden)
        except BaseException as error:
            self.error = error
        self._closing = True
        self._end(warden)

    def _start_actor(self, number: int, payload: bytes, warden: Warden) -> None:
        if self._closing:
            return
        show = functools.partial(self._show, number)
        actor = ActorProcess(number, payload, self._arena, self._logs[number], show)
        warden.watch(actor.pid)
        self._selector.register(actor.channel, selectors.EVENT_READ, functools.partial(self._on_message, actor))
        self._selector.register(actor.output, selectors.EVENT_READ, functools.partial(self._on_output, actor))
        if actor.pidfd is not None:
            self._selector.register(actor.pidfd, selectors.EVENT_READ, functools.partial(self._on_death, actor, warden))
        with self.condition:
            self._actors[number] = actor
        self.send(number, Message.START)

    def _show(self, number: int, line: str) -> None:
        self.lines.append(f"[actor {number}] {line}")

    def _turn(self, seconds: float | None, warden: Warden | None) -> None:
        """Waits for something to happen, at most so long, and sees to all that has."""
        sweeping = self._sweeping
        if sweeping:
            seconds = 0.0
        elif self._lost or any(actor.pidfd is None for actor in self._actors.values()):
            seconds = _POLL_SECONDS if seconds is None else min(seconds, _POLL_SECONDS)
        for key, _ in self._selector.select(seconds):
            if key.fd in self._selector.get_map():  # an earlier one of this turn may have ended this actor
                key.data()
        self._look_after_silent(warden)
        if sweeping:
            with self.condition:
                self._sweeping = False
                self.condition.notify_all()

    def _look_after_silent(self, warden: Warden | None) -> None:
        now = time.monotonic()
        for actor in [actor for actor in self._actors.values() if actor.pidfd is None and actor.ended()]:
            self._on_death(actor, warden)
        for number in [number for number, since in self._lost.items() if now - since > _LOST_SECONDS]:
            self._lost[number] = now
            self._actors[number].kill()

    def _on_message(self, actor: ActorProcess) -> None:
        try:
            message, payload = actor.channel.receive()
        except (EOFError, OSError):
            self._selector.unregister(actor.channel)
            self._lost[actor.number] = time.monotonic()
            return
        with self.condition:
            if message is Message.FAILED:
                self._lose(ActorEnd(actor.number, payload, None, actor.tail))
            elif self._receive(actor.number, message, payload):
                self.condition.notify_all()

    def _on_output(self, actor: ActorProcess) -> None:
        if actor.drain() == 0:
            self._selector.unregister(actor.output)

    def _on_death(self, actor: ActorProcess, warden: Warden | None) -> None:
        """Its children are killed before it is reaped, while its id is still the group's."""
        actor.kill()
        while actor.number not in self._lost and actor.channel.wait(0.0):
            self._on_message(actor)
        actor.drain_all()
        if warden is not None:
            warden.forget(actor.pid)
        exit_code = actor.reap(_DEATH_SECONDS)
        self._drop(actor)
        if not self._closing:
            self._lose(ActorEnd(actor.number, None, exit_code, actor.tail))

    def _lose(self, end: ActorEnd) -> None:
        with self.condition:
            self.end = self.end or end
            self._closing = True

    def _drop(self, actor: ActorProcess) -> None:
        descriptors = (actor.channel.fileno(), actor.output, actor.pidfd)
        for descriptor in descriptors:
            if descriptor is not None and descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        with self.condition:
            del self._actors[actor.number]
            self._lost.pop(actor.number, None)
            actor.close()

    def _end(self, warden: Warden | None) -> None:
        """Asks, waits, kills, waits, closes. No step may keep the later ones from happening."""
        failed = self.end is not None or self.error is not None
        for step in (
            self._on_closing,
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
