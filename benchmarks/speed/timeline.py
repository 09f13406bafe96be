"""Trains in this process, and notes when each part of it was done for the first time: wall and CPU seconds.

    STARTED=SECONDS python timeline.py MARKS.json [ARGUMENTS of `actor-learner train`]

startup.py runs it with the package of any commit: it imports nothing else, and skips functions that don't exist.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POOL = "actor_learner.actors.pool actor_learner.pool"
BEFORE_TENSORFLOW = (
    ("actor_learner.system.keras_import", "import_keras", "TensorFlow and Keras imported"),
    ("actor_learner.cli", "parse", "command read"),
    ("actor_learner.actors.processes.group", "ProcessActors.spaces", "actors ready"),
    (POOL, "_build_network", "network built"),
    (POOL, "_export", "policy exported"),
    (POOL, "ActorPool.__init__", "actors begun"),
    (POOL, "ActorPool.collect", "first batch"),
    (
        "actor_learner.reports.watch actor_learner.reports.progress actor_learner.progress",
        "Progress.update",
        "first progress line",
    ),
    ("actor_learner.runs.recorder actor_learner.recorder", "Recorder.checkpoint", "first checkpoint"),
    ("actor_learner.runs.recorder actor_learner.recorder", "Recorder.close", "last update, last checkpoint"),
    ("actor_learner.build", "save_result", "network and policy saved"),
)
IMPORTS_TENSORFLOW = (POOL, "_import_learner_side")
WITH_TENSORFLOW = (
    ("actor_learner.learner.update", "Update.__call__", "update traced"),
    ("actor_learner.learner.learner actor_learner.learner", "Learner.update", "first update done"),
)
"""Modules by their names in any commit, newest first, a function, and the mark that it leaves when it returns."""


def main() -> None:
    marks_file, *flags = sys.argv[1:]
    started = float(os.environ["STARTED"])
    marks: dict[str, list[float]] = {}

    def note(name: str) -> None:
        marks.setdefault(name, [time.monotonic() - started, time.process_time()])

    def observe_learner() -> None:
        while pending:
            *function, name = pending.pop()
            call_after(*function, functools.partial(note, name))

    pending = list(WITH_TENSORFLOW)
    note("interpreter")
    for *function, name in BEFORE_TENSORFLOW:
        call_after(*function, functools.partial(note, name))
    call_after(*IMPORTS_TENSORFLOW, observe_learner)
    status = importlib.import_module("actor_learner.cli").main(["train", *flags])
    Path(marks_file).write_text(json.dumps(marks))
    sys.exit(status)


def call_after(modules: str, path: str, action: Callable[[], None]) -> None:
    """Call `action` whenever the function at `path` in the first of these modules returns, if there is such a one."""
    owner, _, last = path.rpartition(".")
    for module in modules.split():
        with contextlib.suppress(ImportError, AttributeError):
            home = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
            original = getattr(home, last)
            break
    else:
        return

    def observed(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        action()
        return result

    setattr(home, last, observed)


if __name__ == "__main__":
    main()
