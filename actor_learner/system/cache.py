"""The folders of caches: in XDG_CACHE_HOME, else in ~/.cache; ACTOR_LEARNER_CACHE names another folder.

An empty ACTOR_LEARNER_CACHE disables the caches. A disk without room, or a folder that can't be written, does, too.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """Return the folder of a cache; None if caches are disabled."""
    if (named := os.environ.get("ACTOR_LEARNER_CACHE")) is not None:
        return Path(named, name).absolute() if named else None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "actor_learner", name)
    return folder if folder.is_absolute() else None


def own_folder(folder: Path) -> Path:
    """Make a folder that only this user can write to. Raises OSError if that isn't so, or if it can't be made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError("others can write to the cache")
    return folder
