"""Many actors and several learners in simulated time, driven by the pool's own schedule.

Assumptions: each actor has a core of its own; an env step takes what its distribution gives, and `actor_seconds`; a
batch keeps the learner busy for `update_seconds`, and then for `hand_out_seconds` per actor; messages take no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from actor_learner.actors.group import Schedule
from actor_learner.actors.scheduling import FreeRunning, LockStep
from actor_learner.actors.transport.messages import Done
from benchmarks.harness import Found

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator], float]  # draws the seconds of one env step
_BYTES_OF_A_PARAMETER = 4

CORES = (8, 16, 32, 64, 128, 256)
LEARNERS = (1, 2, 4, 8)
STEP_SECONDS_OF_AN_ENV = 1e-4  # a step of MuJoCo's HalfCheetah on one core; the actors' own work is measured
_ENVS, _ROWS, _BATCHES = 8, 256, 12


@dataclass(frozen=True)
class Setting:
    """The simulated system; times are seconds."""

    actors: int
    envs_per_actor: int
    unroll_length: int
    lag: int
    step: Draw
    actor_seconds: float = 0.0  # an actor's own work in each step
    update_seconds: float = 0.0  # for one batch
    hand_out_seconds: float = 0.0  # in the learner's process, for each actor and batch


def throughput(setting: Setting, batches: int = 30, warm_up: int = 3, seed: int = 0) -> float:
    """Return the env steps per second that reach the learner, after the first batches."""
    clockwork = _Clockwork(setting, seed)
    steps, since = 0, 0.0
    for batch in range(warm_up + batches):
        if batch == warm_up:
            steps, since = clockwork.steps, clockwork.now
        clockwork.collect()
        clockwork.learn()
    return (clockwork.steps - steps) * setting.envs_per_actor / (clockwork.now - since)


class _Task(NamedTuple):
    """Columns of a batch, in a block."""

    batch: int
    block: int


@dataclass
class _Unroll:
    """The unroll in which an actor is, and when each of its steps ends."""

    task: _Task
    step_ends: Array
    rows: int


class _Clockwork:
    """A pool and a learner in simulated time; `steps` counts the rows of the learned batches."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting, self._generator = setting, np.random.default_rng(seed)
        self.now, self.steps = 0.0, 0
        self._rows: dict[int, int] = {}
        self._unrolls: dict[int, _Unroll] = {}
        self._tasks: dict[int, deque[_Task]] = {actor: deque() for actor in range(setting.actors)}
        self._ends: list[tuple[float, int]] = []
        self._stopped: set[int] = set()
        self.version = 0
        kind = FreeRunning if setting.lag > 1 else LockStep
        counts = [setting.envs_per_actor] * setting.actors
        self._schedule: Schedule = kind(self, counts, lag=setting.lag)

    def collect(self) -> None:
        """Advance the time until there is a batch."""
        self._schedule.begin()
        while not self._schedule.complete():
            self._cut_short()
            self._next_end()
        index, _ = self._schedule.take()
        self.steps += self._rows.pop(index)

    def learn(self) -> None:
        """Advance the time by an update, and publish."""
        setting = self._setting
        until = self.now + setting.update_seconds + setting.actors * setting.hand_out_seconds
        while self._ends and self._ends[0][0] <= until:
            self._next_end()
        self.now = until
        self.version += 1

    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        """Assign columns, as an `ActorGroup` does."""
        if not start:
            self._stopped.discard(block)
        self._tasks[actor].append(_Task(batch, block))
        if actor not in self._unrolls:
            self._begin(actor)

    def end_early(self, block: int) -> None:
        self._stopped.add(block)

    def _begin(self, actor: int) -> None:
        setting = self._setting
        seconds = [setting.step(self._generator) + setting.actor_seconds for _ in range(setting.unroll_length)]
        ends = self.now + np.cumsum(seconds)
        self._unrolls[actor] = _Unroll(self._tasks[actor].popleft(), ends, setting.unroll_length)
        heapq.heappush(self._ends, (float(ends[-1]), actor))

    def _cut_short(self) -> None:
        """End the unrolls of stopped blocks after the current step."""
        for actor, unroll in self._unrolls.items():
            if unroll.task.block in self._stopped and unroll.rows == self._setting.unroll_length:
                step = min(int(np.searchsorted(unroll.step_ends, self.now, side="right")), unroll.rows - 1)
                unroll.rows = step + 1
                heapq.heappush(self._ends, (float(unroll.step_ends[step]), actor))

    def _next_end(self) -> None:
        """End the next unroll; its actor begins its next task."""
        end, actor = heapq.heappop(self._ends)
        unroll = self._unrolls.get(actor)
        if unroll is None or unroll.step_ends[unroll.rows - 1] != end:
            return  # the unroll was cut short since
        self.now = max(self.now, end)
        del self._unrolls[actor]
        block = unroll.task.block
        self._rows[block] = self._rows.get(block, 0) + unroll.rows
        self._schedule.finish(actor, Done(unroll.task.batch, 0.0, 0.0, 0.0, 0.0))
        if actor not in self._unrolls and self._tasks[actor]:
            self._begin(actor)


