"""The whole system as `train` runs it, without what it writes down: actors, learner, and weights that are published."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from actor_learner.benchmark.clocks import Stopwatch
from actor_learner.benchmark.roofline import Cost
from actor_learner.config.config import TrainConfig
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.machine import busy_seconds
from actor_learner.system.memory import cpu_shares, measure

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

LEAST_BATCHES = 3
"""Of a measurement, however long they take."""
_LOOK_SECONDS = 0.005

LEARNER = "learner"
"""The name of the learner's process; the actors' are `actor_0` and so on."""


class Span(NamedTuple):
    """What a process did from `start` to `end`, by `time.perf_counter`."""

    process: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Run:
    """What a measurement of the whole system found.

    steps: env steps; rows: those that only reset included. cpu: CPU seconds per second of each process. spans: what
    each process did; parts of an unroll, which take turns at every step, stand one after the other.
    """

    seconds: float
    batches: int
    steps: int
    rows: int
    cpu: dict[str, float]
    others: float
    """CPU seconds per second that other programs took from the same cores; 0 where the system doesn't tell."""
    spans: list[Span]

    @property
    def steps_per_second(self) -> float:
        """Env steps, without rows that only reset."""
        return self.steps / self.seconds


class System:
    """A pool and a learner, as a config describes them. A context manager; nothing is left of it afterwards.

    The learning rate is 0, so that the policy, and with it what the environments do, stays the same from the first
    batch to the last, and `target_kl` ends no update early. An environment that raises ends the measurement.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Starts the actors, compiles the update, and keeps a batch."""
        from actor_learner.build import make_network, make_pool, new_learner, settle_threads
        from actor_learner.learner.backend import resolve_device

        self.config = config = still(config)
        device = resolve_device(config.device)

        def network(observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
            import tensorflow as tf

            settle_threads(config, observation_space)  # `tf.device` starts TensorFlow
            with tf.device(device):
                return make_network(config, None, observation_space, action_space)

        self.actors = make_pool(config, network, seed=config.seed, logs_dir=None)
        try:
            self.learner = new_learner(config, self.actors)
            self.batch: Trajectory = self.actors.collect(timeout=None).copy()
            for _ in range(2):  # the first may set statistics alone
                self.learner.update(self.batch)
        except BaseException:
            self.actors.close()
            raise

    def measure_update(self, seconds: float) -> Cost:
        """The update alone, on the batch that was kept: means over so many seconds, or of one."""
        self.wait_until_idle()
        stopwatch, end, count = Stopwatch(), time.perf_counter() + seconds, 0
        while not count or time.perf_counter() < end:
            self.learner.update(self.batch)
            count += 1
        return stopwatch.cost() * (1 / count)

    def run(self, seconds: float) -> Run:
        """Collects, learns and publishes for so many seconds, from where every actor has been at it for a while."""
        spans: list[Span] = []
        for _ in range(self.config.max_policy_lag + 1):
            self._turn(spans)
        steps = rows = batches = 0
        before, busy_before, started = measure(self.actors.pids), busy_seconds(), time.perf_counter()
        while batches < LEAST_BATCHES or time.perf_counter() - started < seconds:
            valid = self._turn(spans)
            steps, rows, batches = steps + int(valid.sum()), rows + valid.size, batches + 1
        elapsed, busy, after = time.perf_counter() - started, busy_seconds(), measure(self.actors.pids)
        for _ in range(self.config.max_policy_lag + 1):  # brings what the actors have begun
            self._turn(spans)
        cpu = {_name(owner): share for owner, share in cpu_shares(before, after, elapsed).items()}
        others = 0.0 if busy is None or busy_before is None else (busy - busy_before) / elapsed - sum(cpu.values())
        return Run(elapsed, batches, steps, rows, cpu, max(0.0, others), _within(spans, started, started + elapsed))

    def wait_until_idle(self) -> None:
        """Until the actors have done what was handed out to them."""
        deadline = time.monotonic() + self.config.actor_timeout
        while not self.actors.idle and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _turn(self, spans: list[Span]) -> Any:
        """One batch; what was done for it joins the spans. Returns its `valid [T, B]`."""
        clock, times = time.perf_counter, [time.perf_counter()]
        trajectory = self.actors.collect(timeout=None)
        times.append(clock())
        self.learner.update(trajectory)
        times.append(clock())
        self.actors.publish(self.learner.get_weights())
        times.append(clock())
        names = ("waiting", "learning", "publishing")
        spans += [Span(LEARNER, *span) for span in zip(names, times, times[1:], strict=False)]
        for unroll in self.actors.unrolls:
            spans += _spans_of(unroll)
        return trajectory.valid

    def close(self) -> None:
        """Ends the actors."""
        self.actors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def still(config: TrainConfig) -> TrainConfig:
    """The config of a system that learns nothing, and that the first failure ends."""
    algorithm = config.algorithm
    if not getattr(algorithm, "clones_optimizer", False):
        with contextlib.suppress(TypeError, ValueError):  # one's own algorithm may have no such field
            algorithm = dataclasses.replace(algorithm, learning_rate=0.0)
    return config.replace(algorithm=algorithm, on_env_error="raise", max_restarts=0, quiet=True)


def _name(owner: int | None) -> str:
    return LEARNER if owner is None else f"actor_{owner}"


def _spans_of(unroll: Any) -> list[Span]:
    """An unroll's parts, one after the other, up to where it ended."""
    parts = (
        ("waiting", unroll.waiting),
        ("environments", unroll.env),
        ("acting", unroll.acting),
        ("copying", unroll.other),
    )
    start = unroll.ended - sum(seconds for _, seconds in parts)
    spans = []
    for name, seconds in parts:
        spans.append(Span(_name(unroll.actor), name, start, start + seconds))
        start += seconds
    return spans


def _within(spans: list[Span], start: float, end: float) -> list[Span]:
    """What of them lies between two moments, in order."""
    cut = [span._replace(start=max(span.start, start), end=min(span.end, end)) for span in spans]
    return sorted((span for span in cut if span.end > span.start), key=lambda span: (span.process, span.start))
