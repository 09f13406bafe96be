"""How many cores this process may use, and how busy they are."""

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


def busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """CPU seconds that the cores which this process may use have spent on anybody's work; None if nobody tells."""
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    fields = [line.split() for line in read_lines(stat)]
    ticks = [list(map(int, words[1:])) for words in fields if words and words[0] in allowed]
    # user, nice, system, idle, iowait, irq, softirq, steal; what guests take is part of user and nice.
    busy = sum(sum(counts[:8]) - sum(counts[3:5]) for counts in ticks)
    return busy / os.sysconf("SC_CLK_TCK") if ticks else None
