"""Learning curves as pictures: legible in a column of print, for colour-blind readers and in black and white."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.reports.curves import BANDS, SMOOTHING, Curve, read_curves
from actor_learner.system.fields import refusal
from actor_learner.system.installation import check_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

# The palette of Okabe and Ito for colour-blind readers; dashes for print in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_PANEL_SIZE = (5.0, 3.2)  # inches: text of 10 points stays legible when shrunk to a column of 3.3 inches
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "actor_learner",
    "text.parse_math": False,  # a name may have a dollar sign
}
_X_LABELS = {"steps": "env steps", "seconds": "seconds", "updates": "updates"}


def plot(
    run_dirs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    metrics: Sequence[str] = ("episode_return",),
    x: str = "steps",
    group_by: Sequence[str] = (),
    band: str = "range",
    smoothing: float = SMOOTHING,
) -> Path:
    """Draw metrics of runs: a panel for each environment and metric, a curve for each group of runs.

    Args:
        run_dirs: directories of runs, or "hf://owner/name".
        output: the picture, .png, .svg or .pdf.
        metrics: names in metrics.jsonl, which every run must have.
        x: "steps", "seconds" or "updates".
        group_by: keys of config.json with a common value in each group ("algorithm.learning_rate", or
            "learning_rate"); by default the algorithm.
        band: of several runs of a group: "range", "quartiles", "bootstrap" or "none" (see `BANDS`).
        smoothing: the part of a run's updates that a point averages; 0: none.

    Returns:
        The picture's path.

    Raises:
        ValueError: `read_curves` refuses an argument, the format is unknown, or the picture can't be written.
        ImportError: matplotlib isn't installed.
    """
    output = checked_output(output)
    curves = read_curves(run_dirs, metrics, x=x, group_by=group_by, band=band, smoothing=smoothing)
    check_package("matplotlib", "plot", "plots")
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = draw(curves, x=x, band=band, smoothing=smoothing)
        with naming_output(output):
            figure.savefig(output, dpi=200)
    return output


def checked_output(output: str | os.PathLike[str], name: str = "output") -> Path:
    """Return a picture's path. Raises ValueError, naming the argument, for an unknown kind of file."""
    path = Path(output)
    if path.suffix.lower() not in FORMATS:
        raise refusal(name, f"a file name that ends in {', '.join(FORMATS)}", str(path))
    return path


