"""The only policy of a run, or several that play the same games: their names, values and folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

ONLY_POLICY = ""
"""The name of a policy that is the only one."""

POLICIES_FOLDER = "policies"
"""Holds a folder for each of several policies, of its name."""


def of_one(found: Mapping[str, Any]) -> Any:
    """Return the only policy's value, or those of several by their names, as they are."""
    return found.get(ONLY_POLICY, found)


def prefix_of(name: str) -> str:
    """Return the beginning of the names of a policy's metrics; an empty one for the only policy."""
    return f"{name}/" if name else ""


def by_policy(value: Any, names: Collection[str]) -> Mapping[str, Any]:
    """Return by the policies' names what `of_one` returned."""
    return {ONLY_POLICY: value} if ONLY_POLICY in names else value


def policy_folder(folder: Path, name: str) -> Path:
    """Return a policy's folder in that of a run or a checkpoint: for the only policy, the folder itself."""
    return folder / POLICIES_FOLDER / name if name else folder


def named_policies(folder: Path) -> str:
    """Return, for messages, that a folder has several policies, and where; "" if it hasn't."""
    found = sorted(str(path) for path in (folder / POLICIES_FOLDER).glob("*/"))
    return f"The run has several policies; give one of them: {', '.join(found)}" if found else ""
