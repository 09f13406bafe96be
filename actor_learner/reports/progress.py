"""A run's progress while it trains, from the rows that go to metrics.jsonl."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.reports.displays import Screen, Terminal, choose_screen
from actor_learner.reports.status import RunStatus, Summary, line
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.signals import stop_requested

if TYPE_CHECKING:
    from actor_learner.config.config import TrainConfig

REFRESH_SECONDS = 0.5
LARGEST_SHARE = 0.005
"""Of this process's CPU time, that drawing may take; what takes more is drawn every `LONGEST_SECONDS` only."""
LONGEST_SECONDS = 3.0
FREE_SECONDS = 0.05
"""The first views, before there is much CPU time to take a part of."""

_STOPPING = "Ending this update and saving (Ctrl-C again ends at once)."
_BEGINNING = "Waiting for the first update, which is compiled first."
_SEEN_ANYWAY = ("env_steps", "updates", "time_seconds", "steps_per_second", "episode_return")


class Progress:
    """Shows how far a run is: a view that is drawn in place, or lines.

    On a terminal a thread draws it, twice a second while the learner computes. With `num_actors=0`, for debuggers,
    nothing is drawn in place.

    config: of the run; metrics: its metrics.jsonl, from which the rows of an earlier process are taken.
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
        self._screen: Screen = choose_screen(quiet=config.quiet, in_place=config.num_actors > 0)
        self._thread: threading.Thread | None = None
        if isinstance(self._screen, Terminal):
            self._thread = threading.Thread(target=self._draw_now_and_then, name="live view", daemon=True)
            self._thread.start()

    @property
    def shows_interrupts(self) -> bool:
        """Whether it says that a signal was received."""
        return self._thread is not None

    def update(self, row: Mapping[str, Any]) -> None:
        """Takes the row of an update."""
        with self._lock:
            self._summary.add(row)
            self._arrived = time.monotonic()
        self._updated = True
        if self._verbose:
            self._screen.say(verbose_line(self._look(), row))
        if isinstance(self._screen, Terminal):
            self._screen.resume()
        elif not self._verbose:
            self._screen.draw(self._look)

    def close(self) -> None:
        """Shows the run as a whole: its mean speed, and how long it took."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            look = self._summary.look(over=True) if self._updated else None
        self._screen.close(look)

    def _look(self) -> RunStatus:
        with self._lock:
            return self._summary.look(time.monotonic() - self._arrived)

    def _status(self) -> str:
        if stop_requested():
            return _STOPPING
        return "" if self._updated else _BEGINNING

    def _draw_now_and_then(self) -> None:
        wait, shown, begun = 0.0, None, time.process_time()
        while not self._closed.wait(wait):
            state = self._summary.rows, self._status(), int(time.monotonic())
            if state != shown:
                shown = state
                self._screen.draw(self._look, state[1])
            is_dear = time.thread_time() > FREE_SECONDS + LARGEST_SHARE * (time.process_time() - begun)
            wait = LONGEST_SECONDS if is_dear else REFRESH_SECONDS


def verbose_line(look: RunStatus, row: Mapping[str, Any]) -> str:
    """All that is known of an update, but for where time, memory and CPU went."""
    more = [
        f"{name}={value:.4g}"
        for name, value in row.items()
        if name not in _SEEN_ANYWAY and "/" not in name and isinstance(value, int | float) and not math.isnan(value)
    ]
    return "  ".join([f"update {look.updates}", line(look).strip(), *more])
