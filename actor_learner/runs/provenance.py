"""The versions, machine and git commit behind a result, as config.json records them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from actor_learner.system import __version__
from actor_learner.system.machine import machine

PACKAGES = ("tensorflow", "jax", "keras", "ai-edge-litert", "gymnasium", "numpy")
"""The packages whose arithmetic decides what is learned, where they are installed."""
_TIMEOUT_SECONDS = 5.0


def provenance() -> dict[str, Any]:
    """Return versions, machine and git commit of this process."""
    versions = {"actor-learner": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"versions": versions, "machine": machine(), "git": git_commit()}


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """Return the commit of a folder (default: the working directory), and whether tracked files differ from it.

    Returns None without a repository, a commit or git, and if git takes too long.
    """
    # No monitor: it would be a program that the repository names (see `system.untrusted`).
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)} if done.returncode == 0 and commit else None
