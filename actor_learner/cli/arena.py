"""`actor-learner arena`: a round robin among trained policies and other players of a game."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actor_learner.cli.flags import add_number, json_object
from actor_learner.reports.plot import checked_output
from actor_learner.system.installation import check_package
from actor_learner.system.keras_import import keras_backend

if TYPE_CHECKING:
    from actor_learner.arena import Standings

HELP = "let trained policies play games against each other"
DESCRIPTION = "Lets each pair of players play a game, and rates them on Elo's scale, the random player being 0."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    players = "runs (directories, or hf://owner/name), random, or module:player; NAME=PLAYER names one"
    parser.add_argument("players", nargs="+", metavar="PLAYER", help=players)
    add_number(parser, "--games", 100, "N", "games of each pair")
    add_number(parser, "--seed", 0, "N", "seed of the games")
    parser.add_argument("--env", metavar="ENV", help="the game (default: that of the first run)")
    env_kwargs = "keyword arguments of the game (default: the run's)"
    parser.add_argument("--env-kwargs", type=json_object, metavar="JSON", help=env_kwargs)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="draw ratings and scores: .png, .svg, .pdf")


def run(arguments: argparse.Namespace) -> int:
    """Play the games, and print the standings."""
    if arguments.plot is not None:
        check_package("matplotlib", "a picture of standings", "plots")
        checked_output(arguments.plot, "plot")
    keras_backend()
    from actor_learner.arena import arena

    standings = arena(
        _named(arguments.players),
        env=arguments.env,
        games=arguments.games,
        seed=arguments.seed,
        env_kwargs=arguments.env_kwargs,
    )
    print(json.dumps(standings.to_json()) if arguments.json else _as_text(standings))
    if arguments.plot is not None:
        from actor_learner.reports.plot import plot_standings

        print(plot_standings(standings.to_json(), arguments.plot))
    return 0


def _named(texts: Sequence[str]) -> dict[str, str]:
    """Return the players, by name if one has a name. Raises ValueError for a repeated name."""
    pairs = [("", "", text) if os.path.exists(text) else text.rpartition("=") for text in texts]
    names = [name or player for name, _, player in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"Players must have different names, NAME=PLAYER. Received: {repeated[0]} twice")
    return {name: player for name, (_, _, player) in zip(names, pairs, strict=True)}


def _as_text(standings: Standings) -> str:
    """Return a line for each player, the best first: rating, its interval, and the scores against the others."""
    order = sorted(range(len(standings.names)), key=lambda player: -standings.ratings[player])
    header = ["", "player", "rating", "95%", *(f"vs {rank}" for rank in range(1, len(order) + 1))]
    rows = [header]
    for rank, player in enumerate(order, 1):
        low, high = standings.intervals[player]
        scores = [standings.scores[player][other] for other in order]
        cells = ["" if math.isnan(score) else f"{score:.0%}" for score in scores]
        rating, interval = f"{standings.ratings[player]:+.0f}", f"{low:+.0f} to {high:+.0f}"
        rows.append([str(rank), standings.names[player], rating, interval, *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    cells[1] = row[1].ljust(widths[1])
    return "  ".join(cells).rstrip()
