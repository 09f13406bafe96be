"""Videos, incidents and the log in a run's directory.

Reads plain files only, never links, and a bounded part of each (see `system.untrusted`).
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from actor_learner.runs.directory import RunDirectory
from actor_learner.runs.incidents import DESCRIPTION, MAX_INCIDENTS
from actor_learner.runs.log import ENDED_BY, LOG_FILE
from actor_learner.system.files import open_plain

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
