"""The lock of a run directory."""

import os
import subprocess
import sys

import pytest

from actor_learner.runs.directory import LOCK_FILE, check_unlocked, run_lock
from tests.support.processes import is_alive, patience

OWNER = """
import sys, time
from pathlib import Path
from actor_learner.runs.directory import run_lock
with run_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_one_at_a_time(tmp_path):
    with run_lock(tmp_path):
        for attempt in (check_unlocked, lambda folder: run_lock(folder).__enter__()):
            with pytest.raises(ValueError, match=f"in use by a living run .process {os.getpid()}.; ") as error:
                attempt(tmp_path)
            assert "\n" not in str(error.value)
    check_unlocked(tmp_path)
    with run_lock(tmp_path):
        pass


def test_neither_it_nor_looking_leaves_a_trace(tmp_path):
    check_unlocked(tmp_path)
    check_unlocked(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []
    with run_lock(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK_FILE).exists()
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    with run_lock(tmp_path / "run"):
        pass
    assert os.listdir(tmp_path / "run") == ["file"]


@pytest.mark.slow
def test_it_dies_with_its_owner(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match=f"process {owner.pid}"):
            check_unlocked(tmp_path)
    finally:
        owner.kill()
        owner.wait(timeout=patience(10))
        owner.stdout.close()
    assert (tmp_path / LOCK_FILE).exists()
    with run_lock(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"


@pytest.mark.slow
def test_what_a_run_starts_does_not_have_its_lock(tmp_path):
    with run_lock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        assert is_alive(child.pid)
        check_unlocked(tmp_path)
    finally:
        child.communicate(b"\n", timeout=patience(10))


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("somebody's")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        run_lock(tmp_path).__enter__()
    assert (tmp_path / "elsewhere").read_text() == "somebody's"
