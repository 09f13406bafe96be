"""The folders of several policies that play the same games, in a run's directory and in its checkpoints."""

from __future__ import annotations

from pathlib import Path

POLICIES_FOLDER = "policies"
"""Holds a folder for each policy, of its name."""


def policy_folder(folder: Path, name: str) -> Path:
    """Return a policy's folder in that of a run or a checkpoint: the folder itself for the only policy, ""."""
    return folder / POLICIES_FOLDER / name if name else folder


def named_policies(folder: Path) -> str:
    """Return, for messages, that a folder has several policies, and where; "" if it hasn't."""
    found = sorted(str(path) for path in (folder / POLICIES_FOLDER).glob("*/"))
    return f"The run has several policies; give one of them: {', '.join(found)}" if found else ""
