"""Numbers of formats: each kind of file that is kept says in which format it is, and which version wrote it.

Version 0.1.0 writes format 1 of everything. A format's number grows when an older version couldn't read the file any
more, or would misread it; every version reads all older formats. A file without a number is one of format 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actor_learner.system import __version__

_KEYS = ("format", "actor_learner")


class NewerFormatError(ValueError):
    """The error for a file in a format that only a newer version reads; the file isn't damaged."""


def stamped(content: Mapping[str, Any], newest: int) -> dict[str, Any]:
    """Return a file's content with the number of its format, and the version that writes it, in front."""
    return {**dict(zip(_KEYS, (newest, __version__), strict=True)), **content}


def unstamped(file: Path, content: Mapping[str, Any], newest: int) -> dict[str, Any]:
    """Return a file's content without what `stamped` adds.

    newest: the number of the newest format that this version reads.

    Raises NewerFormatError for a higher number, ValueError for what is no number of a format.
    """
    number = content.get(_KEYS[0], 1)
    if type(number) is not int or number < 1:
        raise ValueError(f"`format` must be a number from 1 on. Received: format={str(number)[:20]}")
    if number > newest:
        writer = ascii(content.get(_KEYS[1])).strip("'")[:20]  # one line, whoever wrote it
        raise NewerFormatError(
            f"{file.name} is in format {number}, and actor-learner {__version__} reads formats up to {newest}: install "
            f"the version that wrote it, or a newer one ({writer}). Received: file={str(file)!r}"
        )
    return {name: value for name, value in content.items() if name not in _KEYS}
