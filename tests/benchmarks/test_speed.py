"""scripts/measure speed: its pinned loop, ratios, trees of other commits, history, and refusals."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from benchmarks.harness import RunFailedError, in_turns, ratio_of, run_python
from benchmarks.speed import speed
from benchmarks.speed.speed import UnknownRefError, commit_of, tree_of, working_tree

pytestmark = pytest.mark.slow


PINNED = "47a16b43594ef538533ed5f66e9159b14c5b125a0374e42bd97df58e7abc21d4"


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


def test_the_reference_loop_is_what_it_was():
    """A change of the loop must change this too: ratios before and after it can't be compared."""
    assert hashlib.sha256(speed.REFERENCE.read_bytes()).hexdigest() == PINNED


def test_a_ratio_is_the_median_of_the_rounds_and_lies_in_its_interval():
    ratio = ratio_of([20.0, 33.0, 44.0, 50.0, 63.0], [10.0, 11.0, 11.0, 10.0, 21.0])
    assert ratio.median == 3.0
    assert 2.0 <= ratio.low < ratio.median < ratio.high <= 5.0
    assert ratio_of([6.0, 3.0], [2.0, 1.0]) == pytest.approx((3.0, 3.0, 3.0))


def test_turns_alternate_who_begins():
    said = []
    found = in_turns({"a": lambda: said.append("a") or 1.0, "b": lambda: said.append("b") or 2.0}, 3)
    assert "".join(said) == "abbaab"
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_python_imports_the_commit_that_was_asked_for(repository, tmp_path):
    trees = (
        tree_of(commit_of("first", repository), tmp_path / "there", repository),
        working_tree(tmp_path / "here", repository),
    )
    program = "import actor_learner as a, actor_learner_envs as e; print(a.version, e.version)"
    printed = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for tree in trees
    ]
    assert printed == [["first"] * 2, ["second"] * 2]
    status = subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, check=True)
    assert status.stdout == b""


@pytest.mark.parametrize("ref", ["nowhere", "", "--all", "HEAD~99", "first:envs", "a b"])
def test_a_ref_that_isnt_there_is_one_line(ref, repository):
    with pytest.raises(UnknownRefError, match="there is no such commit") as caught:
        commit_of(ref, repository)
    assert "\n" not in str(caught.value)


def test_a_commit_without_the_packages_is_one_line(repository, tmp_path):
    git(repository, "rm", "--quiet", "-r", "envs")
    git(repository, "commit", "--quiet", "-m", "third")
    with pytest.raises(UnknownRefError, match="has no actor_learner and envs"):
        tree_of(commit_of("HEAD", repository), tmp_path / "there", repository)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--against", "no-such-ref"], "there is no such commit"), (["--rounds", "0"], "`rounds` must be at least 1")],
)
def test_what_cant_be_is_refused_in_one_line_and_leaves_nothing(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        speed.main([*words, "--output", str(tmp_path / "history")])
    said = capsys.readouterr().err
    assert (caught.value.code, said.count("\n")) == (2, 1)
    assert said.startswith(f"scripts/measure speed: error: {reason}")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_one_line(tmp_path):
    with pytest.raises(RunFailedError, match=r"failed: ZeroDivisionError: division by zero$"):
        run_python(["-c", "1 / 0"], path=tmp_path)


def test_a_run_that_never_ends_is_one_line(tmp_path):
    with pytest.raises(RunFailedError, match=r"failed: it hadn't ended after 0.2 s$"):
        run_python(["-c", "import time; time.sleep(60)"], path=tmp_path, seconds=0.2)


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(speed, "working_tree", lambda folder: pytest.fail("it is measured"))
    for output in ("file", "file/below", "file/far/below"):
        with pytest.raises(SystemExit, match="2"):
            speed.main(["--output", str(tmp_path / output)])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("scripts/measure speed: error: `output` must be a folder that can be written")


def test_history_is_never_overwritten(tmp_path):
    found = {"date": "2026-01-02", "git": {"commit": "0123456789abcdef", "dirty": True}, "works": {}}
    paths = [speed.write({**found, "number": number}, tmp_path / "history") for number in range(3)]
    stem = "2026-01-02-0123456789-changed"
    assert [path.name for path in paths] == [f"{stem}.json", f"{stem}-2.json", f"{stem}-3.json"]
    assert [json.loads(path.read_text())["number"] for path in paths] == [0, 1, 2]
    assert speed.write({**found, "git": None}, tmp_path).name == "2026-01-02-unknown.json"
