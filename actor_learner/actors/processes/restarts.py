"""The decision about a new process in the place of an actor that died or hangs, and the words for its end."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Literal, NamedTuple

from actor_learner.actors.processes.supervisor import ActorEnd
from actor_learner.environments.errors import EnvError

OnEnvError = Literal["restart", "raise"]

DEATHS_IN_A_ROW = 3  # the number of deaths of one actor, without a finished unroll between them, that make a crash loop
REQUESTED = "was asked to end"  # the reason of a replacement that the caller requested
_TAIL_LINES = 20


TAKEN_OVER = 1 << 20
"""Added to the incarnation of an actor that takes over from another machine's: more than one is ever replaced."""


class ActorError(RuntimeError):
    """The error of an actor that failed or died.

    traceback: of its exception, or None. exit_code: of its process, minus the signal if it was one, or None.
    """

    def __init__(self, message: str, actor: int, *, traceback: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.actor, self.traceback, self.exit_code = actor, traceback, exit_code


class Restart(NamedTuple):
    """The replacement of an actor's process."""

    actor: int
    incarnation: int  # the number of processes that had this actor's number before
    cause: str  # the end of the process before, in one line
    details: str  # its traceback, or the last lines that it printed; "" without either
    seconds: float  # the time from the end of the process before until the new one continued with its columns

    @classmethod
    def after(cls, end: ActorEnd, incarnation: int, seconds: float) -> Restart:
        """Return the replacement of a process that has ended."""
        return cls(end.actor, incarnation, cause_of(end), details_of(end), seconds)

    def __str__(self) -> str:
        return (
            f"Actor {self.actor} {self.cause}; another process took its place after {self.seconds:.2f} s "
            f"(incarnation {self.incarnation % TAKEN_OVER}, with random numbers of its own)"
        )


class RestartPolicy:
    """Decides about each end, and counts the replacements. The arguments are those of `ActorPool`."""

    def __init__(self, on_env_error: OnEnvError, max_restarts: int) -> None:
        self._on_env_error, self._max_restarts = on_env_error, max_restarts
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
        actor = end.actor
        if end.reason != REQUESTED:
            error = error_of(end)
            # The first time, an exception while starting means that the environment can't be made at all.
            never_began = end.failure is not None and end.failure.starting and not self._incarnations[actor]
            failed_for_good = end.failure is not None and (end.failure.refused or self._on_env_error == "raise")
            if never_began or not self._max_restarts or failed_for_good:
                return error
            self._in_a_row[actor] += 1
            self._faults += 1
            if self._in_a_row[actor] >= DEATHS_IN_A_ROW:
                text = f"Actor {actor} ended {DEATHS_IN_A_ROW} times without a finished unroll between."
                return _ended(text, error, end)
            if self._faults > self._max_restarts:
                return _ended(f"Only max_restarts={self._max_restarts} actors are replaced.", error, end)
        self._incarnations[actor] += 1
        return None


def cause_of(end: ActorEnd) -> str:
    """Return the end of an actor in one line that goes on after "Actor 3"."""
    if end.reason is not None:
        return end.reason
    if end.failure is not None:
        text = end.failure.text if end.failure.bad_environment else end.failure.summary
        return f"{'could not start' if end.failure.starting else 'failed'}: {text}"
    if end.exit_code is None:
        return "is gone"
    if end.exit_code >= 0:
        return f"ended with exit code {end.exit_code}"
    if -end.exit_code == signal.SIGKILL:
        return "was killed (SIGKILL), perhaps because memory ran out"
    return f"was ended by {signal.Signals(-end.exit_code).name}"


def details_of(end: ActorEnd) -> str:
    """Return its traceback, or the last lines that it printed."""
    if end.failure is not None:
        return end.failure.traceback
    return "\n".join(end.tail.strip().splitlines()[-_TAIL_LINES:])


def error_of(end: ActorEnd) -> ActorError | EnvError:
    """Return the error that reports the end of an actor where the pool ends with it."""
    failure, message = end.failure, f"Actor {end.actor} {cause_of(end)}"
    if failure is None:
        printed = details_of(end)
        message += f".\n\nWhat it printed last:\n{printed}" if printed else "."
        return ActorError(message, end.actor, exit_code=end.exit_code)
    if failure.refused or (failure.starting and failure.bad_environment):
        return EnvError(failure.text)
    if not failure.bad_environment:  # else the message of our own check is enough
        message += f"\n\nIn the actor:\n{failure.traceback}"
    return ActorError(message, end.actor, traceback=failure.traceback)


def _ended(reason: str, error: Exception, end: ActorEnd) -> ActorError:
    traceback = end.failure.traceback if end.failure is not None else None
    return ActorError(f"{reason} {error}", end.actor, traceback=traceback, exit_code=end.exit_code)
