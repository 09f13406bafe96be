"""Learning curves of one or several runs, grouped by environment and algorithm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.config import close_match, refusal
from actor_learner.metrics_file import read_metrics
from actor_learner.run_directory import read_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's palette, which colour-blind readers tell apart; the dashes serve those who print in black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_POINTS = 300  # of a curve: as many as a column of print can show
_SMOOTHING = 0.02  # a point is the mean over this part of a run's updates
_PANEL_SIZE = (5.0, 3.2)  # inches: text of 10 points stays legible when shrunk to a column of 3.3 inches
_STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "actor_learner"}


@dataclass(frozen=True)
class Curve:
    """One metric over env steps: mean, minimum and maximum over the seeds of a group, each `[points]`."""

    env: str
    algorithm: str
    num_seeds: int
    env_steps: np.ndarray[Any, Any]
    mean: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]

    @property
    def label(self) -> str:
        """What the legend says."""
        return f"{self.algorithm.upper()} ({self.num_seeds} seeds)" if self.num_seeds > 1 else self.algorithm.upper()


def plot(
    run_dirs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    metric: str = "episode_return",
) -> Path:
    """Draws a metric over env steps: a panel for each environment, a curve for each algorithm.

    Several runs of one environment and algorithm are drawn as their mean, in a band from minimum to maximum.

    Args:
        run_dirs: directories of runs.
        output: the picture; its suffix says which format: .png, .svg or .pdf.
        metric: what to draw, as it stands in metrics.jsonl.

    Returns:
        The picture's path.

    Raises:
        ValueError: no run, no metrics, an unknown metric or format, or a picture that can't be written.
        ImportError: matplotlib isn't installed.
    """
    output = Path(output)
    if output.suffix.lower() not in FORMATS:
        raise ValueError(refusal("output", f"a file name that ends in {', '.join(FORMATS)}", str(output)))
    curves = read_curves(run_dirs, metric)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'actor-learner[plots]'") from error
    envs = list(dict.fromkeys(curve.env for curve in curves))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_PANEL_SIZE[0], _PANEL_SIZE[1] * len(envs)), layout="constrained")
        for env, axes in zip(envs, figure.subplots(len(envs), squeeze=False)[:, 0], strict=True):
            _draw(axes, env, [curve for curve in curves if curve.env == env], metric)
        try:
            figure.savefig(output, dpi=200)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"`output` can't be written: {reason}. Received: output={str(output)!r}") from error
    return output


def read_curves(run_dirs: Sequence[str | os.PathLike[str]], metric: str = "episode_return") -> list[Curve]:
    """The curves of runs, one for each pair of environment and algorithm, in the order in which they came.

    Raises ValueError for a directory without a run, without metrics, or without this metric.
    """
    if not run_dirs:
        raise ValueError(refusal("run_dirs", "at least one directory", list(run_dirs)))
    groups: dict[tuple[str, str], list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = {}
    for run_dir in run_dirs:
        groups.setdefault(_group(run_dir), []).append(_series(run_dir, metric))
    return [_curve(env, algorithm, series) for (env, algorithm), series in groups.items()]


def _group(run_dir: str | os.PathLike[str]) -> tuple[str, str]:
    config = read_config(run_dir)
    env = config["env"]
    return env if isinstance(env, str) else env["callable"], config["algorithm"]["name"].rpartition(":")[2]


def _series(run_dir: str | os.PathLike[str], metric: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A run's (env steps, smoothed metric), where the metric has a value."""
    rows = read_metrics(run_dir)
    names = dict.fromkeys(name for row in rows for name in row)
    if metric not in names:
        raise ValueError(f"The run has no metric of this name{close_match(metric, names)}. Received: metric={metric!r}")
    steps = np.array([row["env_steps"] for row in rows], dtype=float)
    values = np.array([row.get(metric, np.nan) for row in rows], dtype=float)
    present = np.isfinite(values)
    if not present.any():
        raise ValueError(f"The metric has no value yet in {str(run_dir)!r}. Received: metric={metric!r}")
    return steps[present], smooth(values[present], max(1, round(_SMOOTHING * present.sum())))


def smooth(values: np.ndarray[Any, Any], window: int) -> np.ndarray[Any, Any]:
    """Centred moving average `[n]`; near the ends over the part of the window that is there."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def _curve(env: str, algorithm: str, series: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> Curve:
    """Mean, minimum and maximum on a grid of env steps that all runs of the group have."""
    first = max(steps[0] for steps, _ in series)
    last = min(steps[-1] for steps, _ in series)
    if last < first:
        raise ValueError(f"The runs of {env} with {algorithm} have no env steps in common, so they have no mean")
    grid = np.linspace(first, last, _POINTS)
    values = np.stack([np.interp(grid, steps, values) for steps, values in series])
    return Curve(env, algorithm, len(series), grid, values.mean(0), values.min(0), values.max(0))


def _draw(axes: Axes, env: str, curves: list[Curve], metric: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for index, curve in enumerate(curves):
        colour, dashes = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
        axes.plot(curve.env_steps, curve.mean, dashes, color=colour, linewidth=1.8, label=curve.label)
        if curve.num_seeds > 1:
            axes.fill_between(curve.env_steps, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.set_title(env)
    axes.set_xlabel("env steps")
    axes.set_ylabel(metric.replace("_", " "))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
