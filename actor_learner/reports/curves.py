"""Metrics of runs as curves: read, smoothed, interpolated to one grid, aggregated over seeds."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from actor_learner.config.config import TrainConfig
from actor_learner.config.settings import names_of
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.metrics import read_metrics, steps_of
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, Value, algorithm_title, change_text, flat_config
from actor_learner.system.fields import check_choice, close_match, refusal
from actor_learner.system.types import Array

X_AXES = {"steps": "env_steps", "seconds": "time_seconds", "updates": "updates"}
"""The choices for the x-axis, and the metric of each."""
SMOOTHING = 0.02  # the part of a run's updates that a point averages

_OF_EPISODES = ("episode_return", "episode_length")  # metrics that a row has once an episode has ended
_POINTS = 300  # as many as a column of print can show
_RESAMPLES = 1000
_MAX_SHOWN = 1e300  # larger numbers overflow in the arithmetic of axes


class Curve(NamedTuple):
    """One metric of a group of runs: the middle and a band around it over the runs, each `[points]`.

    group: the common setting of the runs: "PPO", or "learning_rate=0.001". x: rising values of a metric of `X_AXES`.
    smoothed: a point averages more than one update.
    """

    env: str
    metric: str
    group: str
    num_runs: int
    x: Array
    middle: Array
    low: Array
    high: Array
    smoothed: bool = False
    changes: tuple[tuple[float, str], ...] = ()
    """Where on the x-axis a resume changed hyperparameters of a run, and which."""

    @property
    def label(self) -> str:
        return f"{self.group} ({self.num_runs} runs)" if self.num_runs > 1 else self.group


class Band(NamedTuple):
    """The aggregation of the values `[runs, points]` of several runs to one curve. description: for the legend."""

    description: str
    middle: Callable[[Array], Array]
    edges: Callable[[Array], tuple[Array, Array]]


def interquartile_mean(values: Array) -> Array:
    """Return the mean of the middle half `[runs, points] -> [points]` (arXiv:2108.13264).

    As in rliable (`scipy.stats.trim_mean`), a quarter of the runs, rounded down, is cut off at each end: of fewer than
    four runs it is the mean.
    """
    cut = len(values) // 4
    mean: Array = np.sort(values, axis=0)[cut : len(values) - cut].mean(0)
    return mean


def bootstrap_interval(values: Array) -> tuple[Array, Array]:
    """Return the central 95% of the interquartile means of runs drawn with replacement, at each point."""
    generator = np.random.default_rng(0)
    draws = generator.integers(len(values), size=(_RESAMPLES, len(values)))
    means = np.stack([interquartile_mean(values[draw]) for draw in draws])
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    return low, high


def _quartiles(values: Array) -> tuple[Array, Array]:
    low, high = np.quantile(values, (0.25, 0.75), axis=0)
    return low, high


BANDS = {
    "range": Band("mean, minimum to maximum", lambda v: v.mean(0), lambda v: (v.min(0), v.max(0))),
    "quartiles": Band("interquartile mean, quartiles", interquartile_mean, _quartiles),
    "bootstrap": Band("interquartile mean, 95% bootstrap interval", interquartile_mean, bootstrap_interval),
    "none": Band("mean", lambda v: v.mean(0), lambda v: (v.mean(0), v.mean(0))),
}


class _Run(NamedTuple):
    path: str
    env: str
    config: dict[str, Value]
    rows: list[dict[str, float]]
    changes: list[dict[str, Any]]

    @property
    def names(self) -> dict[str, None]:
        """The names of its metrics."""
        return dict.fromkeys(name for row in self.rows for name in row)


def read_curves(
    run_dirs: Sequence[str | os.PathLike[str]],
    metrics: Sequence[str] = ("episode_return",),
    *,
    x: str = "steps",
    group_by: Sequence[str] = (),
    band: str = "range",
    smoothing: float = SMOOTHING,
) -> list[Curve]:
    """Return the curves of runs, one for each environment, metric and group. The arguments are those of `plot`.

    What only rises or only falls, such as a count, isn't smoothed.
    Runs of a group that differ in more than the seed cause a warning. So does a folder with nothing to draw, which is
    left out: of a run that failed, is damaged, or has finished no episode.

    Raises ValueError if an argument can't be used, no directory holds a run, one isn't there, or a run lacks a metric.
    """
    _check(run_dirs, metrics, x, band, smoothing)
    runs = _read_runs(run_dirs, metrics, x)
    metrics = _of_policies(metrics, runs)
    keys = [_key(name, runs) for name in group_by] or ["algorithm.name"]
    curves = []
    for env in dict.fromkeys(run.env for run in runs):
        groups = _groups([run for run in runs if run.env == env], keys)
        _warn_of_differences(groups, keys, x)
        for metric in metrics:
            curves += [_curve(name, group, metric, x, BANDS[band], smoothing) for name, group in groups.items()]
    return curves


def _of_policies(metrics: Sequence[str], runs: Sequence[_Run]) -> list[str]:
    """Return the metrics with each policy's return in place of "episode_return", where several play in all runs."""
    policies = [dict.fromkeys(key.split(".")[1] for key in run.config if key.startswith("policies.")) for run in runs]
    if any(names != policies[0] for names in policies) or not policies[0]:
        return list(metrics)
    returns = [f"{name}/episode_return" for name in policies[0]]
    return [name for metric in metrics for name in (returns if metric == "episode_return" else [metric])]


