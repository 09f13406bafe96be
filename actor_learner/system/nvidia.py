"""NVIDIA's GPUs as the system sees them: why a library doesn't, and which of them CUDA's first one is."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import warnings
from typing import Any

from actor_learner.system import machine
from actor_learner.system.installation import install_command

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
    if not _is_there() or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    if hidden:
        return f"{library} can't use this machine's GPU: device='cpu' has hidden it from this process; start another"
    driver = driver_version()
    if driver is None:
        return f"{library} can't use this machine's GPU: NVIDIA's driver isn't loaded; install it, see nvidia-smi"
    if _load("libcuda.so.1") is None:
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
    text = " ".join(machine.read_lines(machine.ROOT / "proc/driver/nvidia/version"))
    found = re.search(r"\s(\d+\.\d[\d.]*)\s", text)
    return found[1] if found else None


def _is_there() -> bool:
    if (machine.ROOT / "dev/nvidia0").exists() or driver_version() is not None:
        return True
    for folder in (machine.ROOT / "sys/bus/pci/devices").glob("*"):
        vendor, kind = ("".join(machine.read_lines(folder / name)).strip() for name in ("vendor", "class"))
        if vendor == _VENDOR and kind.startswith(_DISPLAYS):
            return True
    return False


def _load(name: str) -> Any:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name)
    return None


def first_bus_id() -> bytes | None:
    """Return the PCI address of CUDA's first GPU, which CUDA_VISIBLE_DEVICES chooses, None without one.

    NVML's numbers count all GPUs, in another order.
    """
    cuda, device, text = _load("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    return None if cuda.cuDeviceGetPCIBusId(text, _BUS_ID_BYTES, device) else text.value
