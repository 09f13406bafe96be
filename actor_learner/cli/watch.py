"""`actor-learner watch`: the live view of a run that another process does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from actor_learner.cli.flags import converter


def add_parser(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "watch",
        help="show a run of another process",
        description="Shows a run, live until it ends, or as it ended. Reads its files alone, and writes none.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(
        "--interval", type=converter(float), default=1.0, metavar="X", help="seconds between two looks (default: 1)"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner watch`: shows a run until it ends."""
    from actor_learner.reports.watch import watch

    watch(arguments.run_dir, arguments.interval)
    return 0
