"""RUN_DIR/logs/run.log: the events of a run, through the standard logger "actor_learner"."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from actor_learner.system.files import open_plain

LOG_FILE = "run.log"
ENDED_BY = "the run ended: "
"""What stands before the error that ends a run, in the last record of its log."""


@contextlib.contextmanager
def run_log(folder: Path, *, verbose: bool = False) -> Iterator[None]:
    """Append log records to run.log in `folder` while entered, and show warnings at the terminal.

    The file is created with its first line. If the program has set up logging itself, its handlers show the warnings.
    With `verbose`, the terminal shows information, too.
    """
    logger = logging.getLogger("actor_learner")
    handlers: list[logging.Handler] = [_File(folder / LOG_FILE)]
    if not logger.hasHandlers():
        handlers.append(_Terminal(logging.INFO if verbose else logging.WARNING))
    level = logger.level
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _File(logging.FileHandler):
    """Writes the log; a full disk must not end or disturb a run."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def _open(self) -> TextIOWrapper:
        descriptor = open_plain(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            Path(self.baseFilename).parent.mkdir(exist_ok=True)
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        with contextlib.suppress(OSError, ValueError):
            self.close()  # the next line opens it again


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """Shows the first line of each warning on `sys.stderr`; errors are shown by the caller that catches them."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.setLevel(least)
        self.addFilter(lambda record: record.levelno <= logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0]
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed
            print(f"actor-learner: {record.levelname.lower()}: {line}", file=sys.stderr, flush=True)
