"""The status of a run, from its config and its rows of metrics: for the live view, `watch`, reports and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from actor_learner.reports.bottleneck import Bottleneck, bottleneck
from actor_learner.runs.metrics import ACTOR_TIME, HOST, LEARNER_TIME, has_undone, steps_of
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.spaces.jax_env import steps_on_device

SMOOTHING_SECONDS = 5.0
"""While a run goes on, speed and shares of time are means in which a row of this age counts 1/e of the newest."""
POINTS = 128  # the longest history of the return; more than the widest sparkline needs
_SHARES = tuple(f"time/{name}" for name in (*LEARNER_TIME, *ACTOR_TIME))


class Process(NamedTuple):
    """The resources that a process and its children use. cpu: CPU seconds per second; NaN: not known yet."""

    name: str
    cpu: float
    megabytes: float


class Host(NamedTuple):
    """A machine that runs actors; see `HostSampler` for its figures."""

    name: str
    steps_per_second: float
    waiting: float
    megabytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment. NaN: not known (yet).

    total_steps, steps: env steps, with the gradient steps of a run that begins offline.
    seconds: taken so far. left: expected until the end. over: the run has ended; then `speed` (env steps per second),
    `shares` (of time, as in metrics.jsonl, without "time/") and `cpu` (CPU seconds per second by process) are those of
    the whole run, else those of the last seconds. returns: `episode_return` over the run, evenly spaced in updates.
    cause: of the last restart. undone: updates.
    """

    env: str
    algorithm: str
    run_dir: str
    num_actors: int
    total_steps: int
    steps: int
    updates: int
    seconds: float
    left: float
    over: bool
    speed: float
    episode_return: float
    returns: Sequence[float]
    shares: Mapping[str, float]
    cpu: Mapping[str, float]
    limited_by: Bottleneck | None
    processes: Sequence[Process]
    hosts: Sequence[Host]
    policy_lag: float
    policy_lag_max: float
    restarts: int
    cause: str
    undone: int
    buffer_rows: int | None = None
    """Rows of the replay buffer that can be drawn; None without one."""
    gradient_steps: int = 0
    gradient_steps_owed: int = 0
    """Gradient steps that are due and weren't taken yet."""

    @property
    def part_done(self) -> float:
        return max(0.0, min(1.0, self.steps / self.total_steps))


class Summary:
    """Takes the rows of a run one by one; its memory doesn't grow with them. run_dir: the text to show."""

    def __init__(self, config: RecordedConfig, run_dir: str) -> None:
        self._env, self._algorithm = printable(config.env or "a run"), printable(config.algorithm)
        self._run_dir, self._cores = run_dir, config.cores
        self._num_actors = _integer(config, "num_actors")
        self._on_device = steps_on_device(config.env, str(config.get("vectorization")))
        self._max_policy_lag = _integer(config, "max_policy_lag")
        self._total_steps = max(1, config.all_steps or 0)
        self._row: Mapping[str, Any] = {}
        self._first = 0.0, 0.0  # seconds and env steps after the update that was compiled
        self._compiled = False  # in the last row
        self._recent, self._overall = _Means(SMOOTHING_SECONDS), _Means(math.inf)
        self._returns = _History()
        self._undone, self._cause, self.rows = 0, "", 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the next row: numbers, and the list `actor_restart_causes`. Ignores a row without steps or time."""
        if not all(math.isfinite(row.get(name, math.nan)) for name in ("env_steps", "time_seconds")):
            return
        seconds = row["time_seconds"] - self._row.get("time_seconds", 0.0)
        for means in (self._recent, self._overall):
            if self._compiled:
                means.sums.clear()
            means.add(row, seconds)
        self._compiled = not self._row or begins_to_learn(row, self._row)
        self._row = row
        self.rows += 1
        if self._compiled:
            self._first = row["time_seconds"], steps_of(row)
        self._undone += has_undone(row)
        if causes := row.get("actor_restart_causes"):
            self._cause = printable(causes[-1])
        if math.isfinite(value := row.get("episode_return", math.nan)):
            self._returns.add(value)

    def status(self, age: float = 0.0, *, over: bool = False) -> RunStatus:
        """Return the run `age` seconds after its last row (or, without rows, its beginning), or when it is over."""
        row = self._row
        means = (self._overall if over else self._recent).values()
        steps, seconds = steps_of(row), row.get("time_seconds", 0.0)
        speed = means.get("steps_per_second", math.nan) if self.rows > 1 else math.nan  # the first update was compiled
        limited_by = bottleneck(
            means,
            num_actors=self._num_actors,
            cores=self._cores,
            max_policy_lag=self._max_policy_lag,
            updates=self.rows,
            replay="gradient_steps" in row,
            on_device=self._on_device,
        )
        return RunStatus(
            env=self._env,
            algorithm=self._algorithm,
            run_dir=self._run_dir,
            num_actors=self._num_actors,
            total_steps=self._total_steps,
            steps=int(steps),
            updates=_count(row, "updates"),
            seconds=seconds + age,
            left=self._left(age),
            over=over,
            speed=speed if not over else steps / seconds if seconds else math.nan,
            episode_return=row.get("episode_return", math.nan),
            returns=self._returns.values(),
            shares={name.removeprefix("time/"): means.get(name, math.nan) for name in _SHARES},
            cpu={name.removeprefix("cpu/"): value for name, value in means.items() if name.startswith("cpu/")},
            limited_by=limited_by,
            processes=_processes(row),
            hosts=_hosts(row, means),
            policy_lag=row.get("policy_lag", math.nan),
            policy_lag_max=row.get("policy_lag_max", math.nan),
            restarts=_count(row, "actor_restarts"),
            cause=self._cause,
            undone=self._undone,
            buffer_rows=_count(row, "buffer_rows") if "buffer_rows" in row else None,
            gradient_steps=_count(row, "gradient_steps"),
            gradient_steps_owed=_count(row, "gradient_steps_owed"),
        )

    def _left(self, age: float) -> float:
        """Return the seconds until the end, at the speed since the update that was compiled."""
        if not self._row:
            return math.nan
        seconds, steps = self._row["time_seconds"] - self._first[0], steps_of(self._row) - self._first[1]
        remaining = max(0, self._total_steps - steps_of(self._row))
        return max(0.0, remaining * seconds / steps - age) if steps > 0 else math.nan


def begins_to_learn(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether a row, and not the one before it, has gradient steps: those of a replay buffer begin late."""
    return bool(row.get("gradient_steps", 0) > 0 and not before.get("gradient_steps", 0))


