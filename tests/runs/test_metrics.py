"""metrics.jsonl: rows there and back, torn lines, full disks, and what a run that goes on removes."""

import json
import logging
import math

import numpy as np
import pytest

import actor_learner as al
from actor_learner.runs.metrics import MetricsFile, read_metrics, trim_metrics
from tests.support.run_files import append_metrics, create_run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_metrics_there_and_back():
    run = create_run(al.TrainConfig(run_dir="mine"))
    append_metrics(run, {"env_steps": np.int64(256), "loss": np.float32(0.5), "episode_return": math.nan})
    append_metrics(run, {"env_steps": 512, "loss": math.inf})
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [{"env_steps": 256, "loss": 0.5, "episode_return": None}, {"env_steps": 512, "loss": None}]
    first, second = read_metrics("mine")
    assert first["loss"] == 0.5
    assert math.isnan(first["episode_return"])
    assert "episode_return" not in second


@pytest.mark.slow
def test_what_cannot_be_read_is_left_out_or_an_error():
    """A last line that was cut off, what is no number, and a damaged line before the last."""
    run = create_run(al.TrainConfig(run_dir="mine"))
    with pytest.raises(ValueError, match="no metrics .*Received: run_dir='mine'"):
        read_metrics("mine")
    append_metrics(run, {"env_steps": 1, "actor_restart_causes": ["actor 0 was killed"]})
    assert json.loads(run.metrics.read_text())["actor_restart_causes"] == ["actor 0 was killed"]
    with run.metrics.open("a") as file:
        file.write('{"env_steps": 2, "loss": true}\n{"env_steps": 2, "lo')
    assert read_metrics("mine") == [{"env_steps": 1}, {"env_steps": 2}]
    run.metrics.write_text('{"env_st\n{"env_steps": 2}\n')
    with pytest.raises(ValueError, match="damaged in line 1"):
        read_metrics("mine")


def test_rows_wait_while_the_disk_is_full_and_follow(tmp_path, caplog):
    """A folder that isn't there stands for a disk without room: both refuse to open the file."""
    metrics = MetricsFile(tmp_path / "later" / "metrics.jsonl")
    with caplog.at_level(logging.WARNING, "actor_learner"):
        for number in range(3):
            metrics.append({"updates": number})
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text
    metrics.file.parent.mkdir()
    metrics.append({"updates": 3})
    assert [json.loads(line)["updates"] for line in metrics.file.read_text().splitlines()] == [0, 1, 2, 3]


def test_no_checkpoint_is_ahead_of_rows_that_wait_and_lost_ones_are_counted(tmp_path, caplog):
    metrics = MetricsFile(tmp_path / "later" / "metrics.jsonl")
    metrics.append({"updates": 1})
    with pytest.raises(FileNotFoundError):
        metrics.sync()
    metrics.close()
    assert "1 rows of " in caplog.text
    metrics.file.parent.mkdir()
    assert metrics.sync() == metrics.file.stat().st_size > 0


@pytest.fixture
def rows(tmp_path):
    """A file of rows 1 to 5, and its size after each."""
    file, sizes = MetricsFile(tmp_path / "metrics.jsonl"), [0]
    for number in range(1, 6):
        file.append({"updates": number, "loss": number / 7})
        sizes.append(file.sync())
    return file.file, sizes


@pytest.mark.parametrize("updates", range(6))
@pytest.mark.parametrize("known", [True, False])
def test_rows_after_a_checkpoint_are_removed(rows, updates, known):
    file, sizes = rows
    whole = file.read_bytes()
    size = sizes[updates] if known else 10**6
    assert trim_metrics(file, updates, size) == 5 - updates
    assert file.read_bytes() == whole[: sizes[updates]]


@pytest.mark.parametrize("cut", [1, 5])
def test_a_torn_last_line_is_removed_wherever_it_was_cut(rows, cut):
    file, sizes = rows
    whole = file.read_bytes()
    file.write_bytes(whole[: sizes[4] + cut])
    assert trim_metrics(file, 5, sizes[5]) == 1
    assert file.read_bytes() == whole[: sizes[4]]


def test_rows_of_undone_updates_stay_with_those_before_them(rows):
    file, sizes = rows
    content = file.read_bytes()
    undone = json.dumps({"updates": 3, "undone": 1.0}).encode() + b"\n"
    file.write_bytes(content[: sizes[3]] + undone + content[sizes[3] :])
    trim_metrics(file, 3, 10**6)
    assert file.read_bytes() == content[: sizes[3]] + undone


def test_an_edited_file_is_cut_at_the_row_of_the_checkpoint(rows):
    file, sizes = rows
    file.write_bytes(b'{"updates": 0, "note": "mine"}\n' + file.read_bytes())
    trim_metrics(file, 2, sizes[2])
    assert [json.loads(line)["updates"] for line in file.read_text().splitlines()] == [0, 1, 2]
    assert trim_metrics(file.with_name("nowhere"), 3, 100) == 0
