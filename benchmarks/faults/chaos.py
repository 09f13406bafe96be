"""Faults of actors at random moments: their kind, moment, actor, and the replacement that each must cause."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.stamped import EXIT_CODE, MISDEEDS, Board

_SILENT = r"gave no sign of life for [\d.]+ s, in env\.step"
_STOPPED = r"gave no sign of life for [\d.]+ s, (in|outside of) env\.step"
_KILLED = r"was killed \(SIGKILL\), perhaps because memory ran out"

CAUSES: dict[str, str | None] = {
    "SIGKILL": _KILLED,
    "SIGKILL twice": _KILLED,
    "SIGSEGV": "was ended by SIGSEGV",
    "SIGSTOP": _STOPPED,
    "raise": r"failed: ZeroDivisionError: asked to \(.*stamped\.py, line \d+, in _misbehave\)",
    "exit": f"ended with exit code {EXIT_CODE}",
    "hang": _SILENT,
    "spin": _SILENT,
    "disconnect": _KILLED,  # by the pool, which lost the connection
    "nan": r"failed: .*(?i:nan|finite)",
    "slow": None,
    "flood": None,
}
"""The kinds of faults, and the cause that the pool must report for the replacement; None: no replacement."""

_SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGKILL twice": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV}
_SIGNALS["SIGSTOP"] = signal.SIGSTOP
_BAG = [*CAUSES, "SIGKILL", "SIGKILL"]
_LONGEST_PAUSE = 0.4
"""Seconds between the two kills: the second process is somewhere in its start."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Planned:
    """A fault to cause, `at` seconds after the beginning, in this actor, or in the next that has recovered."""

    at: float
    kind: str
    actor: int
    pause: float


def schedule(seed: int, every: float, num_actors: int) -> Iterator[Planned]:
    """Yield faults without end, `every` seconds apart on average: each kind once, SIGKILL thrice, in random order."""
    chance, at = random.Random(seed), 0.0
    while True:
        for kind in chance.sample(_BAG, len(_BAG)):
            at += every * chance.uniform(0.5, 1.5)
            yield Planned(at, kind, chance.randrange(num_actors), chance.uniform(0, _LONGEST_PAUSE))


@dataclass
class Caused:
    """A fault that was caused, and its recovery."""

    kind: str
    actor: int
    at: float
    """Seconds after the beginning."""
    caused_at: int
    """Nanoseconds of the monotonic clock; of the last kill, where there were two."""
    lives: int
    taken: int
    steps: int
    """Steps of the actor's first environment at that moment."""
    processes: list[int] = field(default_factory=list)
    """The processes that end by it."""
    recovery: float | None = None
    """Seconds from the fault to the first row of the replacement; None: no replacement, or not yet."""
    over_at: int | None = None
    """The moment of that row, or, without a replacement, when the actor was seen to continue; None: not yet."""

    @property
    def settled(self) -> bool:
        """True when the actor has recovered."""
        return self.over_at is not None


