"""Which actors have given no sign of life for too long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

STARTING, STEPPING, ACTING = "making or resetting its environments", "in env.step", "outside of env.step"


class Silence(NamedTuple):
    """An actor that gives no sign of life."""

    actor: int
    seconds: float
    where: str
    """What it was at."""


class Heartbeats:
    """Judges actors by counters in shared memory, which they count up with each step.

    Only time in which the judge itself was running counts: a process that was stopped (Ctrl-Z, a debugger, the lid of
    a laptop) would otherwise find, when it goes on, that nobody had moved.

    timeout: seconds of silence from which an actor counts as hung. start_timeout: the same until it has loaded its
    policy. interval: seconds between two looks.
    """

    def __init__(self, timeout: float, start_timeout: float) -> None:
        self._timeout, self._start_timeout = timeout, start_timeout
        self.interval = min(1.0, timeout / 8, start_timeout / 8)
        self._words: Array | None = None
        self._last: dict[int, int] = {}
        self._silent: dict[int, float] = {}
        self._loaded: set[int] = set()

    def attach(self, words: Array | None) -> None:
        """The counters, `[num_actors]`; until then, and after None, there are none."""
        self._words = words

    def started(self, actor: int) -> None:
        """A new process does this actor's work."""
        self._last[actor] = self._beat(actor)
        self._loaded.discard(actor)
        self._silent[actor] = 0.0

    def idle(self, actor: int) -> None:
        """This actor has nothing to do, and nothing to show for it."""
        self._silent[actor] = 0.0

    def look(self, seconds: float, starting: Iterable[int], busy: Iterable[int]) -> list[Silence]:
        """The actors that have been silent for too long.

        seconds: since the last look. starting: actors that aren't ready yet. busy: those with columns to fill.
        """
        seconds = min(seconds, 2 * self.interval)
        found = [self._judge(actor, seconds, self._start_timeout, STARTING) for actor in starting]
        for actor in busy:
            beat = self._beat(actor)
            if beat != self._last[actor]:
                self._last[actor], self._silent[actor] = beat, 0.0
                self._loaded.add(actor)
            limit = self._timeout if actor in self._loaded else self._start_timeout
            found.append(self._judge(actor, seconds, limit, STEPPING if beat % 2 else ACTING))
        return [silence for silence in found if silence is not None]

    def _beat(self, actor: int) -> int:
        return 0 if self._words is None else int(self._words[actor])

    def _judge(self, actor: int, seconds: float, limit: float, where: str) -> Silence | None:
        silent = self._silent[actor] = self._silent[actor] + seconds
        return None if silent < limit else Silence(actor, silent, where)
