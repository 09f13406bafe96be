"""A run of another process, from its directory's files alone; nothing is written there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from actor_learner.reports.displays import choose_screen
from actor_learner.reports.status import RunStatus, Summary, duration, printable
from actor_learner.runs.directory import RunDirectory, open_run, read_config
from actor_learner.runs.lock import NAME, is_locked
from actor_learner.runs.metrics import MetricsReader
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.system.fields import check_seconds

SILENT_SECONDS = 30.0
"""Without an update; from then on that is said."""


def watch(run_dir: str | os.PathLike[str], interval: float = 1.0) -> None:
    """Shows a run on stdout until it ends, then as it ended; one that has ended already only that way.

    It may begin while it is looked at, go on from a checkpoint, or be replaced by another run.

    Args:
        run_dir: its directory.
        interval: seconds between two looks at it.

    Raises:
        ValueError: there is no run, its config.json is damaged, or `interval` is no time.
        BrokenPipeError: nobody reads stdout any more.
    """
    check_seconds("interval", interval)
    run = RunDirectory(Path(run_dir))
    if not is_locked(run.path):
        open_run(run.path)
    watched, screen = Watched(run), choose_screen("stdout", whole_at_end=True)
    try:
        while watched.refresh():
            screen.draw(watched.look, watched.status())
            if screen.gone:
                raise BrokenPipeError
            time.sleep(interval)
    finally:
        screen.close(watched.look(), watched.status())


class Watched:
    """A run as its files say."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._living = True
        self._read_config()

    def refresh(self) -> bool:
        """Reads what has come since; False if the run has ended."""
        self._living = is_locked(self._run.path)  # first: what it wrote before it ended is read below
        if _changed_at(self._run.config) != self._config_is_of:
            self._read_config()
        rows = self._reader.read()
        if self._reader.generation != self._generation:
            self._begin_anew()
        for row in rows:
            self._summary.add(row)
        return self._living

    def look(self) -> RunStatus:
        """The run now."""
        return self._summary.look(self._age() if self._living else 0.0, over=not self._living)

    def status(self) -> str:
        """A sentence about the run as a whole."""
        if self._living and not self._summary.rows:
            return "Waiting for the first update."
        if self._living:
            age = self._age()
            return f"The last update was {duration(age)} ago." if age > SILENT_SECONDS else ""
        total = self._config.integer("total_steps")
        if total is not None and self._config.finished_steps >= total:
            return "The run has finished."
        how = "was killed" if (self._run.path / NAME).exists() else "ended early"
        return f"The run {how}; `actor-learner train --resume {printable(self._run.path)}` goes on with it."

    def _age(self) -> float:
        """Seconds since anything happened."""
        files = (self._run.metrics, self._run.config, self._run.path / NAME)
        return max(0.0, time.time() - max(map(_changed_at, files)) / 1e9)

    def _read_config(self) -> None:
        self._config_is_of = _changed_at(self._run.config)
        self._config = read_config(self._run.path) if self._config_is_of else RecordedConfig()
        self._reader = MetricsReader(self._run.metrics)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._generation = self._reader.generation
        self._summary = Summary(self._config, printable(self._run.path))


def _changed_at(file: Path) -> int:
    """Nanoseconds since 1970; 0 where it isn't there."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0
