"""The search for actors that hang, the words for an actor's end, and the decision about a process in its place."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from actor_learner.actors.group import ActorError
from actor_learner.actors.transport.messages import Failure
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.errors import EnvError
from actor_learner.system.types import Array

DEATHS_IN_A_ROW = 3  # the number of deaths of one actor, without a finished unroll between them, that make a crash loop
REQUESTED = "was asked to end"  # the reason of a replacement that the caller requested
_TAIL_LINES = 20
STARTING, STEPPING, ACTING = "making or resetting its environments", "in env.step", "outside of env.step"


class ActorEnd(NamedTuple):
    """The end of an actor's process."""

    actor: int
    failure: Failure | None  # its exception, if it could send one
    exit_code: int | None  # minus the signal, if it was one; None if not known
    tail: str  # the end of its output
    reason: str | None  # the pool's reason to end it; None if it ended by itself

    @property
    def cause(self) -> str:
        """The end in one line that goes on after "Actor 3"."""
        if self.reason is not None:
            return self.reason
        if self.failure is not None:
            text = self.failure.text if self.failure.bad_environment else self.failure.summary
            return f"{'could not start' if self.failure.starting else 'failed'}: {text}"
        if self.exit_code is None:
            return "is gone"
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        if -self.exit_code == signal.SIGKILL:
            return "was killed (SIGKILL), perhaps because memory ran out"
        return f"was ended by {signal.Signals(-self.exit_code).name}"

    @property
    def details(self) -> str:
        """Its traceback, or the last lines that it printed."""
        if self.failure is not None:
            return self.failure.traceback
        return "\n".join(self.tail.strip().splitlines()[-_TAIL_LINES:])

    def error(self) -> ActorError | EnvError:
        """Return the error that reports the end of an actor where the pool ends with it."""
        failure, message = self.failure, f"Actor {self.actor} {self.cause}"
        if failure is None:
            message += f".\n\nWhat it printed last:\n{self.details}" if self.details else "."
            return ActorError(message, self.actor, exit_code=self.exit_code)
        if failure.refused or (failure.starting and failure.bad_environment):
            return EnvError(failure.text)
        if not failure.bad_environment:  # else the message of our own check is enough
            message += f"\n\nIn the actor:\n{failure.traceback}"
        return ActorError(message, self.actor, traceback=failure.traceback)


class RestartPolicy:
    """Decides about each end, and counts the replacements."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._in_a_row: Counter[int] = Counter()
        self._incarnations: Counter[int] = Counter()
        self._faults = 0

    @property
    def count(self) -> int:
        """Number of replacements, those that the caller requested included."""
        return self._incarnations.total()

    def incarnation(self, actor: int) -> int:
        """Return the number of processes that had this actor's number before."""
        return self._incarnations[actor]

    def finish_unroll(self, actor: int) -> None:
        """End the actor's series of deaths."""
        del self._in_a_row[actor]

    def judge(self, end: ActorEnd) -> Exception | None:
        """Return None, and count the replacement, if another process takes the place; else the error that ends all."""
        actor, failure, max_restarts = end.actor, end.failure, self._settings.max_restarts
        if end.reason != REQUESTED:
            error = end.error()
            # The first time, an exception while starting means that the environment can't be made at all.
            never_began = failure is not None and failure.starting and not self._incarnations[actor]
            failed_for_good = failure is not None and (failure.refused or self._settings.on_env_error == "raise")
            if never_began or not max_restarts or failed_for_good:
                return error
            self._in_a_row[actor] += 1
            self._faults += 1
            text = ""
            if self._in_a_row[actor] >= DEATHS_IN_A_ROW:
                text = f"Actor {actor} ended {DEATHS_IN_A_ROW} times without a finished unroll between."
            elif self._faults > max_restarts:
                text = f"Only max_restarts={max_restarts} actors are replaced."
            if text:
                traceback = failure and failure.traceback
                return ActorError(f"{text} {error}", actor, traceback=traceback, exit_code=end.exit_code)
        self._incarnations[actor] += 1
        return None


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
        self.words: Array | None = None  # the counters, `[num_actors]`
        self._last: dict[int, int] = {}
        self._silent: dict[int, float] = {}
        self._loaded: set[int] = set()

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
        judged = [(actor, self._start_timeout, STARTING) for actor in starting]
        for actor in busy:
            beat = self._beat(actor)
            if beat != self._last[actor]:
                self._last[actor], self._silent[actor] = beat, 0.0
                self._loaded.add(actor)
            limit = self._timeout if actor in self._loaded else self._start_timeout
            judged.append((actor, limit, STEPPING if beat % 2 else ACTING))
        for actor, _, _ in judged:
            self._silent[actor] += seconds
        return [
            Silence(actor, silent, where) for actor, limit, where in judged if (silent := self._silent[actor]) >= limit
        ]

    def _beat(self, actor: int) -> int:
        return 0 if self.words is None else int(self.words[actor])
