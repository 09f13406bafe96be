from __future__ import annotations

import io
import sys

import pytest

from actor_learner.progress import Progress

FIRST = {"env_steps": 1_000, "steps_per_second": 50.0}
LATER = {"env_steps": 3_000, "steps_per_second": 1_000.0, "episode_return": 21.25}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [0.0]
    monkeypatch.setattr("actor_learner.progress.time.monotonic", lambda: now[0])
    return now


def test_plain_lines_when_not_a_terminal(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    progress = Progress(total_steps=10_000)
    for seconds, metrics in ((20.0, FIRST), (21.0, LATER), (30.0, LATER)):
        clock[0] = seconds
        progress.update(metrics)
    lines = stream.getvalue().splitlines()
    assert lines[0].split() == ["10%", "1,000", "steps", "50", "steps/s"]
    # 2,000 steps took 10 s since the first update, which compiled: 7,000 more take 35 s.
    assert lines[1] == " 30%  3,000 steps  return 21.2  1,000 steps/s  0:35 left"
    assert len(lines) == 2


def test_the_last_line_is_for_the_whole_run(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    progress = Progress(total_steps=10_000)
    progress.update(FIRST)
    clock[0] = 3.0
    progress.update(LATER)
    progress.close()
    assert stream.getvalue().splitlines()[-1] == " 30%  3,000 steps  return 21.2  1,000 steps/s  took 0:03"


def test_one_line_is_rewritten_on_a_terminal(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    progress = Progress(total_steps=10_000)
    for seconds in (1.0, 1.01, 3700.0):
        clock[0] = seconds
        progress.update(LATER if seconds > 2 else FIRST)
    assert stream.getvalue().count("\r") == 2
    assert "\n" not in stream.getvalue()
    progress.close()
    assert stream.getvalue().rstrip().endswith("took 1:01:40")


def test_quiet_prints_nothing(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    progress = Progress(total_steps=10, quiet=True)
    progress.update(FIRST)
    progress.close()
    assert stream.getvalue() == ""


def test_a_stream_that_is_gone_is_not_the_end(monkeypatch, clock):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    progress = Progress(total_steps=10)
    progress.update(FIRST)
    progress.close()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    clock[0] = 100.0
    progress.update(LATER)
    assert stream.getvalue() == ""
