"""RUN_DIR/logs/run.log: what happened to a run, through the standard logger "actor_learner"."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

NAME = "run.log"


@contextlib.contextmanager
def run_log(folder: Path, *, verbose: bool = False) -> Iterator[None]:
    """Appends to run.log in `folder` what is logged while entered; warnings are seen at the terminal as well.

    The file begins with its first line. Where the program has set up logging itself, that shows the warnings.

    verbose: what is logged for information is seen at the terminal, too.
    """
    logger = logging.getLogger("actor_learner")
    handlers: list[logging.Handler] = [_File(folder / NAME)]
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
    """A log that can't be written must not end or disturb a run: the disk may be full."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def _open(self) -> TextIOWrapper:
        """No link, which may lead out of the run; no pipe, which might wait for a reader."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.baseFilename, flags, 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "is no plain file")
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            Path(self.baseFilename).parent.mkdir(exist_ok=True)
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        with contextlib.suppress(OSError, ValueError):
            self.close()  # the next line opens it anew


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """The first line of each warning, on the `sys.stderr` of the moment; an error is told by whoever catches it."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.setLevel(least)
        self.addFilter(lambda record: record.levelno <= logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0]
        with contextlib.suppress(OSError, ValueError):  # a terminal that was closed
            print(f"actor-learner: {record.levelname.lower()}: {line}", file=sys.stderr, flush=True)
