"""Actors and a learner simulated event by event: tests compare the roof's formula with it.

Cores are divisible: at any moment each process computes on a part of them. It starts no process and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from actor_learner.benchmark.roofline import Cost, Parts

_CHUNKS = 8
"""The turns of computing and waiting in an unroll."""
_NOTHING = 1e-12


@dataclass
class _Process:
    """The rest of a process's task: turns of CPU seconds and of waiting seconds, the next turn last."""

    threads: float = 1.0
    turns: list[tuple[float, float]] = field(default_factory=list)
    computing: float = 0.0
    waiting: float = 0.0
    batch: int = -1
    """The current batch; for an actor also the number of its unrolls, less one."""

    def begin(self, cost: Cost, factor: float = 1.0) -> None:
        """Begin a task."""
        self.threads = max(1.0, cost.cpu / cost.wall) if cost.wall > 0 else 1.0
        wait = max(0.0, cost.wall - cost.cpu) * factor / _CHUNKS
        self.turns = [(cost.cpu * factor / _CHUNKS, wait)] * _CHUNKS
        self.batch += 1
        self._take_turn()

    def advance(self, seconds: float, cores: float) -> bool:
        """Advance by some seconds on some cores; return whether that ends the task."""
        if self.computing > 0:
            self.computing -= seconds * cores
        else:
            self.waiting -= seconds
        if max(self.computing, self.waiting) > _NOTHING:
            return False
        self._take_turn()
        return not self.busy

    def _take_turn(self) -> None:
        self.computing = self.computing if self.computing > _NOTHING else 0.0
        self.waiting = self.waiting if self.waiting > _NOTHING else 0.0
        while self.turns and not self.busy:
            self.computing, self.waiting = self.turns.pop()

    @property
    def busy(self) -> bool:
        return self.computing > 0 or self.waiting > 0


def simulate(
    parts: Parts,
    batches: int = 60,
    *,
    asynchronous: bool = False,
    learner_first: bool = True,
    draw: Callable[[], float] = lambda: 1.0,
) -> float:
    """Return env steps per second of a run with these parts, by its second half.

    As in `actors/scheduling.py`: an actor fills its columns of batch j after update j - lag; `asynchronous` actors
    continue wherever one of `lag + 1` blocks has columns left.

    Args:
        parts: with at least one actor.
        batches: the number of learned batches.
        asynchronous: actors run freely.
        learner_first: the learner computes whenever it can; else all that compute get equal parts of the cores.
        draw: returns the factor by which an unroll takes longer, anew for each.
    """
    learner, actors = _Process(), [_Process() for _ in range(parts.num_actors)]
    filled = updates = 0
    now, ended = 0.0, [0.0]
    while updates < batches:
        for actor in actors:
            if not actor.busy and _may_begin(parts, actor, actors, updates, asynchronous):
                actor.begin(parts.actor, draw())
        complete = filled // len(actors) if asynchronous else min(each.batch + (not each.busy) for each in actors)
        if not learner.busy and learner.batch < updates and complete > updates:
            learner.begin(parts.update)
        running = [process for process in (learner, *actors) if process.busy]
        cores = _divide(parts.cores, running, learner if learner_first else None)
        seconds = min(map(_seconds_left, running, cores))
        now += seconds
        done = [process for process, part in zip(running, cores, strict=True) if process.advance(seconds, part)]
        filled += sum(process is not learner for process in done)
        if any(process is learner for process in done):
            updates += 1
            ended.append(now)
    return parts.steps * (batches - batches // 2) / (ended[batches] - ended[batches // 2])


def _may_begin(parts: Parts, actor: _Process, actors: list[_Process], updates: int, asynchronous: bool) -> bool:
    if not asynchronous:
        return actor.batch + 1 <= updates + parts.max_policy_lag
    return sum(each.batch + 1 for each in actors) < (updates + parts.max_policy_lag + 1) * len(actors)


def _divide(cores: float, running: list[_Process], first: _Process | None) -> list[float]:
    """Return each process's part of the cores: what it can use, as far as they go, the rest in equal parts."""
    given = dict.fromkeys(map(id, running), 0.0)
    wanting = sorted((each for each in running if each.computing > 0), key=lambda each: each.threads)
    if first in wanting:
        wanting.remove(first)
        given[id(first)] = min(first.threads, cores)
        cores -= given[id(first)]
    for place, process in enumerate(wanting):
        given[id(process)] = min(process.threads, cores / (len(wanting) - place))
        cores -= given[id(process)]
    return [given[id(process)] for process in running]


def _seconds_left(process: _Process, cores: float) -> float:
    """Return the rest of its current turn."""
    if process.computing > 0:
        return process.computing / cores if cores > 0 else float("inf")
    return process.waiting
