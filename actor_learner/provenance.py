"""Where results come from: versions, machine and git commit, as config.json records them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from actor_learner.cgroups import read_lines
from actor_learner.cores import available_cores

PACKAGES = ("tensorflow", "keras", "ai-edge-litert", "gymnasium", "numpy")

_GIT_SECONDS = 5.0


def provenance() -> dict[str, Any]:
    """Versions, machine and git commit of this process."""
    return {"versions": versions(), "machine": machine(), "git": git_commit()}


def versions() -> dict[str, str]:
    """Of Python and of the packages whose arithmetic decides what is learned."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}}


def machine() -> dict[str, Any]:
    """CPU model, cores that this process may use, memory in GB of 10^9 bytes, and operating system."""
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gb": round(memory_bytes() / 1e9, 1),
        "system": platform.platform(),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the CPU calls itself; where it doesn't (macOS, most of arm64), what the system calls it."""
    pairs = (line.partition(":") for line in read_lines(cpuinfo))
    names = (value.strip() for key, _, value in pairs if key.strip() == "model name")
    return next(names, "") or platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The machine's memory, whatever part of it this process may use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """The commit that a folder (by default the working directory) stands at, and whether tracked files differ from it.

    None where there is no repository, no commit yet, no git, or no answer in time.
    """
    # No monitor: it would be a program that the repository names, and that may be a stranger's.
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)} if done.returncode == 0 and commit else None
