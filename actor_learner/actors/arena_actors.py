"""The parts of a group of actors that are the same for one machine and for a cluster."""

from __future__ import annotations

import abc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from actor_learner.actors.actor import Startup
from actor_learner.actors.group import CLOSED, ActorGroup, ColumnSchedule, Restart
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.calls import Calls
from actor_learner.environments.errors import EnvError
from actor_learner.system.policies import of_one
from actor_learner.system.types import Array

T = TypeVar("T")

_SHOW_SECONDS = 0.2  # the interval at which the actors' output is shown while the caller waits
_MAX_LINES = 1000


class ArenaActors(ActorGroup):
    """Actors outside of this process that fill an arena of it, while threads of the group watch them."""

    _schedule: ColumnSchedule

    def __init__(
        self,
        startups: Sequence[Startup],
        settings: PoolSettings,
        logs_dir: Path | None,
        memory: ArenaMemory | None = None,
        condition: threading.Condition | None = None,
    ) -> None:
        self._startups = {startup.actor: startup for startup in startups}
        self._settings, self._logs_dir = settings, logs_dir
        if logs_dir is not None:
            logs_dir.mkdir(parents=True, exist_ok=True)
        self.lock = self._condition = condition or threading.Condition()
        self.calls = Calls()
        self._has_begun = False
        self._spaces: dict[str, Any] = {}  # the spaces of all actors that are ready, as JSON
        self._replaced: deque[Restart] = deque()
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=_MAX_LINES)  # the latest output: actor, place, line
        self._memory = memory or ArenaMemory()

    @property
    def version(self) -> int:
        return self._memory.version

    def publish(self, weights: Array) -> None:
        self._memory.weights.publish(weights)

    def set_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array]) -> None:
        with self.lock:
            self._memory.set_opponents(weights, frozen)

    @property
    def idle(self) -> bool:
        with self.lock:
            return not any(map(self._memory.is_pending, self._startups))

    def take_restarts(self) -> list[Restart]:
        return _take_all(self._replaced)

    def show(self, actor: int, line: str, place: str = "") -> None:
        """Have a line of an actor's output shown soon; from any thread."""
        self._lines.append((actor, place, line))

    def take_lines(self) -> list[tuple[int, str, str]]:
        """Return what actors printed since the last time: actor, place and line."""
        return _take_all(self._lines)

    def _show_lines(self) -> None:
        """Print the actors' lines in the caller's thread, where a full pipe may block and a notebook shows the cell."""
        if sys.stdout is not None and (lines := self.take_lines()):
            sys.stdout.write("".join(f"[actor {actor}{place}] {line}\n" for actor, place, line in lines))
            sys.stdout.flush()

    def _compare_spaces(self, spaces: dict[str, Any], place: str) -> None:
        """Keep the first actors' spaces. Raises EnvError for others."""
        self._spaces = self._spaces or spaces
        if spaces != self._spaces:
            text = "Every actor must build environments of the same spaces."
            first, found = (of_one({name: own for name, (_, own) in each.items()}) for each in (self._spaces, spaces))
            raise EnvError(f"{text} Received: {first} at first, {found} {place}")

    def wait(self, seconds: float) -> None:
        if not self._wait(self._schedule.complete, seconds):
            with self.lock:
                late = self._schedule.late_actors()
            raise late_error(late, "filled the columns of the batch", "timeout", seconds)

    def _wait(self, complete: Callable[[], bool], seconds: float) -> bool:
        """Return True as soon as it is complete, False after so many seconds. Raises what `check` raises."""
        deadline = time.monotonic() + seconds
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._catch_up()
            pause = min(max(remaining, 0.0), _SHOW_SECONDS)
            with self._condition:
                self._condition.wait_for(lambda: complete() or self._has_ended, pause)
                is_complete = complete()
            self.check()
            if is_complete or remaining <= 0:
                return is_complete

    def _catch_up(self) -> None:
        """Let what has happened so far be noticed: the caller may have overslept."""

    def check(self) -> None:
        """Show the actors' output, and raise the error that ended them, if any did, once all have ended."""
        self._show_lines()
        if self._has_ended:
            self.close()
            raise self._failure() or RuntimeError(CLOSED)

    @property
    @abc.abstractmethod
    def _has_ended(self) -> bool:
        """True once the actors are being ended."""

    @abc.abstractmethod
    def _failure(self) -> BaseException | None:
        """Return the error that ended the actors; None if `close` did."""


def late_error(actors: Sequence[int], what: str, argument: str, seconds: float) -> TimeoutError:
    """Return the error of actors that have not done something in time, which this argument limits."""
    names = f"Actor {actors[0]} has" if len(actors) == 1 else f"Actors {', '.join(map(str, actors))} have"
    return TimeoutError(f"{names} not {what} within {seconds:g} s. Received: {argument}={seconds:g}")


def _take_all(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]
