"""`actor-learner completion`: a script by which a shell completes commands, flags and their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from actor_learner.algorithms import BY_NAME
from actor_learner.cli.parser import Commands, make_parser
from actor_learner.config.presets import PRESETS
from actor_learner.system.installation import check_package

SHELLS = ("bash", "zsh", "fish", "tcsh")

HELP = "print a script for completion in a shell"
DESCRIPTION = "Prints a script by which a shell completes commands, flags, files and names."
EPILOG = """\
for the current bash:
  eval "$(actor-learner completion bash)"
for every bash:
  actor-learner completion bash \\
    > ~/.local/share/bash-completion/completions/actor-learner
for every zsh, in a folder of $fpath:
  actor-learner completion zsh > _actor-learner
"""


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to print a script for")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    check_package("shtab", "`completion`", "completion")
    import shtab

    print(shtab.complete(_parser(arguments.commands), arguments.shell))
    return 0


def _parser(commands: Commands) -> argparse.ArgumentParser:
    """Return the command line's parser, with every algorithm's hyperparameters, and file and name arguments marked."""
    parser, parsers = make_parser(commands, ["train"])
    known = {flag for action in parsers["train"]._actions for flag in action.option_strings}
    for name in BY_NAME:
        for action in make_parser(commands, ["train", "--algorithm", name])[1]["train"]._actions:
            if not known & {*action.option_strings} and action.option_strings:
                known |= {*action.option_strings}
                parsers["train"]._add_action(action)
    for command in parsers.values():
        for action in command._actions:
            _mark(action)
    return parser


def _mark(action: argparse.Action) -> None:
    import shtab

    names = {"ENV": _ids(), "--algorithm": [*BY_NAME], "--preset": ["none", *_ids()]}
    metavar = str(action.metavar or "")
    if metavar.endswith(("DIR", "FILE")):
        action.complete = shtab.DIRECTORY if metavar.endswith("DIR") else shtab.FILE  # type: ignore[attr-defined]
    elif metavar.startswith("{"):
        action.choices = metavar.strip("{}").split(",")
    elif choices := next((names[name] for name in (metavar, *action.option_strings) if name in names), None):
        action.choices = choices


def _ids() -> list[str]:
    return [name for name in PRESETS if not name.endswith("*")]
