"""The layout, drawn by rich: what it shows, and that it fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from actor_learner.reports.layout import fit, sparkline
from actor_learner.reports.status import Summary
from actor_learner.runs.recorded_config import RecordedConfig
from tests.support.run_rows import CONFIG, row


def status(rows=None, **config):
    summary = Summary(RecordedConfig(CONFIG | config), "runs/mine")
    for each in rows or [row(number) for number in range(1, 60)]:
        summary.add(each)
    return summary.status()


def drawn(seen, width=100, height=50, note="", encoding="utf-8", **options):
    """The lines of a view, and all bytes of it."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=width, height=height, force_jupyter=False, **options)
    console.print(fit(console, seen, note))
    file.flush()
    text = raw.getvalue().decode(encoding)
    return [line.rstrip() for line in text.splitlines()], text


def test_all_that_there_is_to_see():
    lines, _ = drawn(status(), note="Something is to be said.")
    assert lines[0] == "CartPole-v1 · ppo · runs/mine"
    assert lines[1].endswith("59%")
    assert lines[2] == "5,900 of 10,000 steps · 50 steps/s · 59 updates · 1:58 so far · 1:22 left"
    assert lines[3].startswith("return   59.0  ▁")
    assert lines[3].endswith("1.0 to 59.0")
    assert lines[5].split("  ")[0] == "learner's time"
    assert [word for word in lines[6].split() if not set(word) & set("━╸")] == [
        "learning",
        "25%",
        "environments",
        "50%",
    ]
    assert "limited by: environments; another actor would help (over the last 5 s)" in lines
    assert "learner  125% CPU    812 MB │ actor 0   50% CPU     54 MB │ actor 1   75% CPU     55 MB" in lines
    assert lines[-2:] == ["policy lag 0.0 · no actor restarts · no undone updates", "Something is to be said."]


def of_hosts(count):
    figures = {"steps_per_second": 1234.0, "waiting": 0.25, "megabytes_per_second": 5.5, "receiving": 0.1}
    return {f"host/host-{index}/{name}": value for index in range(count) for name, value in figures.items()}


def test_each_machine_of_a_cluster_is_shown_or_all_together():
    lines, _ = drawn(status([row(number, **of_hosts(2)) for number in range(1, 9)]))
    shown = "host-0  1,234 steps/s, 5.5 MB/s, waiting 25% │ host-1  1,234 steps/s, 5.5 MB/s, waiting 25%"
    assert shown in lines
    lines, _ = drawn(status([row(number, **of_hosts(30)) for number in range(1, 9)]))
    assert "30 hosts  37,020 steps/s  165.0 MB/s" in lines


@pytest.mark.parametrize("width", [20, 40, 71, 72, 100, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_fits_whatever_the_width(width, encoding):
    busy = [*(row(number, actor_restart_causes=["x" * 300]) for number in range(1, 9)), row(9, undone=1.0)]
    lines, _ = drawn(status(busy, env="Späße-v0" * 9), width, encoding=encoding)
    assert max(map(len, lines)) < width
    assert len(lines) > 10


@pytest.mark.parametrize("height", [5, 10, 14, 24])
def test_a_low_terminal_gets_less_of_it(height):
    lines, _ = drawn(status(), height=height)
    assert len(lines) < max(height, 9)
    assert lines[1].endswith("59%")


def test_colours_are_optional_and_nothing_depends_on_them(monkeypatch):
    _, coloured = drawn(status(), force_terminal=True, color_system="truecolor")
    assert "\x1b[1;33mlimited by" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    _, plain = drawn(status(), force_terminal=True)
    assert "\x1b[1;33m" not in plain
    assert "limited by: environments" in plain


def test_of_many_actors_the_range_is_shown():
    fields = {f"memory/actor_{actor}_mb": 50.0 + actor for actor in range(64)}
    fields |= {f"cpu/actor_{actor}": 0.1 + actor / 100 for actor in range(64)}
    lines, _ = drawn(status([row(1) | fields], num_actors=64))
    assert any("64 actors  10% to 73% CPU  50 to 113 MB" in line for line in lines)


def test_a_replay_buffer_is_shown_with_what_is_owed_and_what_went_wrong_stands_out():
    figures = {"buffer_rows": 1500.0, "gradient_steps": 4000.0, "gradient_steps_owed": 2.0}
    wrong = {"undone": 1.0, "actor_restarts": 3, "actor_restart_causes": ["actor 1 was killed by SIGKILL"]}
    lines, _ = drawn(status([row(1), row(2, **figures, **wrong)]))
    for text in ("buffer 1,500 rows · 4,000 gradient steps (2 owed)", "3 actor restarts · 1 undone update"):
        assert text in " · ".join(lines)
    assert lines[-1] == "last restart: actor 1 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 10, ""),
        ([3.0], 10, "▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([1, 2, 3], 0, ""),
    ],
)
def test_sparklines(values, width, expected):
    assert sparkline(values, width) == expected
    assert sparkline([0, 7], 5, ascii_only=True) == "_#"
