"""The progress line: percentage, return, steps per second and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

LINE_INTERVAL_SECONDS = 5.0
REFRESH_INTERVAL_SECONDS = 0.1


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line every few seconds.

    Writes to the `sys.stderr` of the moment, so that notebooks and tests capture it, and results on
    stdout stay clean. Where that can't be written any more (a closed terminal), it goes quiet.

    steps_before: env steps that an earlier process has taken.
    """

    def __init__(self, total_steps: int, steps_before: int = 0, *, quiet: bool = False) -> None:
        self._total_steps, self._steps_before = total_steps, steps_before
        self._quiet = quiet
        self._started = time.monotonic()
        self._first: tuple[float, float] | None = None
        """Time and env steps after the first update: what came before was compilation, for the most part."""
        self._written = -LINE_INTERVAL_SECONDS
        self._latest: Mapping[str, float] = {}
        self._width = 0

    def update(self, metrics: Mapping[str, float]) -> None:
        """Shows the state after an update, unless a line was written just now."""
        now = time.monotonic()
        self._first = self._first or (now, metrics["env_steps"])
        self._latest = metrics
        interval = REFRESH_INTERVAL_SECONDS if _is_terminal(sys.stderr) else LINE_INTERVAL_SECONDS
        if now - self._written >= interval:
            self._written = now
            self._show(self._line(metrics, metrics["steps_per_second"], self._remaining(now)))

    def close(self) -> None:
        """Ends with a line for the whole run: its mean speed, and how long it took."""
        if self._latest:
            seconds = time.monotonic() - self._started
            speed = (self._latest["env_steps"] - self._steps_before) / max(seconds, 1e-9)
            self._show(self._line(self._latest, speed, f"took {_duration(seconds)}"))
        if self._width:
            self._write("")
            self._width = 0

    def _show(self, line: str) -> None:
        if _is_terminal(sys.stderr):
            self._write("\r" + line.ljust(self._width), end="")
            self._width = len(line)
        else:
            self._write(line)

    def _write(self, text: str, end: str = "\n") -> None:
        if self._quiet:
            return
        try:
            print(text, end=end, file=sys.stderr, flush=True)
        except (OSError, ValueError):
            self._quiet = True

    def _remaining(self, now: float) -> str:
        assert self._first is not None
        seconds, steps = now - self._first[0], self._latest["env_steps"] - self._first[1]
        if not steps:
            return ""
        return f"{_duration(max(0, self._total_steps - self._latest['env_steps']) * seconds / steps)} left"

    def _line(self, metrics: Mapping[str, float], speed: float, time_text: str) -> str:
        steps = metrics["env_steps"]
        parts = [f"{min(1.0, steps / self._total_steps):4.0%}", f"{steps:,.0f} steps"]
        if "episode_return" in metrics:
            parts.append(f"return {metrics['episode_return']:,.1f}")
        return "  ".join([*parts, f"{speed:,.0f} steps/s", time_text]).rstrip()


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
