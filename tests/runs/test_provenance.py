"""What config.json says of where results come from."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from actor_learner.runs.recorded_config import git_commit
from actor_learner.system.machine import available_cores, cpu_model, machine

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.slow
@NEEDS_GIT
def test_the_commit_and_whether_files_differ_from_it(tmp_path):
    assert git_commit(tmp_path) is None
    git(tmp_path, "init")
    assert git_commit(tmp_path) is None  # no commit yet
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "untracked").touch()
    assert git_commit(tmp_path) == {"commit": commit, "dirty": False}
    assert git_commit(tmp_path / "runs") == {"commit": commit, "dirty": False}
    (tmp_path / "code.py").write_text("2\n")
    assert git_commit(tmp_path) == {"commit": commit, "dirty": True}


@pytest.mark.slow
@NEEDS_GIT
def test_a_monitor_that_a_repository_names_is_not_run(tmp_path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path / 'run'}; false")
    assert git_commit(tmp_path) is not None
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() is None


def test_what_the_cpu_calls_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("actor_learner.system.machine.ROOT", tmp_path)
    file = tmp_path / "proc/cpuinfo"
    file.parent.mkdir()
    file.write_text(
        "processor\t: 0\nmodel\t\t: 143\nmodel name\t: A CPU @ 2 GHz: fast\n\nprocessor\t: 1\nmodel name\t: B\n"
    )
    assert cpu_model() == "A CPU @ 2 GHz: fast"
    file.write_text("processor\t: 0\nBogoMIPS\t: 50\n")  # as on arm64
    unknown = cpu_model()
    assert unknown
    file.unlink()
    assert cpu_model() == unknown


def test_the_machine():
    here = machine()
    assert here["cores"] == available_cores()
    assert 0.1 < here["memory_gb"] < 1e5
    assert all(isinstance(here[name], str) and here[name] for name in ("cpu", "system"))