@dataclass(frozen=True)
class Update:
    """The time of an update; that of one message between two learners is `hop_seconds` and its bytes."""

    call_seconds: float  # of a minibatch
    row_seconds: float
    epochs: int
    minibatch_size: int
    parameters: int = 10_000  # the network's
    hop_seconds: float = 10e-6
    bytes_per_second: float = 5e9

    def seconds(self, batch_size: int, learners: int = 1) -> float:
        """Return the time for a batch; several learners share each minibatch and sum their gradients around a ring."""
        rows = self.minibatch_size / learners
        minibatch = self.call_seconds + rows * self.row_seconds + self._ring_seconds(learners)
        return self.epochs * batch_size / self.minibatch_size * minibatch

    def _ring_seconds(self, learners: int) -> float:
        """Return the time of a ring all-reduce: 2 (K - 1) messages in sequence, each a K-th of the gradient."""
        piece = self.parameters * _BYTES_OF_A_PARAMETER / learners
        return 2 * (learners - 1) * (self.hop_seconds + piece / self.bytes_per_second)


def fit_update(seconds: dict[int, float], batch_size: int, epochs: int) -> tuple[float, float]:
    """Return the seconds of a minibatch's call and of one row, from those of an update by two sizes of minibatches."""
    (small, first), (large, second) = sorted(seconds.items())
    per_minibatch = {size: total * size / (epochs * batch_size) for size, total in ((small, first), (large, second))}
    row = (per_minibatch[large] - per_minibatch[small]) / (large - small)
    return max(0.0, per_minibatch[small] - small * row), row


def line_through(points: Mapping[int, float]) -> tuple[float, float]:
    """Return the value at 0 and the slope, by least squares."""
    slope, base = np.polyfit(list(points), list(points.values()), 1)
    return float(base), float(slope)


def simulate(found: Mapping[str, Any]) -> Found:
    """Simulate the measured setting, as a check of the model; then up to 256 cores with computing environments."""
    work, hand_out_seconds = found["work"], found["learner"]["pool_seconds_per_actor_and_batch"]
    rows = {int(count): row for count, row in found["actors"].items()}
    actor_seconds = own_seconds(found)
    shares = {}
    for count, row in rows.items():
        setting = Setting(
            *(count, work["envs_per_actor"], work["unroll_length"], 1, lambda _: work["step_seconds"]),
            actor_seconds=actor_seconds,
            update_seconds=row["update_seconds"],
            hand_out_seconds=hand_out_seconds,
        )
        shares[count] = round(row["steps_per_second"] / throughput(setting), 4)
    update = update_of(found)
    return {
        "actor_seconds_per_step": actor_seconds,
        "minibatch": {"call_seconds": update.call_seconds, "row_seconds": update.row_seconds},
        "measured_over_simulated": shares,
        "heavy_tails_of_ideal": _simulate_tails(found, actor_seconds),
        "cores": many_cores(update, rows[max(rows)]["actor_cpu_seconds"], hand_out_seconds),
    }


def own_seconds(found: Mapping[str, Any]) -> float:
    """Return an actor's own seconds in each step: what one actor alone is slower by than ideal."""
    alone = min(found["actors"].items(), key=lambda item: int(item[0]))[1]
    return float(found["work"]["step_seconds"] * (1 / alone["of_ideal"] - 1))


def update_of(found: Mapping[str, Any]) -> Update:
    """Fit the update's time to the size of its minibatches."""
    work = found["work"]
    seconds = {int(size): value for size, value in found["minibatches"].items()}
    call, row = fit_update(seconds, 64 * work["unroll_length"], work["epochs"])
    return Update(call, row, work["epochs"], work["minibatch_size"])


def _simulate_tails(found: Mapping[str, Any], actor_seconds: float) -> dict[int, float]:
    """Return throughput / ideal of the heavy-tailed measurement, simulated long enough for its mean."""
    tails, work = found["heavy_tails"], found["work"]
    actors, mean, exponent = tails["work"].values()
    shortest = mean * (exponent - 1) / exponent
    ideal = actors * work["envs_per_actor"] / mean
    simulated = {}
    for lag, row in tails["lags"].items():
        setting = Setting(
            *(actors, work["envs_per_actor"], work["unroll_length"], int(lag)),
            lambda generator: shortest * (1 + generator.pareto(exponent)),
            actor_seconds,
            row["update_seconds"],
            found["learner"]["pool_seconds_per_actor_and_batch"],
        )
        simulated[int(lag)] = round(throughput(setting, batches=100) / ideal, 4)
    return simulated


def many_cores(update: Update, actor_seconds: float, hand_out_seconds: float) -> dict[int, dict[int, float]]:
    """Return throughput / (cores x an actor's own), by number of learners and cores; each learner takes a core."""
    alone = _ENVS / (_ENVS * STEP_SECONDS_OF_AN_ENV + actor_seconds)
    found: dict[int, dict[int, float]] = {learners: {} for learners in LEARNERS}
    for learners, shares in found.items():
        for cores in CORES:
            if (actors := cores - learners) < learners:
                continue
            setting = Setting(
                *(actors, _ENVS, _ROWS, 1, lambda _: _ENVS * STEP_SECONDS_OF_AN_ENV, actor_seconds),
                update_seconds=update.seconds(actors * _ENVS * _ROWS, learners),
                hand_out_seconds=hand_out_seconds / learners,
            )
            shares[cores] = round(throughput(setting, _BATCHES) / (cores * alone), 4)
    return found
