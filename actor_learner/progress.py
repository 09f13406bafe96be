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
    stdout stay clean.
    """

    def __init__(self, total_steps: int, *, quiet: bool = False) -> None:
        self._total_steps = total_steps
        self._quiet = quiet
        self._started = time.monotonic()
        self._written = -LINE_INTERVAL_SECONDS
        self._width = 0

    def update(self, metrics: Mapping[str, float]) -> None:
        """Shows the state after an update, unless a line was written just now."""
        if self._quiet:
            return
        terminal = _is_terminal(sys.stderr)
        now = time.monotonic()
        finished = metrics["env_steps"] >= self._total_steps
        interval = REFRESH_INTERVAL_SECONDS if terminal else LINE_INTERVAL_SECONDS
        if now - self._written < interval and not finished:
            return
        self._written = now
        line = self._line(metrics, now - self._started)
        if terminal:
            self._rewrite(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line, so that what follows starts on one of its own."""
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0

    def _rewrite(self, line: str) -> None:
        print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def _line(self, metrics: Mapping[str, float], seconds: float) -> str:
        steps = metrics["env_steps"]
        done = min(1.0, steps / self._total_steps)
        parts = [f"{done:4.0%}", f"{steps:,.0f} steps"]
        if "episode_return" in metrics:
            parts.append(f"return {metrics['episode_return']:,.1f}")
        parts.append(f"{metrics['steps_per_second']:,.0f} steps/s")
        parts.append(f"{_duration(seconds * (1 - done) / done)} left" if done < 1 else f"took {_duration(seconds)}")
        return "  ".join(parts)


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
