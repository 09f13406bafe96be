"""`actor-learner watch`: the live view of another process's run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from actor_learner.cli.flags import add_number

HELP = "show the progress of a run in another process"
DESCRIPTION = "Shows a run, live until it ends, or as it ended. Only reads the run's files."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    add_number(parser, "--interval", 1.0, "X", "seconds between two updates of the view")


def run(arguments: argparse.Namespace) -> int:
    """Show a run until it ends."""
    from actor_learner.reports.watch import watch

    watch(arguments.run_dir, arguments.interval)
    return 0
