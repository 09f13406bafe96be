"""`actor-learner push`: a run on the Hugging Face Hub."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

from actor_learner.cli.evaluate import ENVIRONMENT, add_environment
from actor_learner.cli.flags import add_number
from actor_learner.system.keras_import import keras_backend

HELP = "share a trained policy on the Hugging Face Hub"
DESCRIPTION = (
    "Evaluates the policy of a run, and uploads it to the Hugging Face Hub in one commit: policy, network, settings, "
    "metrics, learning curve, a video and a model card. The token comes from `hf auth login` or HF_TOKEN."
)


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run that has ended, or RUN@best")
    parser.add_argument("repo", metavar="OWNER/NAME", help="repository, which is made if it isn't there")
    group = parser.add_argument_group("repository")
    group.add_argument("--private", action="store_true", help="make the repository private")
    branch = "branch to push to, which is made if it isn't there (default: the main one)"
    group.add_argument("--revision", metavar="BRANCH", help=branch)
    group.add_argument("--commit-message", metavar="TEXT", help="first line of the commit")
    group.add_argument("--no-video", dest="video", action="store_false", help="record no episode")
    group = parser.add_argument_group("evaluation")
    add_number(group, "--episodes", 20, "N", "number of episodes")
    add_number(group, "--seed", 0, "N", "seed of the episodes")
    add_environment(group)


def run(arguments: argparse.Namespace) -> int:
    """Push the run, and print its address."""
    keras_backend()
    from actor_learner.push import push

    names = ("private", "revision", "commit_message", "video", "episodes", "seed", *ENVIRONMENT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium\.")  # of recording
        print(push(arguments.run_dir, arguments.repo, **{name: getattr(arguments, name) for name in names}))
    return 0
