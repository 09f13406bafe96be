"""`actor-learner plot`: learning curves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from actor_learner.cli.flags import add_number

_BANDS = ("range", "quartiles", "bootstrap", "none")
_AXES = ("steps", "seconds", "updates")

HELP = "draw learning curves"
DESCRIPTION = "Draws learning curves: a panel for each environment and metric, a curve for each group of runs."


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR", help="directories of runs, or hf://owner/name")
    parser.add_argument("--output", default="curve.png", metavar="FILE", help=".png, .svg, .pdf (default: curve.png)")
    metric = "metrics of metrics.jsonl (default: episode_return)"
    parser.add_argument("--metric", type=_names, default=("episode_return",), metavar="NAME,NAME", help=metric)
    parser.add_argument("--x", choices=_AXES, default="steps", help="unit of the x-axis (default: steps)")
    parser.add_argument(
        "--group-by",
        type=_names,
        default=(),
        metavar="KEY,KEY",
        help="a curve for each value of these entries of config.json, such as algorithm.learning_rate "
        "(default: for each algorithm)",
    )
    parser.add_argument(
        "--band",
        choices=_BANDS,
        default="range",
        help="line and band of several runs. range: mean, minimum to maximum; quartiles: interquartile mean, "
        "quartiles; bootstrap: interquartile mean, its 95%% interval (as rliable); none: mean only (default: range)",
    )
    smoothing = "share of a run's updates that each point averages; 0: no smoothing"
    add_number(parser, "--smoothing", 0.02, "X", smoothing)


def run(arguments: argparse.Namespace) -> int:
    """Draw the curves, and print the picture's path."""
    from actor_learner.reports.plot import plot

    output = plot(
        arguments.run_dirs,
        arguments.output,
        metrics=arguments.metric,
        x=arguments.x,
        group_by=arguments.group_by,
        band=arguments.band,
        smoothing=arguments.smoothing,
    )
    print(output)
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
