"""A run's progress while it trains, from the rows that go to metrics.jsonl."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.reports.displays import Display, Terminal, choose_display
from actor_learner.reports.status import RunStatus, Summary, line
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.signals import stop_requested

if TYPE_CHECKING:
    from actor_learner.config.config import TrainConfig

REFRESH_SECONDS = 0.5
MAX_SHARE = 0.005  # of this process's CPU time, for drawing; beyond it the view is drawn every `MAX_SECONDS`
MAX_SECONDS = 3.0
FREE_SECONDS = 0.05  # CPU time of the first views, which come before there is much CPU time to take a part of

_IN_LINE = ("env_steps", "updates", "time_seconds", "steps_per_second", "episode_return")


class Progress:
    """Shows the progress of a run: a view that is drawn in place, or lines.

    On a terminal a thread draws it, twice a second, while the learner computes. With `num_actors=0`, for debuggers,
    nothing is drawn in place.

    metrics: the run's metrics.jsonl; rows of an earlier process count.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, metrics: Path) -> None:
        self._summary = Summary(RecordedConfig(config.to_json()), str(run_dir))
        for row in MetricsReader(metrics).read():
            self._summary.add(row)
        self._verbose = config.verbose
        self._arrived = time.monotonic()
        self._lock = threading.Lock()
        self._updated = False
        self._closed = threading.Event()
        self._display: Display = choose_display(quiet=config.quiet, in_place=config.num_actors > 0)
        self._thread: threading.Thread | None = None
        if isinstance(self._display, Terminal):
            self._thread = threading.Thread(target=self._draw_repeatedly, name="live view", daemon=True)
            self._thread.start()

    @property
    def shows_interrupts(self) -> bool:
        """True if the view itself reports signals."""
        return self._thread is not None

    def update(self, row: Mapping[str, Any]) -> None:
        with self._lock:
            self._summary.add(row)
            self._arrived = time.monotonic()
        self._updated = True
        if self._verbose:
            self._display.say(verbose_line(self._status(), row))
        if isinstance(self._display, Terminal):
            self._display.resume()
        elif not self._verbose:
            self._display.draw(self._status)

    def close(self) -> None:
        """Show the run as a whole: its mean speed and the time that it took."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            status = self._summary.status(over=True) if self._updated else None
        self._display.close(status)

    def _status(self) -> RunStatus:
        with self._lock:
            return self._summary.status(time.monotonic() - self._arrived)

    def _note(self) -> str:
        if stop_requested():
            return "Ending this update and saving (Ctrl-C again ends at once)."
        return "" if self._updated else "Waiting for the first update, which is compiled first."

    def _draw_repeatedly(self) -> None:
        wait, shown, begun = 0.0, None, time.process_time()
        while not self._closed.wait(wait):
            state = self._summary.rows, self._note(), int(time.monotonic())
            if state != shown:
                shown = state
                self._display.draw(self._status, state[1])
            is_expensive = time.thread_time() > FREE_SECONDS + MAX_SHARE * (time.process_time() - begun)
            wait = MAX_SECONDS if is_expensive else REFRESH_SECONDS


def verbose_line(status: RunStatus, row: Mapping[str, Any]) -> str:
    """Return the metrics of an update, except shares of time, memory and CPU."""
    more = [
        f"{name}={value:.4g}"
        for name, value in row.items()
        if name not in _IN_LINE and "/" not in name and isinstance(value, int | float) and not math.isnan(value)
    ]
    return "  ".join([f"update {status.updates}", line(status).strip(), *more])
