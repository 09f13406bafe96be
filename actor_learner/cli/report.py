"""`actor-learner report`: a run in one HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def add_parser(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="describe a run in one HTML file",
        description="Writes one HTML file about a run: curves, where the time went, what happened, how to repeat it.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run, which may still be going")
    parser.add_argument("--output", metavar="FILE", help="the file, .html (default: RUN_DIR/report.html)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner report`: describes a run in one HTML file."""
    from actor_learner.reports.report import report

    print(report(arguments.run_dir, arguments.output))
    return 0
