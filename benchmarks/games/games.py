"""Trains a board game by self-play and judges the final policy: against random, minimax and perfect players.

    scripts/measure games --game tictactoe --seeds 0 1 2 --output benchmarks/games/games.json          # 10 minutes
    scripts/measure games --game connect_four --seeds 0 1 2 --output benchmarks/games/games.json       # 40 minutes

A seed that the file has is left out. A run that was interrupted goes on. Wins, draws and losses are shares of all
games, half of them in each seat; opponents and, where it says so, the policy sample their actions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import actor_learner as al
from benchmarks.harness import Figures, make_parser, origin, write

GAMES: dict[str, Figures] = {
    "tictactoe": {
        "env": "pettingzoo:classic/tictactoe-v3",
        "opponents": {"random": 1000, "benchmarks.games.players:perfect_tic_tac_toe": 1000},
        "ways": ["greedy", "sampled"],
    },
    "connect_four": {
        "env": "pettingzoo:classic/connect_four-v3",
        "opponents": {
            "random": 1000,
            "benchmarks.games.players:minimax1": 400,
            "benchmarks.games.players:minimax2": 400,
            "benchmarks.games.players:minimax4": 100,
        },
        "ways": ["sampled", "greedy"],
    },
}


def main() -> None:
    parser = make_parser("games", __doc__ or "", seeds=[0, 1, 2])
    parser.add_argument("--game", choices=GAMES, default="tictactoe")
    parser.add_argument("--runs", type=Path, default=Path("runs/games"), help="folder of the runs")
    arguments = parser.parse_args()
    exists = arguments.output is not None and arguments.output.exists()
    games: Figures = json.loads(arguments.output.read_text())["games"] if exists else {}
    rows = games.setdefault(arguments.game, [])
    for seed in arguments.seeds:
        if any(row["seed"] == seed for row in rows):
            continue
        rows.append(measure(arguments.game, seed, arguments.runs))
        print(json.dumps(rows[-1]), flush=True)
        write({**origin(parser), "games": games}, arguments.output)


def measure(game: str, seed: int, runs: Path) -> Figures:
    """Train one seed, and let its policy play."""
    settings = GAMES[game]
    folder = runs / f"{game}-{seed}"
    config = al.preset(settings["env"], seed=seed, run_dir=folder, quiet=not sys.stdout.isatty())
    al.train(config, resume=(folder / "config.json").exists())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    played = {
        f"{opponent.rpartition(':')[2]}, {way}": judge(folder, opponent, games, way == "greedy")
        for opponent, games in settings["opponents"].items()
        for way in settings["ways"]
    }
    return {
        "seed": seed,
        "decisions": last["env_steps"],
        "seconds": round(last["time_seconds"], 1),
        "rating": last.get("league/rating"),
        "played": played,
    }


def judge(run: Path, opponent: str, games: int, greedy: bool) -> dict[str, Any]:
    """Return the shares of games that the policy won, drew and lost."""
    found = al.evaluate(run, opponent=opponent, episodes=games, num_envs=20, deterministic=greedy, seed=12345)
    outcome = found.info["outcome"]
    shares = {"won": outcome == 1, "drawn": outcome == 0.5, "lost": outcome == 0}
    return {"games": len(outcome), **{name: round(float(np.mean(share)), 4) for name, share in shares.items()}}
