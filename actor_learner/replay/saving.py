"""A replay buffer in a folder. Columns never change once they are written, so a later folder links to their files.

replay-buffer.json      the arguments of the buffer, its counters, the state of its draws
replay-marks.npz        which rows can be drawn, and priorities
replay-FROM-TO.npz      the columns of these numbers, counted from the first that was ever added
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.replay.hindsight import HindsightError
from actor_learner.system.files import (
    DamagedError,
    Entry,
    NewerFormatError,
    link_file,
    listed_files,
    one_line,
    read_arrays,
    read_file,
    stamped,
    unstamped,
    write_arrays,
)

if TYPE_CHECKING:
    from actor_learner.replay.buffer import ReplayBuffer

DESCRIPTION = "replay-buffer.json"
_MARKS = "replay-marks.npz"
_FORMAT = 1
BUFFER_FILES = "replay-"
"""How the names of all these files begin."""
_FILE_BYTES = 2**25


def write_buffer(buffer: ReplayBuffer, folder: Path, earlier: Path | None = None) -> dict[str, Entry]:
    """Write a buffer's files into a folder that is being filled. Returns the entries of those that are links.

    earlier: a folder with an earlier state of the same buffer, whose files are linked where they hold the same.
    """
    linked = {}
    shared = 0 if earlier is None else buffer.shares(_name_in(earlier))
    for first, stop in _pieces(buffer):
        name = _file_name(first, stop)
        entry = link_file(earlier, name, folder) if earlier is not None and stop <= shared else None
        if entry is not None:
            linked[name] = entry
            continue
        kept = np.arange(max(first, buffer.first_column), stop)
        write_arrays(folder / _file_name(kept[0], stop), buffer.contents(kept))
    write_arrays(folder / _MARKS, buffer.marks())
    (folder / DESCRIPTION).write_text(json.dumps(stamped(buffer.describe(), _FORMAT)) + "\n", encoding="utf-8")
    return linked


def _name_in(folder: Path) -> str:
    """Return the name of the buffer in a folder; empty where there is none that can be read."""
    try:
        return str(json.loads(read_file(folder, DESCRIPTION))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _pieces(buffer: ReplayBuffer) -> list[tuple[int, int]]:
    """Return the first and the last number + 1 of the columns of each file: pieces of one size, the last as it is."""
    size = max(1, _FILE_BYTES // buffer.column_bytes)
    begins = range(buffer.first_column // size * size, buffer.next_column, size)
    return [(first, min(first + size, buffer.next_column)) for first in begins]


def _file_name(first: int, stop: int) -> str:
    return f"replay-{first:012}-{stop:012}.npz"


def has_buffer(folder: str | os.PathLike[str]) -> bool:
    """Return True if a folder holds a buffer, or what is left of one."""
    return any(Path(folder).glob(f"{BUFFER_FILES}*"))


def read_buffer(folder: str | os.PathLike[str], make: Callable[[Mapping[str, Any]], ReplayBuffer]) -> ReplayBuffer:
    """Return the buffer in a folder, file by file. Raises DamagedError if it isn't what was written.

    make: returns a buffer as it was described, whose columns and marks are to be put in.
    """
    folder = Path(folder)
    try:
        description = unstamped(folder / DESCRIPTION, json.loads(read_file(folder, DESCRIPTION)), _FORMAT)
        buffer = make(description)
        missing = set(range(buffer.first_column, buffer.next_column))
        for name in sorted(name for name in listed_files(folder) if name.startswith("replay-0")):
            first, stop = map(int, Path(name).stem.split("-")[1:])
            contents = read_arrays(read_file(folder, name))
            kept = np.arange(max(first, buffer.first_column), stop)
            buffer.put(kept, {name: values[:, kept - first] for name, values in contents.items()})
            missing -= set(kept.tolist())
        if missing:
            raise ValueError(f"columns from {min(missing)} on are missing")
        buffer.put_marks(read_arrays(read_file(folder, _MARKS)))
    except (MemoryError, DamagedError, NewerFormatError, HindsightError):
        raise
    except Exception as error:  # the folder may come from anywhere
        raise DamagedError(
            f"This isn't what a replay buffer's `save` writes ({one_line(error)}). Received: directory={str(folder)!r}"
        ) from error
    return buffer
