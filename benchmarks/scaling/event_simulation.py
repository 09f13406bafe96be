"""Actors and a learner simulated event by event: what the roof's formula and other machines are checked against.

Cores are a fluid: at any moment each process computes on a part of them. No process is started and no clock is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from actor_learner.benchmark.roofline import Cost, Parts

_CHUNKS = 8
"""An unroll computes and waits in turns, so many times."""
_NOTHING = 1e-12


@dataclass
class _Process:
    """What a process has left to do of its task: turns of CPU seconds and seconds of waiting, the next one last."""

    threads: float = 1.0
    turns: list[tuple[float, float]] = field(default_factory=list)
    computing: float = 0.0
    waiting: float = 0.0
    batch: int = -1
    """The one that it is at; for an actor also how many unrolls it has begun, less one."""

    def begin(self, cost: Cost, factor: float = 1.0) -> None:
        """Takes up a task."""
        self.threads = max(1.0, cost.cpu / cost.wall) if cost.wall > 0 else 1.0
        wait = max(0.0, cost.wall - cost.cpu) * factor / _CHUNKS
        self.turns = [(cost.cpu * factor / _CHUNKS, wait)] * _CHUNKS
        self.batch += 1
        self._take_turn()

    def advance(self, seconds: float, cores: float) -> bool:
        """So many seconds go by, with so many cores; returns whether the task is done with them."""
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
    parts: Parts, batches: int = 60, *, learner_first: bool = True, draw: Callable[[], float] = lambda: 1.0
) -> float:
    """Env steps per second of a run with these parts, by its second half.

    As in `hand_outs.py`: with `max_policy_lag` 0 and 1 an actor fills its columns of batch j once update j - lag is
    made; beyond that, actors go on wherever one of `lag + 1` blocks has columns left.

    Args:
        parts: with at least one actor.
        batches: that are learned.
        learner_first: the learner computes whenever it can; else all who want to compute get equal parts of the cores.
        draw: gives the factor by which an unroll takes longer, anew for each.
    """
    learner, actors = _Process(), [_Process() for _ in range(parts.num_actors)]
    filled = updates = 0
    now, ended = 0.0, [0.0]
    while updates < batches:
        for actor in actors:
            if not actor.busy and _may_begin(parts, actor, actors, updates):
                actor.begin(parts.actor, draw())
        if not learner.busy and learner.batch < updates and filled >= (updates + 1) * len(actors):
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


def _may_begin(parts: Parts, actor: _Process, actors: list[_Process], updates: int) -> bool:
    if parts.max_policy_lag <= 1:
        return actor.batch + 1 <= updates + parts.max_policy_lag
    return sum(each.batch + 1 for each in actors) < (updates + parts.max_policy_lag + 1) * len(actors)


def _divide(cores: float, running: list[_Process], first: _Process | None) -> list[float]:
    """How much of the cores each process gets: what it can use, as far as they go, the rest in equal parts."""
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
    """Of the turn that it is at."""
    if process.computing > 0:
        return process.computing / cores if cores > 0 else float("inf")
    return process.waiting
