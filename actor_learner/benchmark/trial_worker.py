"""Measures the env steps per second of settings in a process of its own, which has its own threads."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actor_learner.benchmark.whole import MIN_BATCHES, without_learning
from actor_learner.config.file import load_config
from actor_learner.config.pool_checks import ACTING
from actor_learner.reports.bottleneck import environments_wait
from actor_learner.system import compile_cache
from actor_learner.system.child import Child, ChildEndedError
from actor_learner.system.keras_import import freeze_what_is_imported, import_keras
from actor_learner.system.machine import available_cores, cpu_pressure
from actor_learner.system.memory import cpu_shares, measure as usage, owner_name

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner

_CLEANUP_TIMEOUT_SECONDS = 2.0
_MIN_ENV_TIME = 0.5  # of the actors' time, below which it doesn't matter that environments wait


class Setting(NamedTuple):
    """The fields of TrainConfig that `tune` changes."""

    num_actors: int
    envs_per_actor: int
    unroll_length: int
    max_policy_lag: int
    learner_threads: int
    acting: str = "actors"

    def of(self, config: TrainConfig) -> TrainConfig:
        """Return a config with this setting. Above lag 1, actors run freely if they did, or if the algorithm's do."""
        is_free = (config.asynchronous or None) if self.max_policy_lag > 1 else None
        return config.replace(**self._asdict(), asynchronous=is_free)

    def acting_elsewhere(self) -> Setting:
        """Return the same setting with the policy in the other place."""
        return self._replace(acting=next(place for place in ACTING if place != self.acting))

    def __str__(self) -> str:
        return (
            f"{_count(self.num_actors, 'actor')} x {_count(self.envs_per_actor, 'environment')}, "
            f"{self.unroll_length} steps, lag {self.max_policy_lag}, {_count(self.learner_threads, 'thread')}"
            + (", acting on the device" if self.acting == "device" else "")
        )


def _count(number: int, of: str) -> str:
    return f"{number} {of}{'s' if number != 1 else ''}"


class Throughput(NamedTuple):
    """Env steps (valid rows) and their seconds, with updates, without start and compilation; bytes of a row.

    waits: True if environments took most of the actors' time, and waited in it rather than computed.
    """

    steps: int
    seconds: float
    bytes_per_step: float = 0.0
    waits: bool = False


class MeasuringProcess:
    """A process that measures settings with the same number of threads. It ends with the thread that starts it.

    config: path of a file for `load_config`.
    """

    def __init__(self, config: Path, threads: int) -> None:
        self._is_busy = False
        environment = {"TF_NUM_INTEROP_THREADS": "1", **os.environ}
        self._child = Child(f"{__name__}:main", (config, threads), name="measure", environment=environment)

    def ask(self, setting: Setting, seconds: float) -> None:
        """Request a measurement of this time, including its start, and of at least three updates.

        With 0 seconds it makes a single update, which compiles the functions of later measurements.
        """
        self._is_busy = True
        with contextlib.suppress(ChildEndedError):  # `answer` reports it
            self._child.send((setting, seconds))

    def answer(self, seconds: float) -> Throughput:
        """Return the measurement.

        Raises:
            TimeoutError: there is no answer after this time.
            MemoryError: the setting needs more memory than there is.
            RuntimeError: the measurement failed; one line.
        """
        try:
            found = self._child.receive(seconds)
        except ChildEndedError as error:
            raise RuntimeError(f"The process that measures ended: {error}") from error
        self._is_busy = False
        if isinstance(found, Throughput):
            return found
        kind, text = found
        raise (MemoryError if kind == "MemoryError" else RuntimeError)(text)

    def close(self) -> None:
        """End the process and its actors. An idle process gets time to clean up."""
        self._child.close(0.0 if self._is_busy else _CLEANUP_TIMEOUT_SECONDS)


# The rest runs in that process.


def main(descriptor: str, config: str, threads: str) -> None:
    """Answer requests until they end."""
    settings = load_config(config)
    compile_cache.begin(int(threads))
    freeze_what_is_imported()  # as the command line does
    import_keras()
    serve(settings, Connection(int(descriptor)))


def serve(config: TrainConfig, connection: Connection[Any, Any]) -> None:
    """Measure each (setting, seconds) that comes; answer a Throughput, or an error's type and line."""
    bench = Bench(config)
    with contextlib.suppress(EOFError):
        while True:
            setting, seconds = connection.recv()
            try:
                connection.send(bench.measure(setting, seconds))
            except (MemoryError, ValueError, RuntimeError, OSError) as error:
                connection.send((type(error).__name__, str(error).partition("\n")[0]))


class Bench:
    """Measures settings one after another. Settings of equal batches share a learner, whose update is compiled once.

    The learning rate is 0, so that all settings have the same policy and the same work.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = without_learning(config)
        self._learners: dict[tuple[int, int], Learner] = {}
        self._kept = contextlib.ExitStack()  # what they use to the worker's end

    def measure(self, setting: Setting, seconds: float) -> Throughput:
        """Collect, learn and publish as training does, after the first updates; see `ask`."""
        deadline = time.monotonic() + seconds
        config = setting.of(self._config)
        with self._prepared(config) as (actors, learner):
            rounds = _rounds(actors, learner)
            # the batches ahead are filled while the update is compiled
            for _ in range(2 if config.asynchronous else 1 + config.max_policy_lag):
                next(rounds)
            least = MIN_BATCHES if seconds else 1
            steps, updates, times = 0, 0, Counter[str]()
            before, started = usage(actors.pids), time.monotonic()
            while updates < least or not steps or time.monotonic() < deadline:
                steps, updates = steps + next(rounds), updates + 1
                times.update({f"time/{name}": share for name, share in actors.timings.items()})
            elapsed = time.monotonic() - started
            cpu = cpu_shares(before, usage(actors.pids), elapsed)
            shares = {name: share / updates for name, share in times.items()}
            shares |= {f"cpu/{owner_name(actor)}": part for actor, part in cpu.items()}
            shares["cpu/pressure"] = cpu_pressure()
            rows = config.unroll_length * sum(config.env_counts)
            waits = environments_wait(shares, available_cores(), _MIN_ENV_TIME)
            return Throughput(steps, elapsed, actors.layout.size / rows, waits)

    @contextlib.contextmanager
    def _prepared(self, config: TrainConfig) -> Iterator[tuple[ActorPool, Learner]]:
        from actor_learner.build import goal_rewards, make_network, make_pool, new_learner

        batch = config.unroll_length, sum(config.env_counts)
        known = self._learners.get(batch)
        network = functools.partial(make_network, config, None) if known is None else known.network
        with make_pool(config, network, seed=config.seed, logs_dir=None) as actors:
            if batch not in self._learners:
                compute_reward = self._kept.enter_context(goal_rewards(config))
                self._learners[batch] = new_learner(config, actors, compute_reward)
            yield actors, self._learners[batch]


def _rounds(actors: ActorPool, learner: Learner) -> Iterator[int]:
    """Yield the env steps of one update after another."""
    while True:
        trajectory = actors.collect(timeout=None)
        learner.update(trajectory)
        actors.publish(learner.flat_weights())
        yield int(trajectory.valid.sum())
