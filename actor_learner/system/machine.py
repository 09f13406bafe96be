"""How many cores this process may use, and how busy they are."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

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


_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
"""By cgroup version. Above `memory.high` nothing is killed, but everything is slowed down to give memory back."""


def cgroup_limit(root: Path = Path("/")) -> float:
    """Bytes that this process's cgroups allow, at which the kernel kills or throttles; inf where none says.

    root: where `proc` and `sys` are.
    """
    groups = own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    limits = [read_number(group.folder / name) for group in groups for name in _LIMITS[group.version]]
    return min((limit for limit in limits if limit is not None), default=math.inf)


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


_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By cgroup version: the limit, the usage, and what of it memory.stat calls reclaimable."""


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken before something is killed: the least of the system's and each cgroup's.

    root: where `proc` and `sys` are. None where the system doesn't say (macOS).
    """
    limits = [limit for limit in (_system_available(root), *_cgroups_available(root)) if limit is not None]
    return min(limits, default=None)


def _system_available(root: Path) -> int | None:
    for line in read_lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroups_available(root: Path) -> list[int | None]:
    """What each cgroup that this process is in, and each of its ancestors, leaves free."""
    groups = own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    return [_cgroup_available(group.folder, *_CGROUP_FILES[group.version]) for group in groups]


def _cgroup_available(group: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    limit, usage = read_number(group / limit_name), read_number(group / usage_name)
    if limit is None or usage is None:
        return None
    statistics = dict(line.split() for line in read_lines(group / "memory.stat"))
    return max(0, limit - usage + int(statistics.get(reclaimable_name, 0)))
