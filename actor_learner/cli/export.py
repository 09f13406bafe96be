"""`actor-learner export`: a trained policy in a format for use elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

HELP = "write a trained policy for use elsewhere"
DESCRIPTION = "Writes the policy that a run has learned, with its spaces as JSON, into a new folder."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="directory of a run that has ended, RUN@best, or hf://owner/name"
    )
    parser.add_argument(
        "--format",
        default="litert",
        metavar="{litert,tflite,keras,onnx,saved_model}",
        help="litert: for al.load_policy, with NumPy and ai-edge-litert only; the others map raw observations to the "
        "actions that environments take (default: litert)",
    )
    parser.add_argument("--output", metavar="DIR", help="a new folder (default: ./RUN-FORMAT)")


def run(arguments: argparse.Namespace) -> int:
    """Write the policy, and print its path."""
    from actor_learner.export import export

    print(export(arguments.run_dir, arguments.output, format=arguments.format))
    return 0
