"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from actor_learner.cgroups import MOUNTED, OWN, Group, own_groups, read_lines, read_number


def available_cores() -> int:
    """The smaller of the process's affinity and its cgroups' CPU quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(affinity, cpu_quota())))


def learner_cores(num_actors: int, max_policy_lag: int) -> int:
    """The cores that TensorFlow computes on unless it is told: in lock-step all, since the actors wait; else the rest.

    At least 1, however many actors go on meanwhile.
    """
    return max(1, available_cores() - num_actors) if max_policy_lag else available_cores()


def cpu_quota(cgroups: Path = MOUNTED, own_cgroup: Path = OWN) -> float:
    """CPU seconds per second that this process's cgroups (version 1 or 2) allow; inf where none says.

    cgroups: where they are mounted; own_cgroup: the file that names this process's.
    """
    return min(map(_quota, own_groups("cpu", cgroups, own_cgroup)), default=math.inf)


def _quota(group: Group) -> float:
    """Microseconds per period of as many; without a limit the quota is "max" in version 2, -1 in version 1."""
    if group.version == 1:
        quota = read_number(group.folder / "cpu.cfs_quota_us")
        period = read_number(group.folder / "cpu.cfs_period_us")
        return quota / period if quota and period else math.inf
    quota_and_period = "".join(read_lines(group.folder / "cpu.max")) or "max 100000"
    first, second = quota_and_period.split()
    return math.inf if first == "max" else float(first) / float(second)
