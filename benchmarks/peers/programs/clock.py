"""What a peer's script is asked for, and the clock that notes its updates. Plain Python, for any interpreter."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from types import SimpleNamespace

WINDOW = 100
"""Training episodes that a return is a mean over."""


def read_task() -> SimpleNamespace:
    """The task in the first argument, a JSON object.

    Always: `clock`, the file for ticks; `seed`; `threads`; `goal`, a mean return that ends the run, or None; `seconds`
    that are measured without one, after `warm_up` ticks. Without a goal also the fields of a `Work`.
    """
    return SimpleNamespace(**json.loads(sys.argv[1]))


class Clock:
    """Notes the end of each update: a line of monotonic seconds, env steps so far and mean return."""

    def __init__(self, task: SimpleNamespace) -> None:
        self._file = open(task.clock, "a", buffering=1)  # noqa: SIM115
        self._task = task
        self._ticks = 0
        self._begun = 0.0
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self.enough = False
        """Whether the run may end."""

    def episode(self, total: float) -> None:
        """An episode has ended with this return."""
        self._returns.append(float(total))

    @property
    def mean(self) -> float | None:
        """Over the last 100 episodes; None before there are as many."""
        return sum(self._returns) / WINDOW if len(self._returns) == WINDOW else None

    def tick(self, env_steps: int, mean: float | None = None, at: float | None = None) -> bool:
        """An update has ended, just now or at a moment of the monotonic clock; returns `enough`."""
        at = time.monotonic() if at is None else at
        mean = self.mean if mean is None else mean
        self._file.write(json.dumps([at, int(env_steps), mean]) + "\n")
        self._ticks += 1
        if self._ticks == self._task.warm_up:
            self._begun = at
        if self._task.goal is not None:
            self.enough = mean is not None and mean >= self._task.goal
        else:
            self.enough = self._ticks > self._task.warm_up and at - self._begun >= self._task.seconds
        return self.enough
