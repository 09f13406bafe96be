"""`actor-learner report`: a run in one HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

HELP = "describe a run in one HTML file"
DESCRIPTION = "Writes one HTML file about a run: curves, shares of time, events, and the command that repeats it."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run, finished or not, or hf://owner/name")
    output = "the file, .html (default: report.html in RUN_DIR, or here for a run of the Hub)"
    parser.add_argument("--output", metavar="FILE", help=output)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, and print its path."""
    from actor_learner.reports.report import report

    print(report(arguments.run_dir, arguments.output))
    return 0
