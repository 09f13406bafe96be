"""How busy a GPU is, as NVML tells it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

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
