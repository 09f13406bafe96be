"""`actor-learner plot`: learning curves."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "plot",
        help="draw learning curves",
        description="Draws learning curves; runs of one environment and algorithm as mean, minimum and maximum.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR", help="directories of runs")
    parser.add_argument("--output", default="curve.png", metavar="FILE", help=".png, .svg, .pdf (default: curve.png)")
    parser.add_argument(
        "--metric", default="episode_return", metavar="NAME", help="from metrics.jsonl (default: episode_return)"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner plot`: draws learning curves."""
    from actor_learner.plot import plot

    print(plot(arguments.run_dirs, arguments.output, metric=arguments.metric))
    return 0