def summarize(config: RecordedConfig, rows: Iterable[Mapping[str, Any]]) -> RunStatus:
    """Return the status of a whole run. For shares of time, the updates count after the one that was compiled."""
    summary = Summary(config, "")
    for row in rows:
        summary.add(row)
    return summary.status(over=True)


def _hosts(row: Mapping[str, Any], means: Mapping[str, float]) -> list[Host]:
    """Return the machines of the last row."""
    fields = Host._fields[1:]
    names = dict.fromkeys(name[len(HOST) :].rpartition("/")[0] for name in row if name.startswith(HOST))
    return [
        Host(printable(name), *(means.get(f"{HOST}{name}/{field}", math.nan) for field in fields)) for name in names
    ]


class _Means:
    """Exponential means of speed, shares of time and CPU, each row weighted by its seconds; inf: plain means."""

    def __init__(self, seconds: float) -> None:
        self._horizon = seconds
        self.sums: dict[str, tuple[float, float]] = {}

    def add(self, row: Mapping[str, Any], seconds: float) -> None:
        seconds = max(seconds, 1e-6)
        decay = math.exp(-seconds / self._horizon)
        weight = 1 - decay if decay < 1 else seconds
        for name, value in row.items():
            if name.startswith(("time/", "cpu/", HOST, "steps_per_second")) and math.isfinite(value):
                total, weights = self.sums.get(name, (0.0, 0.0))
                self.sums[name] = decay * total + weight * value, decay * weights + weight

    def values(self) -> dict[str, float]:
        return {name: total / weights for name, (total, weights) in self.sums.items()}


class _History:
    """At most `POINTS` means of equally many values each."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._stride = 1
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1
        if self._count == self._stride:
            self._means.append(self._sum / self._stride)
            self._sum, self._count = 0.0, 0
        if len(self._means) == POINTS:
            self._means = [sum(pair) / 2 for pair in zip(self._means[::2], self._means[1::2], strict=True)]
            self._stride *= 2

    def values(self) -> list[float]:
        return [*self._means, self._sum / self._count] if self._count else list(self._means)


def line(status: RunStatus) -> str:
    parts = [f"{status.part_done:4.0%}", f"{status.steps:,} steps"]
    if not math.isnan(status.episode_return):
        parts.append(f"return {status.episode_return:,.1f}")
    if not math.isnan(status.speed):
        parts.append(f"{status.speed:,.0f} steps/s")
    return "  ".join([*parts, *times(status)[-1:]])


def times(status: RunStatus) -> list[str]:
    if status.over:
        return [f"took {duration(status.seconds)} in all"]
    left = [] if math.isnan(status.left) else [f"{duration(status.left)} left"]
    return [f"{duration(status.seconds)} so far", *left]


def duration(seconds: float) -> str:
    """Return a text such as `0:05` or `1:00:00`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def printable(text: object) -> str:
    """Return the text without control characters, which a file from elsewhere may hold and a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def _count(row: Mapping[str, float], name: str) -> int:
    value = row.get(name, 0)
    return int(value) if math.isfinite(value) else 0


def _integer(config: RecordedConfig, name: str) -> int:
    value = config.integer(name) or 0
    return value if abs(value) <= 2**53 else 0  # a damaged file may hold one that no float can


def _processes(row: Mapping[str, float]) -> list[Process]:
    """Return the learner, then the actors by number."""
    names = [name[7:-3] for name in row if name.startswith("memory/") and name.endswith("_mb")]
    actors = sorted((int(name[6:]), name) for name in names if name.startswith("actor_") and name[6:].isdecimal())
    ordered = [name for name in names if name == "learner"] + [name for _, name in actors]
    return [
        Process(name.replace("_", " "), row.get(f"cpu/{name}", math.nan), row[f"memory/{name}_mb"]) for name in ordered
    ]
