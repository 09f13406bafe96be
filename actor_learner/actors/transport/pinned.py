"""Batches that NVIDIA's GPUs copy without a detour: CUDA's driver keeps their memory in place."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.system.types import Array

_DRIVER = "libcuda.so.1"
_PORTABLE = ctypes.c_uint(1)  # CU_MEMHOSTREGISTER_PORTABLE: for all GPUs
_logger = logging.getLogger(__name__)


class Pin:
    """The registration of an arena's memory, from when it is reserved until `close`, which comes before `Arena.close`.

    Nothing is registered where this process computes on no NVIDIA GPU, or where the driver refuses. Copies then go
    through a buffer of the driver's.

    outcome: "registered", or why it isn't, in one line.
    """

    outcome = "registered"
    close: Callable[[], object] = staticmethod(lambda: None)
    """Undoes the registration, once, before the interpreter's end at the latest; a forked process leaves it alone."""

    def __init__(self, arena: Arena) -> None:
        driver, device = loaded_driver(), ctypes.c_int()
        if driver is None or not _is_in_use(driver, device):
            self.outcome = "no NVIDIA GPU is in use"
            return
        memory = arena.array(0, (arena.size,), np.dtype(np.uint8))  # which keeps it mapped
        try:
            context = _register(driver, device, memory)
        except (AttributeError, OSError) as error:
            self.outcome = f"not registered: {error}"
            _logger.info("batches are %s; copies of them to the GPU take longer", self.outcome)
        else:
            self.close = weakref.finalize(self, _unregister, driver, device, context, memory, os.getpid())


def loaded_driver() -> Any:
    """Return CUDA's driver if this process has loaded it, else None."""
    try:
        return ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD)
    except (AttributeError, OSError):
        return None


def _is_in_use(driver: Any, device: ctypes.c_int) -> bool:
    """Return whether the first GPU has a context of this process already, and find its `device`."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    try:
        _call(driver, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        _call(driver, "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
    except (AttributeError, OSError):
        return False
    return bool(active)


def _register(driver: Any, device: ctypes.c_int, memory: Array) -> ctypes.c_void_p:
    """Register memory under the GPU's own context, and return that context, held."""
    context, address = ctypes.c_void_p(), ctypes.c_void_p(memory.ctypes.data)
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        with _current(driver, context):
            _call(driver, "cuMemHostRegister_v2", address, ctypes.c_size_t(memory.nbytes), _PORTABLE)
    except (AttributeError, OSError):
        driver.cuDevicePrimaryCtxRelease_v2(device)
        raise
    return context


def _unregister(driver: Any, device: ctypes.c_int, context: ctypes.c_void_p, memory: Array, process: int) -> None:
    """Unregister memory once the GPU has read it, and let the context go, in the process that registered it."""
    if os.getpid() != process:
        return
    with contextlib.suppress(OSError), _current(driver, context):
        driver.cuCtxSynchronize()
        driver.cuMemHostUnregister(ctypes.c_void_p(memory.ctypes.data))
    driver.cuDevicePrimaryCtxRelease_v2(device)


@contextlib.contextmanager
def _current(driver: Any, context: ctypes.c_void_p) -> Iterator[None]:
    """Let this thread's context be another one meanwhile."""
    _call(driver, "cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _call(driver: Any, name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises OSError if it fails, AttributeError if there is none of this name."""
    if code := getattr(driver, name)(*arguments):
        text = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        raise OSError(f"{name} gave {(text.value or str(code).encode()).decode()}")
