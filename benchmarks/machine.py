"""What measurements were made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Cores that may be used, and the processor's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {names[0] if names else platform.processor()}"
