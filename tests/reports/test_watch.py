"""Watching a run of another process: its files as a run leaves them at each moment, and the lock that says it lives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.reports.watch import WatchedRun, watch
from actor_learner.runs.directory import RunDirectory, is_locked, record_finished, run_lock
from actor_learner.runs.metrics import MetricsFile, MetricsReader, trim_metrics
from tests.support.processes import patience
from tests.support.run_files import create_run
from tests.support.run_rows import row

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    """A run of 10,000 steps that has begun."""
    return create_run(al.TrainConfig(run_dir=tmp_path / "run", total_steps=10_000))


def append(run, *numbers, **changes):
    for number in numbers:
        MetricsFile(run.metrics).append(row(number, **changes))


def test_it_follows_what_is_written(run):
    with run_lock(run.path):
        watched = WatchedRun(run)
        assert watched.refresh()
        assert watched.note() == "Waiting for the first update."
        append(run, 1, 2)
        with run.metrics.open("a") as file:
            file.write('{"env_steps": 300, "time_sec')
        assert watched.refresh()
        assert (watched.status().steps, watched.note()) == (200, "")
        with run.metrics.open("a") as file:
            file.write('onds": 6.0, "updates": 3}\n')
        assert watched.refresh()
        assert watched.status().steps == 300
        assert not watched.status().over


def test_it_goes_back_with_a_run_that_goes_on_from_a_checkpoint(run):
    append(run, 1)
    size = run.metrics.stat().st_size
    append(run, 2, 3, undone=1.0)
    watched = WatchedRun(run)
    watched.refresh()
    assert (watched.status().updates, watched.status().undone) == (3, 2)
    trim_metrics(run.metrics, 1, size)
    append(run, 2, 3, 4, 5, time__env=0.25)  # longer than it was by the time that somebody looks again
    watched.refresh()
    assert (watched.status().updates, watched.status().undone) == (5, 0)
    assert watched.status().returns == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_it_sees_that_another_run_takes_the_place(run, tmp_path):
    append(run, 1, 2)
    watched = WatchedRun(run)
    watched.refresh()
    create_run(al.TrainConfig(run_dir=run.path, env="Acrobot-v1", total_steps=50, overwrite=True))
    watched.refresh()
    assert (watched.status().env, watched.status().steps, watched.status().total_steps) == ("Acrobot-v1", 0, 50)


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ("finished", "The run has finished."),
        ("stopped", "The run ended early; `actor-learner train --resume "),
        ("killed", "The run was killed; `actor-learner train --resume "),
        ("failed", "The run failed (OSError: no?way); `actor-learner train --resume "),
    ],
)
def test_how_a_run_ended(run, end, note):
    append(run, 1, 2)
    if end == "finished":
        record_finished(run, 10_000)
    elif end == "failed":
        run.logs.mkdir()
        (run.logs / "run.log").write_text("2026-01-02 03:04:05,678 ERROR the run ended: OSError: no\033way\n")
    elif end == "killed":
        (run.path / ".lock").write_text("1\n")
    watched = WatchedRun(run)
    assert not watched.refresh()
    assert watched.note().startswith(note)
    assert watched.status().over


def test_a_run_that_is_silent(run, monkeypatch):
    append(run, 1)
    with run_lock(run.path):
        for file in (run.metrics, run.config, run.path / ".lock"):
            os.utime(file, (time.time() - 100, time.time() - 100))
        watched = WatchedRun(run)
        watched.refresh()
        minutes, seconds = re.fullmatch(r"The last update was (\d+):(\d+) ago\.", watched.note()).groups()
        assert 100 <= 60 * int(minutes) + int(seconds) <= 100 + patience(10)
        assert 102 <= watched.status().seconds <= 102 + patience(10)


def test_an_ended_run_is_shown_once_and_not_touched(run, capsys):
    append(run, *range(1, 101))
    record_finished(run, 10_000)
    before = {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}
    assert cli.main(["watch", str(run.path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("CartPole-v1 · ppo · ")
    assert "limited by: environments" in "".join(shown)
    assert shown[-1] == "The run has finished."
    assert {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]} == before


def test_it_ends_with_the_run_after_lines_of_what_it_did(run, capsys):
    def end():
        append(run, 2)
        time.sleep(0.5)  # some looks
        append(run, 3)
        lock.__exit__(None, None, None)

    append(run, 1)
    lock = run_lock(run.path)
    lock.__enter__()
    thread = threading.Thread(target=end)
    thread.start()
    watch(run.path, interval=0.05)
    thread.join()
    shown = capsys.readouterr().out.splitlines()
    view = next(number for number, line in enumerate(shown) if line.startswith("CartPole-v1"))
    assert shown[0].split("  ")[2].endswith("00 steps")
    assert view > 0
    assert shown[view + 2].startswith("300 of 10,000 steps")


def test_a_run_that_has_not_written_anything_yet(tmp_path):
    with run_lock(tmp_path / "run"):
        watched = WatchedRun(RunDirectory(tmp_path / "run"))
        assert watched.refresh()
        assert (watched.note(), watched.status().env) == ("Waiting for the first update.", "a run")


@pytest.mark.parametrize("interval", ["0", "nan", "soon"])
def test_an_interval_that_is_none(run, interval, capsys):
    assert cli.main(["watch", str(run.path), "--interval", interval]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "interval" in line
    assert "Received: " in line


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    for name, message in (("nowhere", "holds no run"), (".", "holds no run"), ("damaged", "config.json is damaged")):
        assert cli.main(["watch", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_hostile_rows_and_names(run, capsys):
    config = json.loads(run.config.read_text())
    run.config.write_text(json.dumps(config | {"env": "\x1b[2Jgone", "total_steps": "many", "num_actors": None}))
    hostile = [
        "[" * 100_000,
        '{"env_steps": 1e999, "time_seconds": 1}',
        "7",
        '{"env_steps": 1' + "0" * 5000 + "}",
        "\0",
    ]
    run.metrics.write_text("\n".join(hostile) + "\n")
    append(run, 1, actor_restarts=float("nan"), time__env=1e300, cpu__learner=-1e300)
    append(run, 2, actor_restart_causes=["\x1b]0;title\x07"])
    assert cli.main(["watch", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "200 of 1 steps" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_metrics_that_are_no_file(run):
    os.mkfifo(run.metrics)  # opening it would wait for a writer
    assert MetricsReader(run.metrics).read() == []


def test_whoever_looks_does_not_keep_a_run_from_starting(tmp_path):
    stop = threading.Event()

    def look():
        while not stop.is_set():
            is_locked(tmp_path)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(20):
            with run_lock(tmp_path):
                assert is_locked(tmp_path)
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
    assert not is_locked(tmp_path)


@pytest.fixture
def watching(run):
    """`actor-learner watch` in a process of its own, of a run that lives."""
    append(run, 1)
    with run_lock(run.path):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "actor_learner.cli", "watch", run.path, "--interval", "0.1"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline().startswith("  1%")
                yield process
            finally:
                process.kill()


def test_ctrl_c_ends_it(watching):
    watching.send_signal(signal.SIGINT)
    assert watching.wait(patience(20)) == 130
    assert "100 of 10,000 steps" in watching.stdout.read()
