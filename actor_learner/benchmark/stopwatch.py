"""How long this process has taken for something, and how long it would have with the cores to itself."""

from __future__ import annotations

import os
import time

from actor_learner.roof import Cost

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
