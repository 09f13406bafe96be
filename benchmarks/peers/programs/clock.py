"""The task of a peer's script, and the clock that notes its updates. Plain Python, for any interpreter."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace


def read_task() -> SimpleNamespace:
    """Return the task in the first argument, a JSON object.

    `clock`: the file for ticks; `seconds`: to measure, after `warm_up` ticks; `seed`; `threads`; a `Work`'s fields.
    """
    return SimpleNamespace(**json.loads(sys.argv[1]))


class Clock:
    """Writes a line at the end of each update: monotonic seconds and env steps so far."""

    def __init__(self, task: SimpleNamespace) -> None:
        self._file = open(task.clock, "a", buffering=1)  # noqa: SIM115
        self._task, self._ticks, self._begun = task, 0, 0.0
        self.enough = False  # True when the run may end

    def tick(self, env_steps: int, at: float | None = None) -> bool:
        """Note an update, now or at a moment of the monotonic clock; return `enough`."""
        at = time.monotonic() if at is None else at
        self._file.write(json.dumps([at, int(env_steps)]) + "\n")
        self._ticks += 1
        if self._ticks == self._task.warm_up:
            self._begun = at
        self.enough = self._ticks > self._task.warm_up and at - self._begun >= self._task.seconds
        return self.enough
