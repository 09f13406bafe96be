"""`actor-learner doctor`: whether all is well with an installation and its machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

NOT_WELL = 1


def add_parser(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="whether all is well here, for a bug report",
        description="Prints versions, CPU, GPU, memory and limits, and trains for two seconds, in a form to paste into "
        "a bug report. Exit code 1 if something is wrong.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-self-test", action="store_true", help="don't train, so that TensorFlow isn't loaded nor asked for GPUs"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner doctor`: prints what it found; exit code 1 if something is wrong."""
    from actor_learner.cli.diagnosis import examine

    if not arguments.no_self_test and sys.stderr.isatty():
        print("Loading TensorFlow and training for two seconds ...", file=sys.stderr)
    diagnosis = examine(self_test=not arguments.no_self_test)
    print(json.dumps(diagnosis.as_json()) if arguments.json else diagnosis.as_markdown())
    return NOT_WELL if diagnosis.problems else 0
