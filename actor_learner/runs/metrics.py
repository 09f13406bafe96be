"""metrics.jsonl: one JSON object per update, appended; read back by plots, and by a resumed run."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import numbers
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actor_learner.runs.directory import RunDirectory
from actor_learner.system.files import open_plain, parse_json
from actor_learner.system.hub import local_path

LEARNER_TIME = {"learning": "learning", "collecting": "waiting"}
ACTOR_TIME = {"env": "environments", "acting": "acting", "other": "copying", "waiting": "waiting"}
"""The shares of time: `time/<key>` in a row of metrics, and the name that people read."""

HOST = "host/"
"""The beginning of the names of metrics of one machine that runs actors, where there are several."""

_MAX_WAITING = 10_000
_log = logging.getLogger("actor_learner")


def steps_of(row: Mapping[str, Any]) -> Any:
    """Return the steps of a run after a row: env steps, and gradient steps that were taken offline."""
    return row.get("env_steps", 0) + row.get("offline_steps", 0)


class MetricsFile:
    """Appends whole rows. While the disk is full, rows wait in memory and are written once there is room.

    At most 10,000 rows wait; older ones are lost, and `close` reports how many. with_room: calls a write, and makes
    room for it on a full disk (`Checkpoints.with_room`).
    """

    def __init__(self, file: Path, with_room: Callable[[Callable[[], None]], None] = lambda write: write()) -> None:
        self.file, self._with_room = file, with_room
        self._waiting: list[bytes] = []
        self._lost, self._failed = 0, False

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row of numbers (null if not finite) and lists of strings."""
        values = {name: _json(value) for name, value in row.items()}
        self._waiting.append((json.dumps(values, allow_nan=False) + "\n").encode())
        try:
            self._flush()
        except OSError as error:
            too_many = max(0, len(self._waiting) - _MAX_WAITING)
            del self._waiting[:too_many]
            self._lost += too_many
            if not self._failed:
                _log.warning("%s can't be written (%s); training goes on, rows wait for room", self.file, error)
            self._failed = True

    def sync(self) -> int:
        """Write all rows to the disk. Returns the file's length in bytes. Raises OSError if they can't be written."""
        self._flush()
        if not self.file.exists():
            return 0
        with self.file.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def close(self) -> None:
        """Write the waiting rows; warns of lost ones."""
        with contextlib.suppress(OSError):
            self._flush()
        if lost := self._lost + len(self._waiting):
            _log.warning("%d rows of %s are lost: there was no room for them", lost, self.file)

    def _flush(self) -> None:
        if self._waiting:
            content = b"".join(self._waiting)
            self._with_room(lambda: _append(self.file, content))
            self._waiting.clear()
        self._failed = False


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    """Return the rows of a run's metrics.jsonl, null as NaN, without other values and without a cut-off last line.

    Raises ValueError if the directory has no metrics, or if a line before the last is damaged.
    """
    file = RunDirectory(local_path(path)).metrics
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_numbers(dict(parse_json(line))))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"metrics.jsonl is damaged in line {number}. Received: run_dir={str(path)!r}") from error
    if not rows:
        raise ValueError(f"The directory has no metrics (metrics.jsonl). Received: run_dir={str(path)!r}")
    return rows


def has_undone(row: Mapping[str, Any]) -> bool:
    """Return whether an update was undone, that of one of several policies, too."""
    return any(name == "undone" or name.endswith("/undone") for name in row)


def last_metrics(file: Path) -> dict[str, float]:
    """Return the last row of a metrics.jsonl; {} if there is no such file."""
    return read_metrics(file.parent)[-1] if file.exists() else {}


class MetricsReader:
    """Reads new rows of a metrics.jsonl while a run writes it, is resumed from an earlier row or is replaced.

    The file may not exist yet. Damaged lines are left out.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._offset, self._last = file, 0, b""
        self.generation = 0
        """Counts how often rows that were read have been removed; the next `read` starts with the first row then."""

    def read(self) -> list[dict[str, Any]]:
        """Return the new rows: numbers (NaN if not finite), and `actor_restart_causes`."""
        try:
            descriptor = open_plain(self._file)
        except OSError:
            self._go_back()
            return []
        with open(descriptor, "rb") as file:
            if os.pread(descriptor, len(self._last), self._offset - len(self._last)) != self._last:
                self._go_back()
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if lines:
            self._offset += sum(map(len, lines))
            self._last = lines[-1]
        return [row for row in map(_row, lines) if row]

    def _go_back(self) -> None:
        if self._offset:
            self._offset, self._last = 0, b""
            self.generation += 1


def _row(line: bytes) -> dict[str, Any]:
    """Return the row of a line; {} if it is damaged."""
    try:
        values = dict(parse_json(line))
        finite = {name: value if math.isfinite(value) else math.nan for name, value in _numbers(values).items()}
    except (ValueError, TypeError, RecursionError, OverflowError):
        return {}
    causes = values.get("actor_restart_causes")
    return {**finite, "actor_restart_causes": list(map(str, causes))} if isinstance(causes, list) else {**finite}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, null as NaN, without booleans, nor integers beyond floats."""
    values = {name: math.nan if value is None else value for name, value in values.items()}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)
    }


def trim_metrics(file: Path, updates: int, size: int) -> int:
    """Remove rows that were written after a checkpoint, and a cut-off last line. Returns their number.

    updates, size: The updates and the bytes of the file at the checkpoint. If no row of the checkpoint ends there (the
    file was edited, or lost its end in a power failure), rows are compared by their `updates`.
    """
    if not file.exists():
        return 0
    content = file.read_bytes()
    if size > len(content) or not _ends_with_row(content[:size], updates):
        size = _size_until(content, updates)
    if size < len(content):
        with file.open("r+b") as stream:
            stream.truncate(size)
            os.fsync(stream.fileno())
    return len(content[size:].splitlines())


def _ends_with_row(content: bytes, updates: int) -> bool:
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    return last.endswith(b"\n") and _updates(last) == updates if content else updates == 0


def _size_until(content: bytes, updates: int) -> int:
    """Return the bytes of the first whole rows up to a checkpoint's updates."""
    size = 0
    for line in content.splitlines(keepends=True):
        found = _updates(line)
        if found is None or found > updates or not line.endswith(b"\n"):
            break
        size += len(line)
    return size


def _updates(line: bytes) -> int | None:
    try:
        value = json.loads(line)["updates"]
    except (ValueError, KeyError, TypeError):
        return None
    return value if type(value) is int else None


def _append(file: Path, content: bytes) -> None:
    with open(open_plain(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            while content:
                content = content[stream.write(content) :]
        except BaseException:
            stream.truncate(size)
            raise


def _json(value: Any) -> float | int | list[str] | None:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
