"""Checkpoints on the disk: whole or passed over, and which of them are kept."""

import json
import os
import resource
from dataclasses import replace

import pytest

from actor_learner.runs.checkpoints import RUN_FILE, Checkpoints, RunState, checkpoint_folders, newest_whole
from actor_learner.runs.metrics import MetricsFile
from actor_learner.system.files import DamagedError, check_folder, write_manifest
from tests.support.small_disk import fill, mounted

STATE = RunState(env_steps=512, updates=2, time_seconds=1.5, episodes={"return": [1.0, 2.0]}, best_return=1.5)


def save_learner(folder, earlier):
    (folder / "learner").write_bytes(b"learner" * 100)
    return {}


def names(folder):
    return [path.name.lstrip("0") for path in reversed(checkpoint_folders(folder))]


def write(checkpoints, *updates, **fields):
    for number in updates:
        checkpoints.write(replace(STATE, updates=number, **fields), save_learner)


def test_there_and_back(tmp_path):
    path = Checkpoints(tmp_path, keep=3).write(STATE, save_learner)
    assert path.name == "0000000002"
    assert newest_whole(tmp_path) == (path, STATE, [])
    assert newest_whole(tmp_path / "nowhere") == (None, RunState(), [])


def test_the_newest_are_kept_and_final_is_the_last(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 3, 11):
        write(checkpoints, number)
        checkpoints.link_final()
        assert RunState.read(tmp_path / "final").updates == number
    assert names(tmp_path) == ["3", "11"]


def test_milestones_are_kept_for_ever(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 1, 2)
    write(checkpoints, 3, 5, milestone=True)
    write(checkpoints, 6, 7, 8)
    assert names(tmp_path) == ["3", "5", "7", "8"]
    write(Checkpoints(tmp_path, keep=1), 9)  # a process that goes on reads the marks
    assert names(tmp_path) == ["3", "5", "9"]


@pytest.mark.parametrize("keep_best", [0, 1, 2])
def test_of_the_best_so_far_the_last_are_kept(tmp_path, keep_best):
    checkpoints = Checkpoints(tmp_path, keep=2, keep_best=keep_best)
    write(checkpoints, 1, 2, 3, best=True)
    write(checkpoints, 4, 5, 6)
    best = ["2", "3"][2 - keep_best :]
    assert names(tmp_path) == [*best, "5", "6"]
    write(Checkpoints(tmp_path, keep=1, keep_best=keep_best), 7)
    assert names(tmp_path) == [*best, "7"]


def save_much(kilobytes):
    def save(folder, earlier):
        (folder / "learner").write_bytes(bytes(kilobytes * 1024))
        return {}

    return save


@pytest.fixture
def small_disk(tmp_path):
    """Has room for three checkpoints of 100 kB with their small files."""
    with mounted(tmp_path, 400):
        yield tmp_path


def test_on_a_full_disk_the_oldest_go_and_the_best_after_them(small_disk):
    checkpoints = Checkpoints(small_disk, keep=3)

    def names_after(updates, kilobytes=100, **marks):
        checkpoints.write(replace(STATE, updates=updates, **marks), save_much(kilobytes))
        return names(small_disk)

    names_after(1, milestone=True)
    names_after(2)
    assert names_after(3, best=True) == ["1", "2", "3"]
    assert names_after(4) == ["1", "3", "4"]
    assert names_after(5) == ["1", "4", "5"]
    fill(small_disk)
    assert names_after(6) == ["1", "5", "6"]
    checkpoints.link_final()
    with pytest.raises(OSError, match="No space left"):
        names_after(7, kilobytes=300)
    assert names(small_disk) == ["1", "6"]
    assert newest_whole(small_disk)[1].updates == 6


def test_rows_of_metrics_take_the_room_of_old_checkpoints(small_disk, caplog):
    folder = small_disk / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    for updates in (1, 2, 3):
        checkpoints.write(replace(STATE, updates=updates), save_much(100))
    metrics = MetricsFile(small_disk / "metrics.jsonl", checkpoints.with_room)
    for updates in range(3):
        fill(small_disk)
        metrics.append({"updates": updates, "text": ["x" * 5000]})
    assert [json.loads(line)["updates"] for line in metrics.file.read_text().splitlines()] == [0, 1]
    assert names(folder) == ["3"]
    assert [record.message for record in caplog.records] == [
        f"the disk is full: old checkpoints are removed to make room, {folder}/0000000001 first",
        f"{metrics.file} can't be written ([Errno 28] No space left on device); training goes on, rows wait for room",
    ]
    (small_disk / "filler").unlink()
    metrics.close()
    assert len(metrics.file.read_text().splitlines()) == 3


def test_one_that_cannot_be_read_is_left_for_somebody_to_look_at(tmp_path):
    write(Checkpoints(tmp_path, keep=3), 1, 2)
    (checkpoint_folders(tmp_path)[1] / RUN_FILE).write_text("{")
    write(Checkpoints(tmp_path, keep=1), 3)
    assert names(tmp_path) == ["1", "3"]


@pytest.mark.parametrize("name", ["learner", RUN_FILE, "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "missing", "changed"])
def test_a_damaged_one_is_named_and_passed_over(tmp_path, name, how):
    write(Checkpoints(tmp_path, keep=3), 1, 2, 3)
    file = tmp_path / "0000000003" / name
    content = file.read_bytes()
    file.unlink()
    if how != "missing":
        file.write_bytes(content[:-2] if how == "cut" else content[:-3] + b"?" + content[-2:])
    path, state, (damage,) = newest_whole(tmp_path)
    assert (path.name, state.updates) == ("0000000002", 2)
    assert "0000000003" in str(damage)
    assert "\n" not in str(damage)


def test_one_of_a_newer_version_is_not_damaged(tmp_path):
    """It isn't passed over: nothing older is taken for the newest."""
    path = Checkpoints(tmp_path, keep=1).write(STATE, save_learner)
    (path / RUN_FILE).write_text(json.dumps({"format": 2, "surprise": 1}))
    write_manifest(path)
    with pytest.raises(ValueError, match=f"{RUN_FILE} is in format 2, .* Received: file=") as error:
        newest_whole(tmp_path)
    assert not isinstance(error.value, DamagedError)


def test_one_that_cannot_be_read_now_is_not_damaged(tmp_path):
    """No file descriptor is left."""
    write(Checkpoints(tmp_path, keep=1), 1)
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(ValueError, match="can't be read") as error:
            check_folder(tmp_path / "0000000001")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(error.value, DamagedError)


def test_links_are_no_checkpoints(tmp_path):
    write(Checkpoints(tmp_path / "elsewhere", keep=1), 9)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "0000000009").symlink_to(tmp_path / "elsewhere" / "0000000009")
    assert newest_whole(tmp_path / "run")[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"env_steps": 1}),
        json.dumps({"format": 1, "env_steps": -1}),
        json.dumps({"format": 1, "updates": 1.5}),
        json.dumps({"format": 1, "surprise": 1}),
        json.dumps({"format": 1, "episodes": {"return": "many"}}),
        json.dumps({"format": 1, "episodes": [1]}),
        json.dumps({"format": 1, "time_seconds": float("nan")}),
        json.dumps({"format": 1, "best_return": float("inf")}),
        json.dumps({"format": 1, "best": "yes"}),
        json.dumps({"format": 1, "event_files": {"x": "1"}}),
    ],
)
def test_a_state_that_no_run_has(tmp_path, text):
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(DamagedError, match=f"{RUN_FILE} holds no state of a run") as error:
        RunState.read(tmp_path)
    assert "\n" not in str(error.value)
