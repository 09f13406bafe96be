"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_cores() -> int:
    """The smaller of the process's affinity and its cgroups' CPU quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(affinity, cpu_quota(_CGROUPS, _OWN_CGROUP))))


def cpu_quota(cgroups: Path, own_cgroup: Path) -> float:
    """CPU seconds per second that a cgroup (version 2) and those around it allow; inf where none says.

    cgroups: where they are mounted; own_cgroup: the file that names this process's, as `0::/path`.
    """
    try:
        path = own_cgroup.read_text(encoding="utf-8").strip().rpartition("::")[2].strip("/")
    except OSError:
        path = ""
    folder = cgroups / path
    around = [parent for parent in folder.parents if parent.is_relative_to(cgroups)]
    return min(_limit(group / "cpu.max") for group in (folder, *around))


def _limit(file: Path) -> float:
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # not there, or "max"
        return math.inf
