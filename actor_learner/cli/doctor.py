"""`actor-learner doctor`: a check of the installation and its machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

HELP = "check this installation, for a bug report"
DESCRIPTION = (
    "Trains for two seconds, and prints versions, CPU, GPU, memory and limits for a bug report. With --ray, starts an "
    "actor on each machine of a cluster. The exit code is 1 if there is a problem."
)


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-self-test", action="store_true", help="don't train: Keras isn't loaded, and GPUs aren't listed"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="examine the machines of a Ray cluster, too: auto or host:port"
    )
    parser.add_argument("--env", help="environment of the actors there (default: CartPole-v1)")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; the exit code is 1 if there is a problem."""
    from actor_learner.cli.diagnosis import examine

    if arguments.env is not None and arguments.ray is None:
        raise ValueError(f"`--env` is of the actors on a cluster: it needs `--ray`. Received: --env {arguments.env}")
    if not arguments.no_self_test and sys.stderr.isatty():
        print("Loading Keras and training for two seconds ...", file=sys.stderr)
    diagnosis = examine(
        self_test=not arguments.no_self_test, ray_address=arguments.ray, env=arguments.env or "CartPole-v1"
    )
    print(json.dumps(diagnosis.as_json()) if arguments.json else diagnosis.as_markdown())
    return 1 if diagnosis.problems else 0
