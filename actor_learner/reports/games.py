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
