"""The thread that starts the actors' processes, receives their messages, notices their deaths and ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.actors.processes.child import ActorProcess
from actor_learner.actors.processes.orphan_reaper import OrphanReaper
from actor_learner.actors.processes.restarts import ActorEnd
from actor_learner.actors.transport.messages import Failure, Message

if TYPE_CHECKING:
    from actor_learner.actors.processes.group import ProcessActors

_BEGIN_SECONDS = 10.0
GRACE_SECONDS = 2.0  # the time that actors have to begin to close their environments when the pool is closed
_GRACE_AFTER_FAILURE_SECONDS = 0.5
_DEATH_SECONDS = 2.0  # the time that a killed process has to be gone
_STUCK_SECONDS = 60.0  # the same where a driver or a file system holds it in the kernel; then the pool gives up
_DISCONNECTED_SECONDS = 0.5  # the time that an actor has to end by itself after it has closed its connection
_START_SECONDS = 30.0  # the time in which descriptors, processes or memory for a new process must become available
_POLL_SECONDS = 0.05  # the interval of checks for events that nothing signals


class Supervisor:
    """Owns the actors' processes, from `start` to `close`.

    One thread does everything, because an actor dies with the *thread* that started it, and because a caller that is
    interrupted while it closes must not leave anything behind.

    arena: descriptor of the arena. logs: a file, or None, by the number of each actor. owner: receives the events.
    tick_seconds: the interval of `owner.tick`. condition: notified of what callers wait for; held while methods of the
    owner run, but for `show`. variables: of the actors' environment, beside this process's. close_timeout: seconds that
    environments have to close.

    Attributes:
        unclosed: Actors that were killed before their environments were closed, and these environments' name, or None
            where they hadn't begun to close.
    """

    def __init__(
        self,
        arena: int,
        logs: Mapping[int, Path | None],
        owner: ProcessActors,
        tick_seconds: float,
        condition: threading.Condition,
        variables: Mapping[str, str],
        close_timeout: float,
    ) -> None:
        self.condition, self._variables, self._close_timeout = condition, variables, close_timeout
        self.unclosed: dict[int, str | None] = {}
        self._closers: dict[int, tuple[float, str]] = {}  # since when actors close their environments, and their name
        self.error: BaseException | None = None  # the error that ended the actors; None if `close` did
        self._arena, self._logs = arena, logs
        self._owner, self._tick_seconds = owner, tick_seconds
        self._reaper: OrphanReaper | None = None
        self._actors: dict[int, ActorProcess] = {}
        self._disconnected: dict[int, float] = {}
        self._failures: dict[int, Failure] = {}
        self._reasons: dict[int, str] = {}
        self._killed: dict[int, float] = {}
        self._missing: dict[int, float] = {}
        self._without_pidfd: set[int] = set()  # actors whose end nothing signals
        self._unregistered: set[int] = set()  # descriptors that were unregistered in this turn
        self._closing = self._sweeping = False
        self.process = os.getpid()
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._selector = selectors.DefaultSelector()
        wakes = functools.partial(os.read, self._wake_reading, 4096)
        self._selector.register(self._wake_reading, selectors.EVENT_READ, wakes)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actor-supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until it has started the actors' processes, which get ready by themselves.

        Linux may refuse a process ("Bad address") while another thread loads TensorFlow from a slow disk.
        """
        self._thread.start()
        self._started.wait(_BEGIN_SECONDS)

    @property
    def running(self) -> bool:
        """False once the actors are being ended."""
        return not self._closing

    def process_ids(self) -> dict[int, int]:
        """Return the process id of each actor that has a process now: the id of its group and session as well."""
        with self.condition:
            return {number: actor.pid for number, actor in sorted(self._actors.items())}

    def send(self, actor: int, message: Message, payload: Any = None) -> None:
        """Send a small message; does nothing if the actor has ended, which is noticed elsewhere."""
        with self.condition, contextlib.suppress(OSError):
            if actor in self._actors:
                self._actors[actor].channel.send(message, payload)

    def end(self, actor: int, reason: str) -> None:
        """End an actor's process and all that it started; soon, from any thread."""
        with self.condition:
            self._reasons.setdefault(actor, reason)
            self._wake()

    def fail(self, error: BaseException) -> None:
        """End all actors with an error; soon, from any thread."""
        with self.condition:
            if not self._closing:
                self._fail(error)
                self._wake()

    def sweep(self, seconds: float) -> None:
        """Wait, at most so many seconds, until all events so far are processed: the caller may have overslept."""
        with self.condition:
            self._sweeping = True
            self._wake()
            self.condition.wait_for(lambda: not self._sweeping or self._closing, seconds)

    def close(self) -> None:
        """End all actors and their children; idempotent, from any thread.

        It takes at most five seconds, and `close_timeout` for environments that are closing, even if interrupted.
        """
        if os.getpid() != self.process:  # the actors aren't the children of a fork of the caller
            return
        self._closing = True
        self._wake()
        if self._thread.ident is None:
            self._close_all()
        elif self._thread is not threading.current_thread():
            self._thread.join(GRACE_SECONDS + self._close_timeout + _DEATH_SECONDS + 2.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            os.write(self._wake_writing, b"x")

    # From here on everything runs in the supervisor's own thread.

    def _run(self) -> None:
        try:
            self._reaper = OrphanReaper()
            for number in self._logs:
                self._start_actor(number)
            self._started.set()
            last = time.monotonic()
            while not self._closing:
                self._turn(self._tick_seconds)
                self._start_missing()
                if (elapsed := time.monotonic() - last) >= self._tick_seconds:
                    last += elapsed
                    with self.condition:
                        self._owner.tick(elapsed)
        except BaseException as error:
            self._fail(error)
        self._started.set()
        self._end()

    def _fail(self, error: BaseException) -> None:
        with self.condition:
            self.error = self.error or error
            self._closing = True

    def _start_actor(self, number: int) -> None:
        if self._closing:
            return
        with self.condition:
            payload = self._owner.payload(number)
        show = functools.partial(self._owner.show, number)
        actor = ActorProcess(number, payload, self._arena, self._logs[number], show, os.environ | self._variables)
        assert self._reaper is not None
        self._reaper.watch(actor.pid)
        self._selector.register(actor.channel, selectors.EVENT_READ, functools.partial(self._on_message, actor))
        self._selector.register(actor.output, selectors.EVENT_READ, functools.partial(self._on_output, actor))
        if actor.pidfd is not None:
            self._selector.register(actor.pidfd, selectors.EVENT_READ, functools.partial(self._on_death, actor))
        with self.condition:
            self._actors[number] = actor
            if actor.pidfd is None:
                self._without_pidfd.add(number)
            self._reasons.pop(number, None)  # of the process before it
        self.send(number, Message.START)

    def _start_missing(self) -> None:
        """Start the processes that take the place of others; try again later if the system is short of something."""
        for number, since in list(self._missing.items()):
            try:
                self._start_actor(number)
            except OSError:  # no file descriptor, process or memory left
                if time.monotonic() - since > _START_SECONDS:
                    raise
            else:
                del self._missing[number]

    def _turn(self, seconds: float | None) -> None:
        """Wait for events, at most so many seconds, and process them all."""
        sweeping = self._sweeping
        if sweeping:
            seconds = 0.0
        elif self._disconnected or self._missing or self._without_pidfd:
            seconds = _POLL_SECONDS if seconds is None else min(seconds, _POLL_SECONDS)
        self._unregistered.clear()
        for key, _ in self._selector.select(seconds):
            if key.fd not in self._unregistered:  # an earlier event of this turn may have ended this actor
                key.data()
        if self._disconnected or self._reasons or self._without_pidfd:  # rare, and this runs once per message
            self._check_processes()
        if sweeping:
            with self.condition:
                self._sweeping = False
                self.condition.notify_all()

    def _check_processes(self) -> None:
        now = time.monotonic()
        for actor in [self._actors[number] for number in self._without_pidfd if self._actors[number].has_ended()]:
            self._on_death(actor)
        for number in [number for number, since in self._disconnected.items() if now - since > _DISCONNECTED_SECONDS]:
            self._disconnected[number] = now
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
            self._disconnected[actor.number] = time.monotonic()
            return
        with self.condition:
            if message is Message.CLOSING:
                self._closers[actor.number] = time.monotonic(), payload
            elif message is Message.FAILED:
                self._failures[actor.number] = payload
                self._disconnected.setdefault(actor.number, time.monotonic())
            elif self._owner.receive(actor.number, message, payload):
                self.condition.notify_all()

    def _on_output(self, actor: ActorProcess) -> None:
        if actor.drain() == 0:
            self._unregister(actor.output)

    def _unregister(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._unregistered.add(descriptor)

    def _on_death(self, actor: ActorProcess) -> None:
        """Kill the actor's children, reap it, and report its end.

        The children are killed first, while its id is still the group's. Only then, when it writes no more, its columns
        are assigned to another process.
        """
        actor.kill()
        while actor.channel.fileno() in self._selector.get_map() and actor.channel.wait(0.0):
            self._on_message(actor)
        actor.drain_all()
        if self._reaper is not None:
            self._reaper.forget(actor.pid)
        exit_code = actor.reap(_DEATH_SECONDS)
        with self.condition:
            failure, reason = self._failures.pop(actor.number, None), self._reasons.pop(actor.number, None)
            self._drop(actor)
            if self._closing:
                return
            end = ActorEnd(actor.number, failure, None if failure else exit_code, actor.tail, reason)
            error = self._owner.judge_end(end)
            if error is None:
                self._missing[actor.number] = time.monotonic()
            else:
                self._fail(error)

    def _drop(self, actor: ActorProcess) -> None:
        for descriptor in (actor.channel.fileno(), actor.output, actor.pidfd):
            if descriptor is not None and descriptor in self._selector.get_map():
                self._unregister(descriptor)
        with self.condition:
            del self._actors[actor.number]
            self._without_pidfd.discard(actor.number)
            self._disconnected.pop(actor.number, None)
            self._killed.pop(actor.number, None)
            actor.close()

    def _end(self) -> None:
        """Ask the actors to close, wait, kill them, wait, close everything. A failed step doesn't stop the others."""
        failed = self.error is not None
        for step in (
            self._owner.stop,
            self._ask_to_close,
            functools.partial(self._await_closing, _GRACE_AFTER_FAILURE_SECONDS if failed else GRACE_SECONDS),
            self._kill_all,
            functools.partial(self._await_deaths, _DEATH_SECONDS),
            self._close_all,
            self._reaper.close if self._reaper is not None else lambda: None,
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

    def _await_closing(self, seconds: float) -> None:
        """Wait for the actors' ends: so long for those that don't close their environments yet."""
        since = time.monotonic() + seconds - self._close_timeout
        while self._actors:
            newest = max(self._closers.get(number, (since,))[0] for number in self._actors)
            if (remaining := newest + self._close_timeout - time.monotonic()) <= 0:
                return
            self._turn(remaining)

    def _await_deaths(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._actors and (remaining := deadline - time.monotonic()) > 0:
            self._turn(remaining)

    def _kill_all(self) -> None:
        for number, actor in self._actors.items():
            name = self._closers[number][1] if number in self._closers else None
            if name is not None or (self.error is None and number not in self._owner.starting):
                self.unclosed[number] = name
            actor.kill()

    def _close_all(self) -> None:
        for actor in list(self._actors.values()):  # killed, but held by the kernel
            self._drop(actor)
        with self.condition:
            if self._wake_writing >= 0:
                self._selector.close()
                os.close(self._wake_reading)
                os.close(self._wake_writing)
                self._wake_writing = -1
