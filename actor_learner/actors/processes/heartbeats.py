"""The search for actors that give no sign of life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from actor_learner.config.settings import PoolSettings
from actor_learner.system.types import Array

STARTING, STEPPING, ACTING = "making or resetting its environments", "in env.step", "outside of env.step"


class Silence(NamedTuple):
    """An actor that gives no sign of life."""

    actor: int
    seconds: float
    where: str  # the part of its work that it is in


class Heartbeats:
    """Finds hung actors by counters in shared memory, which actors count up with each step.

    Only time in which this process runs counts: otherwise all actors would seem silent after a stop (Ctrl-Z, sleep).

    An actor counts as hung after `actor_timeout` seconds of silence; until it has loaded its policy, after
    `start_timeout`. interval: seconds between two calls of `find_silent`.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._timeout, self._start_timeout = settings.actor_timeout, settings.start_timeout
        self.interval = min(1.0, self._timeout / 8, self._start_timeout / 8)
        self._words: Array | None = None
        self._last: dict[int, int] = {}
        self._silent: dict[int, float] = {}
        self._loaded: set[int] = set()

    def attach(self, words: Array | None) -> None:
        """Set the counters, `[num_actors]`; None takes them away."""
        self._words = words

    def start(self, actor: int) -> None:
        """Begin anew with an actor whose process has just been started."""
        self._last[actor] = self._beat(actor)
        self._loaded.discard(actor)
        self._silent[actor] = 0.0

    def pause(self, actor: int) -> None:
        """Forget the silence of an actor that has nothing to do."""
        self._silent[actor] = 0.0

    def find_silent(self, seconds: float, starting: Iterable[int], busy: Iterable[int]) -> list[Silence]:
        """Return the actors that have been silent for too long.

        seconds: since the last call. starting: actors that aren't ready yet. busy: those with columns to fill.
        """
        seconds = min(seconds, 2 * self.interval)
        judged = [self._judge(actor, seconds, self._start_timeout, STARTING) for actor in starting]
        for actor in busy:
            beat = self._beat(actor)
            if beat != self._last[actor]:
                self._last[actor], self._silent[actor] = beat, 0.0
                self._loaded.add(actor)
            limit = self._timeout if actor in self._loaded else self._start_timeout
            judged.append(self._judge(actor, seconds, limit, STEPPING if beat % 2 else ACTING))
        return [silence for silence in judged if silence is not None]

    def _beat(self, actor: int) -> int:
        return 0 if self._words is None else int(self._words[actor])

    def _judge(self, actor: int, seconds: float, limit: float, where: str) -> Silence | None:
        silent = self._silent[actor] = self._silent[actor] + seconds
        return None if silent < limit else Silence(actor, silent, where)
