"""Pictures of games: ratings with their intervals, and beside them the scores, because ratings hide circles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.reports.plot import COLOURS, STYLE, check_package, checked_output, naming_output

_MAX_NAME = 28  # characters of a player's name
_MAX_SHOWN = 16  # players whose scores are written into the matrix


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