def smoothing_window(values: Array, part: float) -> int:
    """Return how many values a point averages: this part of them, or one if they only rise or only fall, as counts."""
    changes = np.diff(values)
    return 1 if (changes >= 0).all() or (changes <= 0).all() else max(1, round(part * len(values)))


def smooth(values: Array, window: int) -> Array:
    """Return the centred moving average `[n]`, whose window is cut off at the ends."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def series(rows: Iterable[dict[str, float]], metric: str, x: str = "steps") -> tuple[Array, Array]:
    """Return the finite values of an axis of `X_AXES`, in rising order, and of a metric, both `[n]`."""
    of_steps = X_AXES[x] == "env_steps"
    places = (steps_of(row) if of_steps and X_AXES[x] in row else row.get(X_AXES[x], np.nan) for row in rows)
    pairs = [(place, row.get(metric, np.nan)) for place, row in zip(places, rows, strict=True)]
    values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    values = values[(np.abs(values) <= _MAX_SHOWN).all(1)]
    values = values[np.argsort(values[:, 0], kind="stable")]
    return values[:, 0], values[:, 1]


def _check(run_dirs: Sequence[Any], metrics: Sequence[str], x: str, band: str, smoothing: float) -> None:
    if not run_dirs:
        raise refusal("run_dirs", "at least one directory", list(run_dirs))
    if not metrics or isinstance(metrics, str):
        raise refusal("metrics", "a sequence of at least one name", metrics)
    for name, value, choices in (("x", x, X_AXES), ("band", band, BANDS)):
        check_choice(name, value, choices)
    if not 0 <= smoothing <= 1:
        raise refusal("smoothing", "from 0 to 1, a part of a run's updates", smoothing)


def _read_runs(run_dirs: Sequence[str | os.PathLike[str]], metrics: Sequence[str], x: str) -> list[_Run]:
    runs: list[_Run] = []
    failures: list[ValueError] = []
    for path in run_dirs:
        try:
            runs.append(_read_run(path, metrics, x))
        except ValueError as error:
            if not os.path.exists(path):
                raise
            failures.append(error)
    if not runs:
        raise failures[0]
    for failure in failures:
        warnings.warn(f"left out: {failure}", stacklevel=4)
    return runs


def _read_run(path: str | os.PathLike[str], metrics: Sequence[str], x: str) -> _Run:
    """Return a run whose metrics have a value. Raises ValueError for any other."""
    folder = open_run(path).path
    recorded = read_config(folder)
    config = flat_config(recorded)
    missing = [name for name in ("env", "algorithm.name") if name not in config]
    if missing:
        raise ValueError(f"config.json is damaged: it has no {missing[0]}. Received: run_dir={str(path)!r}")
    run = _Run(str(path), str(config["env"]), config, read_metrics(folder), recorded.changes)
    for metric in metrics:
        known = {metric, X_AXES[x]} <= run.names.keys() or metric in _OF_EPISODES
        if known and not len(series(run.rows, metric, x)[0]):
            raise ValueError(f"The metric has no value yet in {run.path!r}. Received: metric={metric!r}")
    return run


def _key(name: str, runs: Sequence[_Run]) -> str:
    """Return the full name of a key of config.json: "learning_rate" -> "algorithm.learning_rate"."""
    known = dict.fromkeys(key for run in runs for key in run.config)
    for key in (name, f"algorithm.{name}", f"{name}.name"):
        if key in known:
            return key
    hint = close_match(name, known)
    raise ValueError(f"`group_by` must name entries of config.json{hint}. Received: group_by={name!r}")


def _groups(runs: Sequence[_Run], keys: Sequence[str]) -> dict[str, list[_Run]]:
    """Return runs by their common values; in rising order of numbers, else in the order of `runs`."""
    groups: dict[tuple[Value, ...], list[_Run]] = {}
    for run in runs:
        values = (run.config.get(key, "none") for key in keys)
        groups.setdefault(tuple(str(it) if isinstance(it, bool) else it for it in values), []).append(run)  # True is 1
    if all(isinstance(value, int | float) for values in groups for value in values):
        groups = dict(sorted(groups.items()))
    for digits in (4, 8, 17):  # as few as tell the groups apart
        names = [_group_name(keys, values, digits) for values in groups]
        if len(set(names)) == len(groups):
            break
    return dict(zip(names, groups.values(), strict=True))


def _group_name(keys: Sequence[str], values: Sequence[Value], digits: int) -> str:
    texts = [f"{value:.{digits}g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(
        algorithm_title(text) if key == "algorithm.name" else f"{key.rpartition('.')[2]}={text}"
        for key, text in zip(keys, texts, strict=True)
    )


_OF_SPEED = frozenset(
    field.name
    for field in dataclasses.fields(TrainConfig)
    if field.metadata["owner"] != "run" and field.metadata["group"] not in ("faults", "environment")
)
"""Settings that change when a return is reached, also those that don't change which."""


