"""The view of a run that another process trains, from the files of its directory; writes nothing there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from actor_learner.reports.displays import choose_display
from actor_learner.reports.status import RunStatus, Summary, duration, printable
from actor_learner.runs.artifacts import last_error
from actor_learner.runs.directory import LOCK_FILE, RunDirectory, is_locked, open_run, read_config
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import check_seconds, refusal
from actor_learner.system.hub import is_on_hub

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
