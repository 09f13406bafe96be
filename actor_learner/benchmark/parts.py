"""Measures the parts of the actors' work alone, in as many processes as there are actors, side by side.

The processes don't load TensorFlow.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from actor_learner.actors.actor import Startup, make_environments
from actor_learner.actors.transport.batches import ActorColumns, Block, BlockLayout
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.benchmark.roofline import Cost
from actor_learner.environments.errors import EnvError, describe_error
from actor_learner.environments.factory import EnvFactory
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.trajectory import map_leaves
from actor_learner.system.child import ONE_THREAD, Child, ChildEndedError
from actor_learner.system.types import Leaves

PARTS = ("env", "acting", "copying")

_RECORDED_STEPS = 64
_TASKS = "/proc/self/task"
_CHUNK_SECONDS = 0.005  # between two readings of the clock, if no single step takes longer


class Stopwatch:
    """Measures the cost of the work since its construction."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """Return the cost so far, without the time in which the busiest thread waited for a core (on Linux)."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        found = [(0, 0)]
        for thread, (used, waited) in _threads().items():
            used_before, waited_before = self._threads.get(thread, (0, 0))
            found.append((used - used_before, waited - waited_before))
        return Cost(max(wall - max(found)[1] / 1e9, cpu / max(1, len(found) - 1)), cpu)


def _threads() -> dict[str, tuple[int, int]]:
    """Return each thread's nanoseconds on a core, and ready without a core; nothing where Linux doesn't report them."""
    found = {}
    for thread in os.listdir(_TASKS) if os.path.isdir(_TASKS) else ():
        try:
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                used, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):
            continue
        found[thread] = used, waited
    return found


class Reading(NamedTuple):
    """The cost of a number of vector steps."""

    steps: int
    cost: Cost


class Work(NamedTuple):
    """The first message to the process. factory: of `EnvFactory.dumps`."""

    startup: Startup
    factory: bytes
    exported: ExportedPolicy
    layout: BlockLayout


class Failed(NamedTuple):
    """An exception, in one line."""

    summary: str


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
        variables: Mapping[str, str] = ONE_THREAD,
    ) -> None:
        self._name, self._patience, self._variables = factory.name, patience, variables
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
            f"{__name__}:main",
            [arena],
            name=f"part-{len(self._children)}",
            descriptors=[arena],
            environment=os.environ | self._variables,
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


class Rollouts(contextlib.AbstractContextManager["Rollouts"]):
    """The rollouts of the learner's device alone. Environments and acting are one program, which counts as "env".

    collect: makes one, and waits for it.
    """

    def __init__(self, collect: Callable[[], object], unroll_length: int) -> None:
        self._collect, self._unroll_length = collect, unroll_length

    def measure(self, part: str, seconds: float) -> list[Reading]:
        return [_repeat(self._collect, seconds, self._unroll_length) if part == "env" else Reading(1, Cost(0.0, 0.0))]

    def __exit__(self, *error: object) -> None:
        pass


def unroll_cost(readings: list[Reading], unroll_length: int) -> Cost:
    """Return the mean cost of a part of one unroll."""
    wall = statistics.fmean(reading.cost.wall / reading.steps for reading in readings)
    cpu = statistics.fmean(reading.cost.cpu / reading.steps for reading in readings)
    return Cost(wall, cpu) * unroll_length


# The rest runs in those processes.


class _Row(NamedTuple):
    """A recorded step: copies of the values that an actor writes, and the action for the environments (`answer`)."""

    observation: Leaves
    mask: Any
    action: Leaves
    log_prob: Any
    answer: Any
    results: tuple[Any, ...]  # reward, terminated, truncated, valid


