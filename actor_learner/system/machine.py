"""The machine: cores and memory that this process may use, its priority, NVIDIA's GPUs, and a description."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from actor_learner.system.installation import install_command

TENSORFLOW_THREADS, JAX_THREADS = "TF_NUM_INTRAOP_THREADS", "NPROC"
"""Environment variables with the number of threads; each is read when the library starts, later than its import."""

ROOT = Path("/")
"""The folder of `proc` and `sys`."""

_UNLIMITED = 1 << 62  # in cgroups of version 1, numbers from here on mean "no limit"
_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
"""The files with limits, by cgroup version. Above `memory.high` nothing is killed, but everything is slowed down."""

_USAGE = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}
"""The file with the usage, and memory.stat's entry for its reclaimable part, by cgroup version."""
_suggested: dict[str, str] = {}  # by environment variable

current_core: Callable[[], int] = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)
"""Returns the number of the core that the calling thread runs on; -1 where the system doesn't tell (macOS)."""


class Cgroup(NamedTuple):
    """The folder of a cgroup, and the version, which decides the names of its files."""

    folder: Path
    version: int


def own_groups(controller: str) -> list[Cgroup]:
    """Return the cgroups that limit this process in `controller` ("cpu", "memory"), the innermost first.

    The limit of each applies. In a container that doesn't see its own path, the folders in between don't exist, but the
    last one, where the container's files are mounted, does. `/proc/self/cgroup` names them, as `0::/path` (version 2)
    or `4:memory:/path` (version 1; both in a hybrid).
    """
    groups: list[Cgroup] = []
    mounted = ROOT / "sys/fs/cgroup"
    for line in read_lines(ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mount, otherwise = 2, mounted / "unified", mounted
        elif controller in controllers.split(","):
            version, mount, otherwise = 1, mounted / controller, mounted / controllers
        else:
            continue
        mount = mount if mount.is_dir() else otherwise
        folder = mount / path.strip("/")
        groups += [Cgroup(one, version) for one in (folder, *folder.parents) if one.is_relative_to(mount)]
    return groups


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if the file can't be read or means "no limit"."""
    text = "".join(read_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, or an empty list if it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def allowed_cores() -> int:
    """Return the number of cores in this process's affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """Return the smaller of the process's affinity and its cgroups' CPU quota, at least 1."""
    return max(1, math.floor(min(allowed_cores(), cpu_quota())))


def cpu_quota() -> float:
    """Return the CPU seconds per second that this process's cgroups allow, or infinity."""
    return min(map(_quota, own_groups("cpu")), default=math.inf)


def _quota(group: Cgroup) -> float:
    """Divide the quota by its period; without a limit the quota is "max" in version 2, -1 in version 1."""
    if group.version == 1:
        quota, period = (read_number(group.folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        return quota / period if quota and period else math.inf
    first, second = ("".join(read_lines(group.folder / "cpu.max")) or "max 100000").split()
    return math.inf if first == "max" else float(first) / float(second)


def busy_seconds() -> float | None:
    """Return the CPU seconds that all processes used on this process's cores; None if the system doesn't count them."""
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    fields = [line.split() for line in read_lines(ROOT / "proc/stat")]
    ticks = [list(map(int, words[1:])) for words in fields if words and words[0] in allowed]
    # user, nice, system, idle, iowait, irq, softirq, steal; user and nice include the guests' time.
    busy = sum(sum(counts[:8]) - sum(counts[3:5]) for counts in ticks)
    return busy / os.sysconf("SC_CLK_TCK") if ticks else None


def cpu_pressure() -> float:
    """Return the share of the last ten seconds in which a process, of any program, waited for a core.

    Where the kernel doesn't measure it: the share by which the load average exceeds the cores, at most 1.
    """
    if found := re.search(r"some avg10=([\d.]+)", " ".join(read_lines(ROOT / "proc/pressure/cpu"))):
        return float(found[1]) / 100
    with contextlib.suppress(OSError):  # the system counts no load
        return min(1.0, max(0.0, os.getloadavg()[0] / allowed_cores() - 1))
    return 0.0


def learner_cores(num_actors: int, max_policy_lag: int, *, images: bool = False) -> int:
    """Return the learner's default number of cores: all in lock-step, where actors wait; else those that actors leave.

    Images take all: an update of a convolutional network costs several times what the actors, of lower priority, cost.
    """
    cores = available_cores()
    return max(1, cores - num_actors) if max_policy_lag and not images else cores


def actors_with_room() -> int:
    """Return the most computing actors that leave the learner a core of its own, at least 1."""
    return max(1, available_cores() - 1)


def suggest_threads(count: int) -> None:
    """Set the threads of a backend that hasn't started, unless the environment does. Replaces a suggestion."""
    for name in (TENSORFLOW_THREADS, JAX_THREADS):
        before = _suggested.get(name)
        if os.environ.get(name, before) == before:
            os.environ[name] = _suggested[name] = str(count)


def renew_suggestion(count: int) -> None:
    """Replace an earlier suggestion; without one, do nothing."""
    if _suggested:
        suggest_threads(count)


def lower_priority(niceness: int) -> bool:
    """Lower the priority of this process in its session, and of the session, which Linux may weigh instead.

    niceness: as for `nice`; 0 changes nothing. Returns False if the kernel has to be asked again a little later.
    """
    if niceness == 0:
        return True
    with contextlib.suppress(OSError):
        if niceness > os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    try:
        (ROOT / "proc/self/autogroup").write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:  # a system without autogroups
        pass
    return True


def available_memory() -> int | None:
    """Return the bytes that can be used before something is killed: the least of the system's and each cgroup's.

    None if the system doesn't say (macOS).
    """
    limits = [limit for limit in (system_available(), *map(_available, own_groups("memory"))) if limit is not None]
    return min(limits, default=None)


def require_memory(what: str, size: int, received: str, advice: str = "") -> None:
    """Raise MemoryError if more bytes are needed than are available: `what` doesn't fit into memory."""
    available = available_memory()
    if available is not None and size > available:
        sizes = f"{size_text(size)} are needed, {size_text(available)} are available"
        raise MemoryError(f"{what} into memory: {'; '.join(filter(None, (sizes, advice)))}. Received: {received}")


def system_available() -> int | None:
    """Return the bytes that the system can give without swapping; None if it doesn't say (macOS)."""
    lines = (line.split() for line in read_lines(ROOT / "proc/meminfo"))
    return next((1024 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]), None)


def cgroup_limit() -> float:
    """Return the bytes at which this process's cgroups kill or throttle, or infinity."""
    limits = [read_number(group.folder / name) for group in own_groups("memory") for name in _LIMITS[group.version]]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _available(group: Cgroup) -> int | None:
    usage_name, reclaimable_name = _USAGE[group.version]
    limit, usage = read_number(group.folder / _LIMITS[group.version][0]), read_number(group.folder / usage_name)
    if limit is None or usage is None:
        return None
    statistics = dict(line.split() for line in read_lines(group.folder / "memory.stat"))
    return max(0, limit - usage + int(statistics.get(reclaimable_name, 0)))


def size_text(size: float) -> str:
    """Return a number of bytes as text, in MB of 10^6 or GB of 10^9 bytes."""
    if size == math.inf:
        return "no limit"
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def machine() -> dict[str, Any]:
    """Return the CPU model, the cores that this process may use, all memory in GB of 10^9 bytes, and the system."""
    memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    return {"cpu": cpu_model(), "cores": available_cores(), "memory_gb": memory, "system": platform.platform()}


def cpu_model() -> str:
    """Return the CPU's own name, or the system's name for it (macOS, most of arm64)."""
    pairs = (line.partition(":") for line in read_lines(ROOT / "proc/cpuinfo"))
    names = (value.strip() for key, _, value in pairs if key.strip() == "model name")
    return next(names, "") or platform.processor() or platform.machine()


_VENDOR = "0x10de"
_DISPLAYS = "0x03"  # the class of PCI devices that GPUs are in
_MIN_DRIVERS = {12: 525, 13: 580}
"""The oldest driver that each version of CUDA runs on."""
_BUS_ID_BYTES = 32


def unused_gpu(library: str, extra: str, cuda: int, *, hidden: bool = False) -> str | None:
    """Return why `library`, which sees no GPU, doesn't use the one of this machine, and what to do; None without one.

    Nor is there a reason where the environment hides it. extra: of this package, with the library's version `cuda` of
    CUDA. hidden: True if this process hides the GPUs from the library.
    """
    if not _has_nvidia_gpu() or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    if hidden:
        return f"{library} can't use this machine's GPU: device='cpu' has hidden it from this process; start another"
    driver = driver_version()
    if driver is None:
        return f"{library} can't use this machine's GPU: NVIDIA's driver isn't loaded; install it, see nvidia-smi"
    if _load_library("libcuda.so.1") is None:
        return (
            f"{library} can't use this machine's GPU: libcuda.so.1, a part of NVIDIA's driver {driver}, is missing; "
            "in a container, start it with --gpus all"
        )
    if int(driver.partition(".")[0]) < _MIN_DRIVERS[cuda]:
        return (
            f"{library} can't use this machine's GPU: NVIDIA's driver {driver} is older than {_MIN_DRIVERS[cuda]}, "
            f"which CUDA {cuda} needs; update it"
        )
    install = install_command(f"actor-learner[{extra}]")
    return (
        f"{library} doesn't see this machine's GPU, whose driver is {driver}: {install}; with TF_CPP_MIN_LOG_LEVEL=0 "
        f"{library} says why"
    )


@functools.cache
def warn_of_unused_gpu(library: str, extra: str, cuda: int, *, hidden: bool = False) -> None:
    """Warn once of a GPU that a library doesn't use; see `unused_gpu`."""
    if (reason := unused_gpu(library, extra, cuda, hidden=hidden)) is not None:
        warnings.warn(f"{reason}. Received: device='auto', which is the CPU now", UserWarning, stacklevel=2)


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver in the kernel, None where there is none."""
    text = " ".join(read_lines(ROOT / "proc/driver/nvidia/version"))
    found = re.search(r"\s(\d+\.\d[\d.]*)\s", text)
    return found[1] if found else None


def _has_nvidia_gpu() -> bool:
    if (ROOT / "dev/nvidia0").exists() or driver_version() is not None:
        return True
    for folder in (ROOT / "sys/bus/pci/devices").glob("*"):
        vendor, kind = ("".join(read_lines(folder / name)).strip() for name in ("vendor", "class"))
        if vendor == _VENDOR and kind.startswith(_DISPLAYS):
            return True
    return False


def _load_library(name: str) -> Any:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name)
    return None


def first_bus_id() -> bytes | None:
    """Return the PCI address of CUDA's first GPU, which CUDA_VISIBLE_DEVICES chooses, None without one.

    NVML's numbers count all GPUs, in another order.
    """
    cuda, device, text = _load_library("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    return None if cuda.cuDeviceGetPCIBusId(text, _BUS_ID_BYTES, device) else text.value
