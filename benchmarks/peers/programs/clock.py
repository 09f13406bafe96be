"""The task of a peer's script, and the clock that notes its updates. Plain Python, for any interpreter."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from types import SimpleNamespace

WINDOW = 100  # a return is a mean over so many training episodes


def read_task() -> SimpleNamespace:
    """Return the task in the first argument, a JSON object.

    `clock`: the file for ticks; `goal`: a mean return that ends the run, or None; `seconds`: to measure without one,
    after `warm_up` ticks; `seed`; `threads`; without a goal also the fields of a `Work`.
    """
    return SimpleNamespace(**json.loads(sys.argv[1]))


class Clock:
    """Writes a line at the end of each update: monotonic seconds, env steps so far and mean return."""

    def __init__(self, task: SimpleNamespace) -> None:
        self._file = open(task.clock, "a", buffering=1)  # noqa: SIM115
        self._task, self._ticks, self._begun = task, 0, 0.0
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self.enough = False  # True when the run may end

    def episode(self, total: float) -> None:
        self._returns.append(float(total))

    def tick(self, env_steps: int, mean: float | None = None, at: float | None = None) -> bool:
        """Note an update, now or at a moment of the monotonic clock; return `enough`. mean: over 100 episodes."""
        at = time.monotonic() if at is None else at
        if mean is None and len(self._returns) == WINDOW:
            mean = sum(self._returns) / WINDOW
        self._file.write(json.dumps([at, int(env_steps), mean]) + "\n")
        self._ticks += 1
        if self._ticks == self._task.warm_up:
            self._begun = at
        if self._task.goal is not None:
            self.enough = mean is not None and mean >= self._task.goal
        else:
            self.enough = self._ticks > self._task.warm_up and at - self._begun >= self._task.seconds
        return self.enough
