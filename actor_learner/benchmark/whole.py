"""The whole system as `train` runs it, without the files of a run: actors, learner and published weights."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from typing import Any, NamedTuple

from actor_learner.benchmark.parts import Stopwatch
from actor_learner.benchmark.roofline import Cost
from actor_learner.config.config import TrainConfig
from actor_learner.runs.metrics import ACTOR_TIME
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.machine import busy_seconds
from actor_learner.system.memory import cpu_shares, measure, owner_name

MIN_BATCHES = 3  # in a measurement, however long they take
_POLL_SECONDS = 0.005
LEARNER = "learner"  # the name of the learner's process; the actors' are `actor_0` and so on


class Span(NamedTuple):
    """The work of a process from `start` to `end`, by `time.perf_counter`."""

    process: str
    name: str
    start: float
    end: float


class Run(NamedTuple):
    """A measurement of the whole system.

    steps: env steps. rows: env steps and rows that only reset. cpu: CPU seconds per second of each process. others: CPU
    seconds per second that other programs took from the same cores; 0 where the system doesn't report it. spans: the
    work of each process; the parts of an unroll, which take turns at every step, follow one another.
    """

    seconds: float
    batches: int
    steps: int
    rows: int
    cpu: dict[str, float]
    others: float
    spans: list[Span]

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


class System(contextlib.AbstractContextManager["System"]):
    """The pool and the learner of a config.

    The learning rate is 0, so that the policy, and with it the work of the environments, stays the same in all
    batches, and `target_kl` ends no update early. An environment that raises ends the measurement.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Start the actors, compile the update, and keep a batch."""
        from actor_learner.build import goal_rewards, make_network, make_pool, new_learner

        self.config = config = without_learning(config)
        network = functools.partial(make_network, config, None)
        self._stack = contextlib.ExitStack()
        self.actors = self._stack.enter_context(make_pool(config, network, seed=config.seed, logs_dir=None))
        try:
            compute_reward = self._stack.enter_context(goal_rewards(config))
            self.learner = new_learner(config, self.actors, compute_reward)
            batch = self.actors.collect(timeout=None)
            self.batch: Trajectory = batch if config.acts_on_device else batch.copy()
            for _ in range(2):  # the first may only set statistics
                self.learner.update(self.batch)
        except BaseException:
            self.close()
            raise

    @property
    def least_updates(self) -> int:
        """The updates of `measure_update` and `run`, if these need no more for their time."""
        return 1 + self.config.max_policy_lag + 1 + MIN_BATCHES

    def measure_update(self, seconds: float) -> Cost:
        """Return the mean cost of an update alone, over this time and at least one update."""
        self.wait_until_idle()
        stopwatch, end, count = Stopwatch(), time.perf_counter() + seconds, 0
        while not count or time.perf_counter() < end:
            self.learner.update(self.batch)
            count += 1
        return stopwatch.cost() * (1 / count)

    def run(self, seconds: float) -> Run:
        """Collect, learn and publish for this time, once every actor is busy."""
        spans: list[Span] = []
        for _ in range(self.config.max_policy_lag + 1):
            self._update_once(spans)
        steps = rows = batches = 0
        before, busy_before, started = measure(self.actors.pids), busy_seconds(), time.perf_counter()
        while batches < MIN_BATCHES or time.perf_counter() - started < seconds:
            valid = self._update_once(spans)
            steps, rows, batches = steps + int(valid.sum()), rows + valid.size, batches + 1
        elapsed, busy, after = time.perf_counter() - started, busy_seconds(), measure(self.actors.pids)
        for _ in range(self.config.max_policy_lag + 1):  # collects the batches that the actors have begun
            self._update_once(spans, learn=False)
        cpu = {owner_name(owner): share for owner, share in cpu_shares(before, after, elapsed).items()}
        others = 0.0 if busy is None or busy_before is None else (busy - busy_before) / elapsed - sum(cpu.values())
        ended = started + elapsed
        cut = [span._replace(start=max(span.start, started), end=min(span.end, ended)) for span in spans]
        cut = sorted((span for span in cut if span.end > span.start), key=lambda span: (span.process, span.start))
        return Run(elapsed, batches, steps, rows, cpu, max(0.0, others), cut)

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + self.config.actor_timeout
        while not self.actors.idle and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _update_once(self, spans: list[Span], *, learn: bool = True) -> Any:
        """Collect, learn and publish once, and add to the spans. Return the batch's `valid [T, B]`."""
        clock, times = time.perf_counter, [time.perf_counter()]
        trajectory = self.actors.collect(timeout=None)
        times.append(clock())
        if learn:
            self.learner.update(trajectory)
        times.append(clock())
        self.actors.publish(self.learner.flat_weights())
        times.append(clock())
        names = ("waiting", "learning", "publishing")
        spans += [Span(LEARNER, *span) for span in zip(names, times, times[1:], strict=False)]
        for unroll in self.actors.unrolls:
            spans += _spans_of(unroll)
        return trajectory.valid

    def close(self) -> None:
        self._stack.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def without_learning(config: TrainConfig) -> TrainConfig:
    """Return the config with a learning rate of 0, gradient steps from the first batch on, and without restarts."""
    algorithm = config.algorithm
    with contextlib.suppress(ValueError):  # a user's algorithm may refuse such a rate
        algorithm = algorithm.without_learning()
    return config.replace(algorithm=algorithm, on_env_error="raise", max_restarts=0, quiet=True)


def _spans_of(unroll: Any) -> list[Span]:
    """Return the parts of an unroll, one after the other, up to its end."""
    names = ("waiting", "env", "acting", "other")
    seconds = [getattr(unroll, name) for name in names]
    ends = list(itertools.accumulate(seconds, initial=unroll.ended - sum(seconds)))
    return [
        Span(owner_name(unroll.actor), ACTOR_TIME[name], start, end)
        for name, (start, end) in zip(names, itertools.pairwise(ends), strict=True)
    ]


def process_order(process: str) -> tuple[bool, int, str]:
    """Return a key that sorts the learner first, then the actors by number."""
    return process != LEARNER, len(process), process
