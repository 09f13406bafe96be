"""Measures the parts of the actors' work alone, in as many processes as there are actors, side by side."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator
from typing import Any

from actor_learner.actors.actor import Startup
from actor_learner.actors.transport.batches import BlockLayout
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.benchmark.part_worker import Failed, Reading, Work
from actor_learner.benchmark.roofline import Cost
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.system.child import ONE_THREAD, Child, ChildEndedError


class PartProcesses(contextlib.AbstractContextManager["PartProcesses"]):
    """Processes that do parts of an actor's work alone.

    factory, startups, exported, layout: as in an `ActorPool` of as many actors. patience: seconds beyond the requested
    ones after which a process counts as hung.

    Raises EnvError if an environment fails, TimeoutError if one hangs, RuntimeError if a process dies.
    """

    def __init__(
        self,
        factory: EnvFactory,
        startups: list[Startup],
        exported: ExportedPolicy,
        layout: BlockLayout,
        patience: float,
    ) -> None:
        self._name, self._patience = factory.name, patience
        self._arena = Arena.create("actor_learner:benchmark")
        self._children: list[Child] = []
        try:
            self._arena.reserve(layout.size)
            for startup in startups:
                self._start(Work(startup, factory.dumps(), exported, layout))
            for child in self._children:
                self._receive(child, patience)
        except BaseException:
            self.close()
            raise

    def measure(self, part: str, seconds: float) -> list[Reading]:
        """Let all processes do a part for this time, side by side."""
        with self._naming_deaths():
            for child in self._children:
                child.send((part, seconds))
        return [self._receive(child, seconds + self._patience) for child in self._children]

    def close(self) -> None:
        """End the processes and their children; idempotent."""
        while self._children:
            self._children.pop().close()
        self._arena.close()

    def _start(self, work: Work) -> None:
        arena = self._arena.descriptor
        child = Child(  # its output is seen where the whole system runs
            "actor_learner.benchmark.part_worker:main",
            [arena],
            name=f"part-{len(self._children)}",
            descriptors=[arena],
            environment=os.environ | ONE_THREAD,
        )
        self._children.append(child)
        with self._naming_deaths():
            child.send(work)

    def _receive(self, child: Child, seconds: float) -> Any:
        try:
            with self._naming_deaths():
                received = child.receive(seconds)
        except TimeoutError:
            raise TimeoutError(f"env `{self._name}`, measured alone, didn't answer for {seconds:g} s") from None
        if isinstance(received, Failed):
            raise EnvError(f"env `{self._name}` failed while it was measured alone: {received.summary}")
        return received

    @contextlib.contextmanager
    def _naming_deaths(self) -> Iterator[None]:
        try:
            yield
        except ChildEndedError as error:
            raise RuntimeError(f"The process that measured env `{self._name}` alone ended: {error}") from error

    def __exit__(self, *error: object) -> None:
        self.close()


def unroll_cost(readings: list[Reading], unroll_length: int) -> Cost:
    """Return the mean cost of a part of one unroll."""
    wall = statistics.fmean(reading.cost.wall / reading.steps for reading in readings)
    cpu = statistics.fmean(reading.cost.cpu / reading.steps for reading in readings)
    return Cost(wall, cpu) * unroll_length