@contextlib.contextmanager
def naming_output(output: Path) -> Iterator[None]:
    """Raise ValueError, naming the argument, where a file can't be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"`output` can't be written: {reason}. Received: output={str(output)!r}") from error


def draw(curves: Sequence[Curve], *, x: str, band: str, smoothing: float) -> Figure:
    """Return a figure with a panel for each environment and metric; a panel repeats no title and legend."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        panels.setdefault((curve.env, curve.metric), []).append(curve)
    figure = Figure(figsize=(_PANEL_SIZE[0], _PANEL_SIZE[1] * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    previous: tuple[str, list[str]] | None = None
    first: dict[str, Axes] = {}  # of each environment, whose x-axis its other panels share
    for ((env, metric), of_panel), axes in zip(panels.items(), all_axes, strict=True):
        _draw_panel(axes, of_panel)
        labels = [curve.label for curve in of_panel]
        if env in first:
            axes.sharex(first[env])
        else:
            axes.set_title(env)
            first[env] = axes
        axes.set_xlabel(_X_LABELS[x])
        if x == "seconds":
            axes.set_xlim(left=0)  # includes the start-up before the first update
        smoothed = any(curve.smoothed for curve in of_panel)
        how = f"\n(moving average, {100 * smoothing:g}% of the updates)" if smoothed else ""
        axes.set_ylabel(metric.replace("_", " ") + how)
        several = any(curve.num_runs > 1 for curve in of_panel)
        if previous != (env, labels):
            axes.legend(frameon=False, title=BANDS[band].description if several else None, title_fontsize="small")
        previous = env, labels
    return figure


def _draw_panel(axes: Axes, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for index, curve in enumerate(curves):
        colour, dashes = COLOURS[index % len(COLOURS)], _DASHES[index % len(_DASHES)]
        axes.plot(curve.x, curve.middle, dashes, color=colour, linewidth=1.8, label=curve.label)
        for place, text in curve.changes:
            axes.axvline(place, color=colour, linestyle=":", linewidth=1)
            axes.text(place, 1, text, fontsize=7, rotation=90, va="top", transform=axes.get_xaxis_transform())
        if (curve.low < curve.high).any():
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)


_MAX_NAME = 28  # characters of a player's name
_MAX_SHOWN = 16  # players whose scores are written into the matrix


def score_table(league: Mapping[str, Any]) -> list[list[str]]:
    """Return the scores of a run by self-play as a table, from `League.to_json`: a row for each player.

    Players are the versions in the pool and the policy after the newest one; opponents are the random player, players
    of one's own and the pool. A cell has the player's score and the number of games.
    """
    if not league:
        return []
    pairs = {(int(a), int(b)): (float(games), float(score)) for a, b, games, score in league["pairs"]}
    pool, newest = [int(number) for number in league["versions"]], int(league["count"]) - 1
    ratings = {int(number): float(rating) for number, rating in league["ratings"]}
    opponents = [*sorted({b for _, b in pairs if b < 0}, reverse=True), *pool]
    header = ["player", "rating", *map(_name, opponents)]
    rows = []
    for player in sorted({*pool, newest}):
        rating = f"{ratings[player]:+.0f}" if player in ratings else ""
        found = [pairs.get((player, opponent)) for opponent in opponents]
        cells = ["" if each is None else f"{each[1] / each[0]:.0%} of {each[0]:,.0f}" for each in found]
        rows.append([_name(player), rating, *cells])
    return [header, *rows]


def _name(number: int) -> str:
    return f"version {number}" if number >= 0 else "random" if number == -1 else f"own player {-1 - number}"


def plot_standings(standings: Mapping[str, Any], output: str | os.PathLike[str]) -> Path:
    """Draw what `Standings.to_json` returns. Returns the picture's path.

    Raises ValueError for a file of an unknown kind, ImportError without matplotlib.
    """
    path = checked_output(output)
    check_package("matplotlib", "a picture of standings", "plots")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ratings, intervals = np.array(standings["ratings"]), np.array(standings["intervals"])
    order = np.argsort(ratings)
    scores = np.array(standings["scores"], float)[np.ix_(order, order)]
    names = [standings["names"][player][-_MAX_NAME:] for player in order]
    places, size = np.arange(len(order)), max(2.5, 0.6 + 0.45 * len(order))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.5 + size, size + 0.6), layout="constrained")
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [4, size]})
        low, high = intervals[order].T
        errors = np.maximum([ratings[order] - low, high - ratings[order]], 0)
        left.errorbar(ratings[order], places, xerr=errors, fmt="o", color=COLOURS[0], capsize=3)
        left.set(
            yticks=places, yticklabels=names, xlabel="rating, with its 95% interval", ylim=(-0.5, len(order) - 0.5)
        )
        left.grid(alpha=0.3)
        right.imshow(scores, cmap="PuOr", vmin=0, vmax=1, origin="lower")
        right.set(xticks=places, yticks=[], title="score, row against column")
        right.set_xticklabels(names, rotation=40, ha="right")
        for row, column in np.argwhere(~np.isnan(scores)) if len(order) <= _MAX_SHOWN else ():
            is_dark = abs(scores[row, column] - 0.5) > 0.3
            text = f"{scores[row, column]:.0%}"
            right.text(column, row, text, ha="center", va="center", color="white" if is_dark else "black", fontsize=9)
        with naming_output(path):
            figure.savefig(path, dpi=200)
    return path