def _warn_of_differences(groups: dict[str, list[_Run]], keys: Sequence[str], x: str) -> None:
    """Warn of groups whose runs differ in other settings than the seed."""
    aside = (WITHOUT_EFFECT - (_OF_SPEED if x == "seconds" else frozenset())) | {"seed", *keys}
    for name, runs in groups.items():
        known = dict.fromkeys(key for run in runs for key in run.config if key.partition(".")[0] not in aside)
        differ = [key for key in known if len({repr(run.config[key]) for run in runs if key in run.config}) > 1]
        differ.sort(key=names_of(TrainConfig, "pace").__contains__)  # the one that matters is first
        if differ:
            warnings.warn(
                f"the {len(runs)} runs of {runs[0].env} in one curve, {name}, differ in {', '.join(differ[:5])}: "
                f"group_by separates them (--group-by {differ[0]})",
                stacklevel=3,
            )


def _curve(name: str, runs: Sequence[_Run], metric: str, x: str, band: Band, smoothing: float) -> Curve:
    """Return middle and band on a grid inside the range of every run."""
    each = [_smoothed(run, metric, x, smoothing) for run in runs]
    first = max(places[0] for places, _, _ in each)
    last = min(places[-1] for places, _, _ in each)
    if last < first:
        raise ValueError(f"The runs of {runs[0].env} with {name} have no range of {x} in common, so they have no mean")
    earliest, longest = min(places[0] for places, _, _ in each), max(places[-1] for places, _, _ in each)
    if first - earliest > 0.2 * (last - earliest):
        warnings.warn(
            f"the curve of {runs[0].env} with {name} begins where its last run does, at {first:,.0f} {x}; "
            f"the first begins at {earliest:,.0f}",
            stacklevel=3,
        )
    if longest > 1.2 * last:
        warnings.warn(
            f"the curve of {runs[0].env} with {name} ends where its shortest run does, at {last:,.0f} {x}; "
            f"the longest goes on to {longest:,.0f}",
            stacklevel=3,
        )
    grid = np.linspace(first, last, _POINTS)
    values = np.stack([np.interp(grid, places, values) for places, values, _ in each])
    low, high = band.edges(values)
    smoothed = any(window > 1 for *_, window in each)
    places = [(steps_of(each) if x == "steps" else each.get(X_AXES[x]), each) for run in runs for each in run.changes]
    changes = tuple((place, change_text(each)) for place, each in places if isinstance(place, int | float))
    return Curve(runs[0].env, metric, name, len(runs), grid, band.middle(values), low, high, smoothed, changes)


def _smoothed(run: _Run, metric: str, x: str, smoothing: float) -> tuple[Array, Array, int]:
    names = run.names
    for name in (metric, X_AXES[x]):
        if name not in names:
            hint = close_match(name, names) or f"; it has {', '.join(names)}"
            raise ValueError(f"The run {run.path!r} has no such metric{hint}. Received: metric={name!r}")
    places, values = series(run.rows, metric, x)
    window = smoothing_window(values, smoothing)
    return places, smooth(values, window), window
