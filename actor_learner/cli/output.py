"""Output that commands have in common: warnings, what to type next, how a result was made."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def warn(message: object) -> None:
    """Print a warning in one line."""
    print(_format_warning(message), file=sys.stderr, end="")


@contextlib.contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print Python's warnings without their line of code, which says nothing at a shell."""
    original = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: _format_warning(message)
    try:
        yield
    finally:
        warnings.formatwarning = original


def _format_warning(message: object) -> str:
    return f"actor-learner: warning: {message}\n"


def own_command() -> str:
    """Return what to type to get this command: its name if the shell finds it, else its path."""
    if shutil.which("actor-learner"):
        return "actor-learner"
    path = Path(sys.prefix) / "bin" / "actor-learner"
    return os.path.relpath(path) if path.is_relative_to(os.getcwd()) else str(path)


def origin(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the command that made a result, the date, versions and machine, for its JSON."""
    from actor_learner.runs.provenance import provenance

    typed = shlex.join(["actor-learner", command, *argv])
    return {"command": typed, "date": datetime.date.today().isoformat(), **provenance()}
