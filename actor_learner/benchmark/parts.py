"""Measures the parts of the actors' work alone, in as many processes as there are actors, side by side."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
from multiprocessing.connection import Connection
from typing import Any

from actor_learner.actors.actor import Startup
from actor_learner.actors.transport.batches import BlockLayout
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.benchmark.part_worker import Failed, Reading, Work
from actor_learner.benchmark.roofline import Cost
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.system.child import ONE_THREAD, start_python

_END_SECONDS = 2.0  # the longest wait for the end of a process that has closed its connection


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
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Any]] = []
        try:
            self._arena.reserve(layout.size)
            for startup in startups:
                self._start(Work(startup, factory.dumps(), exported, layout))
            for number in range(len(startups)):
                self._receive(number, patience)
        except BaseException:
            self.close()
            raise

    def measure(self, part: str, seconds: float) -> list[Reading]:
        """Let all processes do a part for this time, side by side."""
        for number in range(len(self._processes)):
            self._send(number, (part, seconds))
        return [self._receive(number, seconds + self._patience) for number in range(len(self._processes))]

    def close(self) -> None:
        """End the processes and their children; idempotent."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._connections, self._processes = [], []
        self._arena.close()

    def _start(self, work: Work) -> None:
        near, far = socket.socketpair()
        connection: Connection[Any, Any] = Connection(near.detach())
        self._connections.append(connection)
        with far:
            descriptors = (far.fileno(), self._arena.descriptor)
            process = start_python(  # their output is seen where the whole system runs
                "actor_learner.benchmark.part_worker:main",
                descriptors,
                name=f"part-{len(self._processes)}",
                descriptors=descriptors,
                environment=os.environ | ONE_THREAD,
            )
        self._processes.append(process)
        self._send(len(self._processes) - 1, work)

    def _send(self, number: int, message: Any) -> None:
        try:
            self._connections[number].send(message)
        except OSError as error:
            raise self._death(number) from error

    def _receive(self, number: int, seconds: float) -> Any:
        connection = self._connections[number]
        if not connection.poll(seconds):
            raise TimeoutError(f"env `{self._name}`, measured alone, didn't answer for {seconds:g} s")
        try:
            received = connection.recv()
        except (EOFError, OSError) as error:
            raise self._death(number) from error
        if isinstance(received, Failed):
            raise EnvError(f"env `{self._name}` failed while it was measured alone: {received.summary}")
        return received

    def _death(self, number: int) -> RuntimeError:
        try:
            code = self._processes[number].wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            how = "closed its connection, but goes on"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return RuntimeError(f"The process that measured env `{self._name}` alone {how}")

    def __exit__(self, *error: object) -> None:
        self.close()


def unroll_cost(readings: list[Reading], unroll_length: int) -> Cost:
    """Return the mean cost of a part of one unroll."""
    wall = statistics.fmean(reading.cost.wall / reading.steps for reading in readings)
    cpu = statistics.fmean(reading.cost.cpu / reading.steps for reading in readings)
    return Cost(wall, cpu) * unroll_length
