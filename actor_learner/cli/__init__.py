"""The command line: `actor-learner COMMAND`, a module for each; the flags of `train` are derived from dataclasses.

`--help`, `watch`, `plot`, `report` and every refused argument leave TensorFlow unloaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from actor_learner.cli import parser
from actor_learner.cli.output import one_line_warnings
from actor_learner.cli.parser import in_flags
from actor_learner.system.aborts import exit_with, show_stacks
from actor_learner.system.keras_import import QuietTensorFlow

REFUSED = 2
INTERRUPTED = 130

_NAMES = [name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]
_NAMES.sort(key=lambda name: (name != "train", name))
_MODULES = {name: importlib.import_module(f"{__name__}.{name}") for name in _NAMES}
COMMANDS = {name: module for name, module in _MODULES.items() if hasattr(module, "HELP")}
"""Each module of this folder that has HELP is a command of its name."""


def run() -> NoReturn:
    """Run the command that this process was started for, and end the process."""
    show_stacks()
    sys.meta_path.insert(0, QuietTensorFlow())
    exit_with(main)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code: 0; 2, with a line on stderr, after a failure; 130 after Ctrl-C."""
    _open_closed_streams()
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as `import_keras` does, before modules of one's own
    # The working directory comes last, so that it shadows nothing; never a run's, which may be someone else's.
    if os.getcwd() not in sys.path and not os.path.exists("config.json"):
        sys.path.append(os.getcwd())
    try:
        arguments = parse(argv)
        command: Callable[[argparse.Namespace], int] = arguments.command
        with one_line_warnings(argv):
            return command(arguments)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"actor-learner: interrupted; {in_flags(str(interrupt.args[0]), argv)}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # keeps Python from flushing to a reader that has gone
        return 1
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError, FloatingPointError) as error:
        if not _is_ours(error):
            raise
        lines = [in_flags(line, argv) for line in (str(error), *getattr(error, "__notes__", ()))]
        print(f"actor-learner: error: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr)
        return REFUSED


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments that were given, and the command's function as `command`; see `parser.parse`."""
    return parser.parse(COMMANDS, argv)


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open returns the lowest free one: this one
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, open(descriptor, mode, errors="backslashreplace", closefd=False))  # noqa: SIM115


def _is_ours(error: BaseException) -> bool:
    """Return True if this package raised the error, in one line; any other error keeps its traceback."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = str(frames[-1][0].f_globals.get("__package__")) if frames else ""
    return package.partition(".")[0] == "actor_learner"
