"""How many cores this process may use, and how busy they are."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from actor_learner.cgroups import MOUNTED, OWN, Group, own_groups, read_lines, read_number

THREADS = "TF_NUM_INTRAOP_THREADS"
"""Environment variable; TensorFlow reads it when it starts, which is later than its import."""

_OWN_SESSION = Path("/proc/self/autogroup")

_suggested: str | None = None


def available_cores() -> int:
    """The smaller of the process's affinity and its cgroups' CPU quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(affinity, cpu_quota())))


def learner_cores(num_actors: int, max_policy_lag: int, *, images: bool = False) -> int:
    """The cores that TensorFlow computes on unless it is told: in lock-step all, since the actors wait; else the rest.

    At least 1, however many actors go on meanwhile. Where observations are images, all: an update of a convolutional
    network takes several times what the actors take, and actors of lower priority have what it leaves.
    """
    cores = available_cores()
    return max(1, cores - num_actors) if max_policy_lag and not images else cores


def suggest_threads(count: int) -> None:
    """Lets TensorFlow compute on so many cores, where the environment doesn't say, or says what was suggested before.

    For whoever owns the process, before TensorFlow has started.
    """
    global _suggested
    if os.environ.get(THREADS, _suggested) == _suggested:
        os.environ[THREADS] = _suggested = str(count)


def renew_suggestion(count: int) -> None:
    """`suggest_threads` by what is known now, if there was a suggestion."""
    if _suggested is not None:
        suggest_threads(count)


def lower_priority(niceness: int) -> bool:
    """Lets other processes go first: of this session's, and this session among others, which Linux may weigh instead.

    niceness: as of `nice`; 0 changes nothing. Returns whether it is done; where not, the kernel wants to be asked again
    a little later.
    """
    if niceness == 0:
        return True
    with contextlib.suppress(OSError):
        if niceness > os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    try:
        _OWN_SESSION.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:  # no such groups on this system
        pass
    return True


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
