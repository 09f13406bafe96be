"""`actor-learner export`: a trained policy to use elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def add_parser(commands: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a trained policy to use it elsewhere",
        description="Writes the policy that a run has learned into a new folder, with its spaces as JSON.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run that has ended")
    parser.add_argument(
        "--format",
        default="litert",
        metavar="{litert,keras,onnx,saved_model}",
        help="litert: for al.load_policy, needs NumPy and ai-edge-litert alone; the others take raw observations and "
        "give the actions that environments take (default: litert)",
    )
    parser.add_argument("--output", metavar="DIR", help="a folder that isn't there yet (default: ./RUN-FORMAT)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """`actor-learner export`: writes the policy of a run."""
    from actor_learner.export import export

    print(export(arguments.run_dir, arguments.output, format=arguments.format))
    return 0
