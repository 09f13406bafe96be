"""How long this process has taken for something, and how long it would have with the cores to itself."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from actor_learner.benchmark.roofline import Cost

_TASKS = "/proc/self/task"


class Stopwatch:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """Since then. What the busiest thread waited for a core that others had isn't counted, where Linux tells it."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        found = [(0, 0)]
        for thread, (used, waited) in _threads().items():
            used_before, waited_before = self._threads.get(thread, (0, 0))
            found.append((used - used_before, waited - waited_before))
        return Cost(max(wall - max(found)[1] / 1e9, cpu / max(1, len(found) - 1)), cpu)


def _threads() -> dict[str, tuple[int, int]]:
    """By thread: nanoseconds on a core, and ready but without one; nothing where Linux doesn't tell."""
    found = {}
    for thread in os.listdir(_TASKS) if os.path.isdir(_TASKS) else ():
        try:
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                used, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):
            continue
        found[thread] = used, waited
    return found


_SAMPLE_SECONDS = 0.05


def nvml_reader() -> Callable[[], float] | None:
    """What gives the first GPU's utilization now, from 0 to 1; None without a GPU or the package nvidia-ml-py."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # not installed, no driver, no GPU: each has an error of its own
        return None
    return lambda: float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100


class Busyness:
    """Samples a reading while its `with` block runs.

    read: gives a number; None: nothing is sampled.
    """

    def __init__(self, read: Callable[[], float] | None) -> None:
        self._read = read
        self._readings: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-busyness", daemon=True)

    @property
    def mean(self) -> float | None:
        """Of the readings; None if there are none."""
        return statistics.fmean(self._readings) if self._readings else None

    def _sample(self) -> None:
        while self._read is not None:
            self._readings.append(self._read())
            if self._over.wait(_SAMPLE_SECONDS):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
