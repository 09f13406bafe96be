"""The command line: `actor-learner COMMAND`, a module for each; the flags of `train` are derived from dataclasses.

`--help`, `watch`, `plot`, `report` and every refused argument leave TensorFlow unloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from actor_learner.cli import benchmark, completion, doctor, evaluate, export, plot, report, train, tune, watch
from actor_learner.cli.flags import Formatter
from actor_learner.system.fields import close_match
from actor_learner.system.version import __version__

REFUSED = 2
INTERRUPTED = 130

_NEGATIVE_NUMBER = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|-inf", re.IGNORECASE)
_WITH_CONFIG = {"train": train, "benchmark": benchmark, "tune": tune}
"""Commands whose flags depend on the algorithm."""
_OTHER_COMMANDS = {
    "watch": watch,
    "evaluate": evaluate,
    "plot": plot,
    "report": report,
    "export": export,
    "doctor": doctor,
    "completion": completion,
}

_EXAMPLES = """\
examples:
  actor-learner train CartPole-v1         it says what to type next
  actor-learner train HalfCheetah-v5 --num-actors 4 --seed 1
  actor-learner evaluate runs/CartPole-v1/ppo-0-1 --table
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        Exit code: 0; 2 with a line on stderr where something was refused or failed; 130 after Ctrl-C.
    """
    _open_closed_streams()
    if os.getcwd() not in sys.path and not os.path.exists("config.json"):  # a run may come from a stranger
        sys.path.append(os.getcwd())  # for module:factory; last, so that it shadows nothing
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"actor-learner: interrupted; {interrupt.args[0]}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader went away: nothing is left to flush
        return 1
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if not _is_ours(error):
            raise
        print(f"actor-learner: error: {error}", file=sys.stderr)
        return REFUSED


def _open_closed_streams() -> None:
    """Standard streams that were closed lead nowhere, so that no other file gets their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest that is free: this one
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, open(descriptor, mode, errors="backslashreplace", closefd=False))  # noqa: SIM115


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments -> a namespace of those that were given, and the command's function as `command`.

    Raises ValueError, in one line, for what can't be understood; `--help` exits.
    """
    argv = _join_negative_numbers(argv)
    parser, options = make_parser(argv)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [flag for action in options[argv[0]]._actions for flag in action.option_strings]
        raise _refused_argument(unknown, flags)
    return arguments


def make_parser(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser for these arguments (some flags depend on the algorithm), and those of its commands."""
    parser = _Parser(prog="actor-learner", description="The actor-learner for Keras 3.", epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    options = {name: module.add_parser(commands, argv) for name, module in _WITH_CONFIG.items()}
    options |= {name: module.add_parser(commands) for name, module in _OTHER_COMMANDS.items()}
    return parser, options


def _refused_argument(unknown: Sequence[str], flags: Sequence[str]) -> ValueError:
    flag = next((word for word in unknown if word.startswith("-")), None)
    if flag is None:
        return ValueError(f"There is an argument too many; --help says what there may be. Received: {unknown[0]}")
    name = flag.partition("=")[0]
    hint = close_match(name, flags)
    if not hint and "--env-kwargs" in flags:
        hint = " (an environment's own arguments go into --env-kwargs)"
    return ValueError(f"There is no such flag{hint}; --help lists all. Received: {name}")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it. Flags are never abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Formatter, **options})

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"(?:argument )?(\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            choices = [choice.strip(" '") for choice in match[3].split(",")]
            hint = close_match(match[2], choices)
            message = f"{match[1]} must be one of {', '.join(choices)}{hint}. Received: {match[2]}"
        elif "required" in message or "expected" in message:
            message = f"{message}; --help says what it is. Received: none"
        raise ValueError(message)


def _join_negative_numbers(argv: Sequence[str]) -> list[str]:
    """`--flag -1e-3` -> `--flag=-1e-3`: argparse takes that for a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and _NEGATIVE_NUMBER.fullmatch(word):
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised it, with a line of its own; the traceback of anything else is worth showing."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = str(frames[-1][0].f_globals.get("__package__")) if frames else ""
    return package.partition(".")[0] == "actor_learner"
