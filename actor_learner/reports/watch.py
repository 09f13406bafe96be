"""The view of a run that trains here, and of one that another process trains, whose files are only read."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.reports.displays import Display, Terminal, choose_display
from actor_learner.reports.status import RunStatus, Summary, duration, line, printable
from actor_learner.runs.artifacts import last_error
from actor_learner.runs.directory import LOCK_FILE, RunDirectory, is_locked, open_run, read_config
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import check_seconds, refusal
from actor_learner.system.hub import is_on_hub
from actor_learner.system.signals import stop_requested

if TYPE_CHECKING:
    from actor_learner.config.config import TrainConfig

SILENT_SECONDS = 30.0  # after this time without an update, the view says so


def watch(run_dir: str | os.PathLike[str], interval: float = 1.0) -> None:
    """Show a run on stdout until it ends, then its final status. If it has ended, show only the latter.

    Meanwhile the run may begin, be resumed from a checkpoint, or be replaced by another run.

    Args:
        run_dir: its directory.
        interval: seconds between two readings of its files.

    Raises:
        ValueError: there is no run, its config.json is damaged, or `interval` is no time.
        BrokenPipeError: the reader of stdout is gone.
    """
    check_seconds("interval", interval)
    if is_on_hub(run_dir):
        raise refusal("run_dir", "a folder of this machine; `report` describes a run of the Hub", str(run_dir))
    run = RunDirectory(Path(run_dir))
    if not is_locked(run.path):
        open_run(run.path)
    watched, display = WatchedRun(run), choose_display("stdout", view_at_end=True)
    try:
        while watched.refresh():
            display.draw(watched.status, watched.note())
            if display.gone:
                raise BrokenPipeError
            time.sleep(interval)
    finally:
        display.close(watched.status(), watched.note())


class WatchedRun:
    """A run as its files describe it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._lives = True
        self._read_config()

    def refresh(self) -> bool:
        """Read new rows. Returns False if the run has ended."""
        self._lives = is_locked(self._run.path)  # first, so that rows written before the end are read below
        if _changed_at(self._run.config) != self._config_time:
            self._read_config()
        rows = self._reader.read()
        if self._reader.generation != self._generation:
            self._reset()
        for row in rows:
            self._summary.add(row)
        return self._lives

    def status(self) -> RunStatus:
        return self._summary.status(self._age() if self._lives else 0.0, over=not self._lives)

    def note(self) -> str:
        """Return a sentence about the run as a whole."""
        if self._lives and not self._summary.rows:
            return "Waiting for the first update."
        if self._lives:
            age = self._age()
            return f"The last update was {duration(age)} ago." if age > SILENT_SECONDS else ""
        total = self._config.all_steps
        if total is not None and self._config.finished_steps >= total:
            return "The run has finished."
        how = "was killed" if (self._run.path / LOCK_FILE).exists() else "ended early"
        if how == "ended early" and (error := last_error(self._run)):
            how = f"failed ({printable(error)})"
        return f"The run {how}; `actor-learner train --resume {printable(self._run.path)}` continues it."

    def _age(self) -> float:
        """Return the seconds since the last change of the run's files."""
        files = (self._run.metrics, self._run.config, self._run.path / LOCK_FILE)
        return max(0.0, time.time() - max(map(_changed_at, files)) / 1e9)

    def _read_config(self) -> None:
        self._config_time = _changed_at(self._run.config)
        self._config = read_config(self._run.path) if self._config_time else RecordedConfig()
        self._reader = MetricsReader(self._run.metrics)
        self._reset()

    def _reset(self) -> None:
        self._generation = self._reader.generation
        self._summary = Summary(self._config, printable(self._run.path))


def _changed_at(file: Path) -> int:
    """Return the time in nanoseconds since 1970; 0 if there is no such file."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


REFRESH_SECONDS = 0.5
COMPILING_SECONDS = 5.0  # after which an update before the first gradient step is said to compile it
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
        self._updated = self._learned = False
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
        self._updated, self._learned = True, self._learned or row.get("gradient_steps", 1) > 0
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
        if self._updated and (self._learned or time.monotonic() - self._arrived < COMPILING_SECONDS):
            return ""
        return f"Waiting for the first {'gradient step' if self._updated else 'update'}, which is compiled first."

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
