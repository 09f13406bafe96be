"""What a run leaves beside its metrics: the log, incidents and videos; written, and read back for reports.

logs/run.log      the events of the run, through the standard logger "actor_learner"

An incident is an undone update, saved so that it can be repeated:

incident.json     the time, the values that were not finite, and how to repeat the update
metrics.json      the metrics of the update; null is NaN or infinite
trajectory.npz    the batch, for `al.load_trajectory`
learner.json ...  the learner before the update, for `al.Learner.load`

Reading takes plain files only, never links, and a bounded part of each (see `system.untrusted`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.runs.directory import RunDirectory
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.files import open_plain, write_folder_atomically

if TYPE_CHECKING:
    from actor_learner.learner.learner import Learner

LOG_FILE = "run.log"
ENDED_BY = "the run ended: "
"""What stands before the error that ends a run, in the last record of its log."""

_VIDEO_SUFFIXES = (".mp4", ".webm")

_MAX_BYTES = 1 << 16  # of a description or of the end of the log
_RECORD = re.compile(rf"[\d-]+ [\d:,]+ (?:ERROR {re.escape(ENDED_BY)}(?P<error>.*)|[A-Z]+ )")
"""The first line of a record of the log; others are of a traceback."""


def read_plain(file: Path, size: int, *, from_end: bool = False) -> bytes | None:
    """Return at most `size` bytes of a plain file; None if there is none or it can't be read."""
    try:
        descriptor = open_plain(file)
    except OSError:
        return None
    with open(descriptor, "rb") as stream:
        if from_end:
            stream.seek(max(0, os.fstat(descriptor).st_size - size))
        return stream.read(size)


def log_lines(run: RunDirectory, count: int) -> list[str]:
    content = read_plain(run.logs / LOG_FILE, _MAX_BYTES, from_end=True) or b""
    return content.decode("utf-8", errors="replace").splitlines()[-count:]


def last_error(run: RunDirectory) -> str:
    """Return the error that ended the run, in one line; "" if its log ends otherwise."""
    records = [match for line in log_lines(run, _MAX_BYTES) if (match := _RECORD.match(line))]
    return records[-1]["error"] or "" if records else ""


def incidents(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the descriptions of the incidents, ordered by update; "folder" is the folder's name."""
    found = []
    if run.incidents.is_dir() and not run.incidents.is_symlink():
        for folder in sorted(run.incidents.iterdir())[: 2 * MAX_INCIDENTS]:
            described = {} if folder.is_symlink() else _object(folder / DESCRIPTION)
            if described:
                found.append({**described, "folder": folder.name})
    return sorted(found, key=lambda incident: str(incident.get("update", "")).rjust(20))


def videos(run: RunDirectory, count: int) -> list[Path]:
    """Return the newest videos in the directory, the newest first."""
    files = [Path(parent, name) for parent, _, names in os.walk(run.path) for name in names]
    files = [file for file in files if file.suffix.lower() in _VIDEO_SUFFIXES and stat.S_ISREG(file.lstat().st_mode)]
    return sorted(files, key=lambda file: (-file.lstat().st_mtime, file))[:count]


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_plain(file, _MAX_BYTES) or b"")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


MAX_INCIDENTS = 20
"""The most incidents of one run; a run that fails again and again doesn't fill the disk."""
DESCRIPTION = "incident.json"
_REPEAT = "al.Learner.load(incident).update(al.load_trajectory(incident / 'trajectory.npz'))"
"""Repeats an incident, with byte-equal metrics on the same kind of machine."""
_NOT_REPEATED = "no: the rows were drawn from a replay buffer, which isn't saved here"


def write_incident(folder: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> Path | None:
    """Save an update that `learner` has just undone; call it before the learner changes.

    Returns the incident's folder, `<updates>-<n>`, written whole or not at all. Returns None, and writes nothing, if
    there are `MAX_INCIDENTS` already. Raises OSError if the disk is full or can't be written.

    folder: The folder of the run's incidents; made if needed. metrics: The metrics that the update returned.
    """
    if sum(1 for _ in folder.glob(f"*/{DESCRIPTION}")) >= MAX_INCIDENTS:
        return None
    names = (f"{learner.updates}-{n}" for n in itertools.count(1))
    incident = next(path for name in names if not (path := folder / name).exists())
    write_folder_atomically(incident, lambda partial: _write(partial, learner, trajectory, metrics))
    return incident


def _write(partial: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> None:
    learner.write_files(partial)
    trajectory.save(partial / "trajectory.npz")
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    description = {
        "what": "an update that was undone, because something of it was NaN or infinite",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "update": learner.updates + 1,
        "env_steps": learner.env_steps,
        "metrics_not_finite": [name for name in learner.not_finite if name in metrics],
        "state_not_finite": [name for name in learner.not_finite if name not in metrics],
        "repeat": _REPEAT if learner.buffer is None else _NOT_REPEATED,
    }
    for name, value in (("metrics.json", finite), (DESCRIPTION, description)):
        (partial / name).write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


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
