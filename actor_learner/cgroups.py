"""The cgroups (version 1 and 2) that this process is in, and what their files say."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MOUNTED = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")

_UNLIMITED = 1 << 62
"""From here on version 1 means "no limit"."""


class Group(NamedTuple):
    """The folder of a cgroup's files, and the version that says what they are called."""

    folder: Path
    version: int


def own_groups(controller: str, mounted: Path = MOUNTED, own: Path = OWN) -> list[Group]:
    """The cgroups that limit this process in what `controller` ("cpu", "memory") controls, the innermost first.

    A limit of any of them holds. In a container that doesn't see its own path the folders in between don't exist;
    the last one, where the container's files are mounted, does.

    mounted: where the hierarchies are; own: the file that names this process's groups, as `0::/path` (version 2) or
    `4:memory:/path` (version 1; both in a hybrid).
    """
    groups: list[Group] = []
    for line in read_lines(own):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mount = 2, _existing(mounted / "unified", mounted)
        elif controller in controllers.split(","):
            version, mount = 1, _existing(mounted / controller, mounted / controllers)
        else:
            continue
        folder = mount / path.strip("/")
        groups += [Group(one, version) for one in (folder, *folder.parents) if one.is_relative_to(mount)]
    return groups


def _existing(folder: Path, otherwise: Path) -> Path:
    return folder if folder.is_dir() else otherwise


def read_number(path: Path) -> int | None:
    """The number that a file holds; None if it isn't there or means "no limit"."""
    text = "".join(read_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def read_lines(path: Path) -> list[str]:
    """The lines of a file; none if it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
