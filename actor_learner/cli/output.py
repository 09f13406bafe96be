"""Output that commands have in common: warnings, progress, the next command, a result's origin."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from actor_learner.cli.parser import in_flags


def warn(message: object) -> None:
    """Print a warning in one line."""
    print(_format_warning(message), file=sys.stderr, end="")


@contextlib.contextmanager
def one_line_warnings(argv: Sequence[str]) -> Iterator[None]:
    """Print Python's warnings in a shell's words, without their line of code, which says nothing there.

    argv: the command's words.
    """
    original = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: _format_warning(in_flags(str(message), argv))
    try:
        yield
    finally:
        warnings.formatwarning = original


def _format_warning(message: object) -> str:
    return f"actor-learner: warning: {message}\n"


@contextlib.contextmanager
def progress(*, quiet: bool = False, stages: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function that shows a stage, and its detail, in one line of a terminal on standard error.

    stages: without a terminal, print each stage once.
    """
    is_terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
    shown: set[str] = set()

    def say(stage: str, detail: str = "") -> None:
        if is_terminal:
            text = f"{': '.join(filter(None, (stage, detail)))} ..."
            print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        elif stages and not quiet and stage not in shown:
            print(stage, file=sys.stderr, flush=True)
        shown.add(stage)

    try:
        yield say
    finally:
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def origin(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the command that made a result, the date, versions and machine, for its JSON."""
    from actor_learner.runs.recorded_config import provenance

    typed = shlex.join(["actor-learner", command, *argv])
    return {"command": typed, "date": datetime.date.today().isoformat(), **provenance()}
