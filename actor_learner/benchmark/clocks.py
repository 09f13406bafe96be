"""Clocks: the time that a piece of work takes with the cores to itself, and the utilization of the GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Self

from actor_learner.benchmark.roofline import Cost
from actor_learner.system.nvidia import first_bus_id

_TASKS = "/proc/self/task"
_SAMPLE_SECONDS = 0.05


class Stopwatch:
    """Measures the cost of the work since its construction."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """Return the cost so far, without the time in which the busiest thread waited for a core (on Linux)."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        found = [(0, 0)]
        for thread, (used, waited) in _threads().items():
            used_before, waited_before = self._threads.get(thread, (0, 0))
            found.append((used - used_before, waited - waited_before))
        return Cost(max(wall - max(found)[1] / 1e9, cpu / max(1, len(found) - 1)), cpu)


def _threads() -> dict[str, tuple[int, int]]:
    """Return each thread's nanoseconds on a core, and ready without a core; nothing where Linux doesn't report them."""
    found = {}
    for thread in os.listdir(_TASKS) if os.path.isdir(_TASKS) else ():
        try:
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                used, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):
            continue
        found[thread] = used, waited
    return found


class _Rates(ctypes.Structure):
    """NVML's nvmlUtilization_t: percentages."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def nvml_reader() -> Callable[[], float] | None:
    """Return a reader of the share of time in which CUDA's first GPU ran a kernel of any program, 0 to 1.

    None without a GPU or NVML, which is in its driver, and for a part of a GPU (MIG), of which NVML doesn't tell.
    """
    gpu, rates = ctypes.c_void_p(), _Rates()
    try:
        nvml, address = ctypes.CDLL("libnvidia-ml.so.1"), first_bus_id()
        if address is None or nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(gpu)):
            return None
        if nvml.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates)):
            return None
    except (OSError, AttributeError):  # no driver, or one without these functions
        return None

    def read() -> float:
        nvml.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates))
        return float(rates.gpu) / 100

    return read


class Busyness(contextlib.AbstractContextManager["Busyness"]):
    """Samples `read` while its `with` block runs; None: samples nothing."""

    def __init__(self, read: Callable[[], float] | None) -> None:
        self._read = read
        self._readings: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-busyness", daemon=True)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self._readings) if self._readings else None

    def _sample(self) -> None:
        while self._read is not None:
            self._readings.append(self._read())
            if self._over.wait(_SAMPLE_SECONDS):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