class Chaos(threading.Thread):
    """A thread that causes the faults of a schedule for so many seconds, and waits for the last recovery.

    A fault comes only to an actor that has recovered from the one before, by a whole unroll: three in a row without
    one would rightly end the pool.

    pids: returns the process of each actor, `ActorPool.pids`. log: gets a line for each fault.
    """

    def __init__(
        self,
        board: Board,
        pids: Callable[[], dict[int, int]],
        planned: Iterator[Planned],
        seconds: float,
        unroll_length: int,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(name="chaos", daemon=True)
        self.caused: list[Caused] = []
        self.over = threading.Event()
        """Set when no fault comes any more, and all actors have recovered."""
        self.error: BaseException | None = None
        self._board, self._pids, self._planned, self._seconds = board, pids, planned, seconds
        self._unroll_length, self._log = unroll_length, log
        self._newest: dict[int, Caused] = {}
        self._end = threading.Event()
        self.started = time.monotonic()

    def run(self) -> None:
        self.started = time.monotonic()
        try:
            self._cause_all()
            while not self._end.is_set() and not all([*map(self._is_settled, range(len(self._board.words)))]):
                self._end.wait(_POLL_SECONDS)
        except BaseException as error:
            self.error = error
        self.over.set()

    def stop(self) -> None:
        """End the thread at once."""
        self._end.set()
        self.join()

    def unsettled(self) -> list[Caused]:
        """Return the faults without a recovery."""
        return [caused for caused in self._newest.values() if not caused.settled]

    def _cause_all(self) -> None:
        for planned in self._planned:
            if planned.at >= self._seconds or self._end.wait(max(0.0, self.started + planned.at - time.monotonic())):
                return
            while (actor := self._next_settled(planned.actor)) is None:
                if self._end.wait(_POLL_SECONDS):
                    return
            self._cause(planned, actor)

    def _next_settled(self, first: int) -> int | None:
        count = len(self._board.words)
        actors = [(first + place) % count for place in range(count)]
        return next((actor for actor in actors if self._is_settled(actor)), None)

    def _is_settled(self, actor: int) -> bool:
        """Return whether the actor, or its replacement, has made an unroll since its last fault."""
        words, caused = self._board.words[actor], self._newest.get(actor)
        process, needed = int(words[Board.PROCESS_ID]), self._unroll_length
        if self._pids().get(actor) != process:
            return False
        if caused is not None and CAUSES[caused.kind] is None:
            if words[Board.TAKEN] == caused.taken:
                return False
            needed += caused.steps
        elif caused is not None and (process in caused.processes or words[Board.LIVES] == caused.lives):
            return False
        if words[Board.STEPS_DONE] <= needed:
            return False
        if caused is not None and not caused.settled:
            self._settle(caused, words)
        return True

    def _settle(self, caused: Caused, words: Any) -> None:
        caused.over_at, after = time.monotonic_ns(), ""
        if CAUSES[caused.kind] is not None:
            caused.over_at = int(words[Board.FIRST_ROW_AT])
            if caused.kind not in _SIGNALS:
                caused.caused_at = int(words[Board.TAKEN_AT])
            caused.recovery = (caused.over_at - caused.caused_at) / 1e9
            after = f" {caused.recovery:.3f} s"
        self._log(f"{self._now():8.2f} s  actor {caused.actor}: continues{after} after {caused.kind}")

    def _now(self) -> float:
        return time.monotonic() - self.started

    def _cause(self, planned: Planned, actor: int) -> None:
        words, process = self._board.words[actor], self._pids()[actor]
        numbers = (int(words[word]) for word in (Board.LIVES, Board.TAKEN, Board.STEPS_DONE))
        caused = Caused(planned.kind, actor, self._now(), time.monotonic_ns(), *numbers, [process])
        self._log(f"{caused.at:8.2f} s  actor {actor}: {planned.kind}")
        if planned.kind in _SIGNALS:
            os.kill(process, _SIGNALS[planned.kind])
        else:
            words[Board.COMMAND] = 1 + MISDEEDS.index(planned.kind)
        if planned.kind == "SIGKILL twice":
            self._kill_replacement(caused, planned.pause)
        self._newest[actor] = caused
        self.caused.append(caused)

    def _kill_replacement(self, caused: Caused, pause: float) -> None:
        """Kill the replacement during its start."""
        while (process := self._pids().get(caused.actor)) in (None, *caused.processes):
            if self._end.wait(_POLL_SECONDS):
                return
        time.sleep(pause)
        caused.caused_at = time.monotonic_ns()
        assert process is not None
        os.kill(process, signal.SIGKILL)
        caused.processes.append(process)


def alone(fault: Caused, caused: Sequence[Caused]) -> bool:
    """Return whether no other actor was out during this recovery: an actor without columns waits for the others."""
    others = [other for other in caused if other is not fault]
    end = fault.over_at or 0
    return not any(other.caused_at < end and (other.over_at or end) > fault.caused_at for other in others)


def unexplained(caused: Sequence[Caused], restarts: Sequence[Any]) -> list[str]:
    """Return the faults that the pool didn't report, and the replacements that no fault explains.

    restarts: all reports of the pool, in order. Of two deaths in a row, it may report only the last.
    """
    problems = []
    for actor in sorted({item.actor for item in (*caused, *restarts)}):
        reports = [restart for restart in restarts if restart.actor == actor]
        incarnation = 0
        for fault in (fault for fault in caused if fault.actor == actor):
            if (cause := CAUSES[fault.kind]) is None:
                continue
            incarnation += len(fault.processes)
            own = [restart for restart in reports if restart.incarnation <= incarnation]
            reports = reports[len(own) :]
            fits = all(re.match(cause, restart.cause) for restart in own)
            if not own or own[-1].incarnation != incarnation or not fits:
                causes = [(restart.incarnation, restart.cause) for restart in own]
                problems.append(f"actor {actor}, {fault.kind} after {fault.at:.2f} s: reported as {causes}")
        problems += [f"actor {actor}: no fault explains {restart.cause!r}" for restart in reports]
    return problems
