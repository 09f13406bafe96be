"""scripts/measure speed: ratios, and trees of other commits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.harness import RunFailedError, ratio_of, run_python
from benchmarks.speed.speed import UnknownRefError, commit_of, tree_of, working_tree
from tests.support.processes import patience

pytestmark = pytest.mark.thorough


def git(folder, *words):
    name = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """Make two commits of packages with different versions."""
    folder = tmp_path / "repository"
    for package in ("actor_learner", "envs"):
        (folder / package).mkdir(parents=True)
    git(folder, "init", "--quiet")
    for version in ("first", "second"):
        for package in ("actor_learner", "envs"):
            (folder / package / "__init__.py").write_text(f"version = {version!r}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", version)
        git(folder, "tag", version)
    return folder


def test_a_ratio_is_the_median_of_the_rounds_and_lies_in_its_interval():
    ratio = ratio_of([20.0, 33.0, 44.0, 50.0, 63.0], [10.0, 11.0, 11.0, 10.0, 21.0])
    assert ratio.median == 3.0
    assert 2.0 <= ratio.low < ratio.median < ratio.high <= 5.0
    assert ratio_of([6.0, 3.0], [2.0, 1.0]) == pytest.approx((3.0, 3.0, 3.0))


def test_python_imports_the_commit_that_was_asked_for(repository, tmp_path):
    trees = (
        tree_of(commit_of("first", repository), tmp_path / "there", repository),
        working_tree(tmp_path / "here", repository),
    )
    program = "import actor_learner as a, actor_learner_envs as e; print(a.version, e.version)"
    printed = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for tree in trees
    ]
    assert printed == [["first"] * 2, ["second"] * 2]
    status = subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, check=True)
    assert status.stdout == b""


@pytest.mark.parametrize("ref", ["nowhere", "", "--all"])
def test_a_ref_that_isnt_there_is_one_line(ref, repository):
    with pytest.raises(UnknownRefError, match="there is no such commit") as caught:
        commit_of(ref, repository)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "reason"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import time; time.sleep(600)", "it hadn't ended after 0.2 s")],
)
def test_a_run_that_fails_or_never_ends_is_one_line(program, reason, tmp_path):
    with pytest.raises(RunFailedError, match=f"failed: {reason}$"):
        run_python(["-c", program], path=tmp_path, seconds=0.2 if "sleep" in program else patience(60.0))