class Part:
    """The environments, policy and columns of an actor, each of which can be measured alone.

    The environments get recorded actions. With action masks the policy chooses new ones, whose time isn't counted.
    """

    def __init__(self, work: Work, arena: Arena) -> None:
        startup = work.startup
        (self._environments,) = make_environments(pickle.loads(work.factory), startup).values()  # noqa: S301
        self._observation = self._environments.observation
        self._policy = startup.make_policy(work.exported)
        first, last = startup.first_env, startup.first_env + startup.num_envs
        self._columns: ActorColumns = Block.in_arena(work.layout, arena, 0).columns(first, last)
        self._rows = [self._take_row() for _ in range(_RECORDED_STEPS)]
        self._next = itertools.cycle(self._rows).__next__

    def measure(self, part: str, seconds: float) -> Reading:
        """Repeat one of `PARTS` for this time."""
        if part == "env" and self._environments.action_mask is not None:
            return self._measure_masked(seconds)
        step, steps_at_once = {
            "env": (self._step_environments, 1),
            "acting": (self._act, 1),
            "copying": (self._copy, len(self._columns.reward)),
        }[part]
        return _repeat(step, seconds, steps_at_once)

    def close(self) -> None:
        self._environments.close()

    def _take_row(self) -> _Row:
        mask = self._environments.action_mask
        mask = None if mask is None else mask.copy()
        seen = tuple(leaf.copy() for leaf in self._observation)
        action, log_prob = self._policy.step_leaves(self._observation, mask)
        action, log_prob = tuple(leaf.copy() for leaf in action), log_prob.copy()
        answer = map_leaves(np.copy, self._policy.env_action(action))
        self._observation, *results, _, _, _ = self._environments.step(answer)
        return _Row(seen, mask, action, log_prob, answer, tuple(map(np.copy, results)))

    def _step_environments(self) -> None:
        self._observation = self._environments.step(self._next().answer).observation

    def _act(self) -> None:
        row = self._next()
        action, _ = self._policy.step_leaves(row.observation, row.mask)
        self._policy.env_action(action)

    def _copy(self) -> None:
        following = self._next
        for seen, chosen, allowed, log_prob, *results in self._columns.rows():
            row = following()
            for into, leaf in zip(seen, row.observation, strict=True):
                into[...] = leaf
            if allowed is not None:
                allowed[...] = row.mask
            for into, leaf in zip(chosen, row.action, strict=True):
                into[...] = leaf
            log_prob[...] = row.log_prob
            for into, leaf in zip(results, row.results, strict=True):
                into[...] = leaf

    def _measure_masked(self, seconds: float) -> Reading:
        clock, cpu_clock, end = time.perf_counter, time.process_time, time.perf_counter() + seconds
        steps, wall, cpu = 0, 0.0, 0.0
        while (before := clock()) < end or not steps:
            action, _ = self._policy.step_leaves(self._observation, self._environments.action_mask)
            answer = self._policy.env_action(action)
            before, cpu_before = clock(), cpu_clock()
            self._observation = self._environments.step(answer).observation
            wall, cpu, steps = wall + clock() - before, cpu + cpu_clock() - cpu_before, steps + 1
        return Reading(steps, Cost(wall, cpu))


def _repeat(step: Callable[[], object], seconds: float, steps_at_once: int) -> Reading:
    """Call `step` for this time, at least once."""
    stopwatch = Stopwatch()
    calls, chunk, end = 0, 1, time.perf_counter() + seconds
    while (now := time.perf_counter()) < end or not calls:
        for _ in range(chunk):
            step()
        calls += chunk
        if time.perf_counter() - now < _CHUNK_SECONDS:
            chunk *= 2
    return Reading(calls * steps_at_once, stopwatch.cost())


def main(*descriptors: str) -> None:
    """Run the process: it receives a `Work`, then any number of (part, seconds).

    descriptors: numbers of the connection and the arena that `PartProcesses` made.
    """
    near, arena = map(int, descriptors)
    connection: Connection[Any, Any] = Connection(near)
    try:
        work = connection.recv()
        memory = Arena(arena)
        memory.attach(work.layout.size)
        part = Part(work, memory)
        connection.send(None)
        while True:
            connection.send(part.measure(*connection.recv()))
    except (EOFError, ConnectionError):
        sys.exit(0)
    except BaseException as error:
        connection.send(Failed(describe_error(error)))
        sys.exit(1)
