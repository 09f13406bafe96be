"""The blocks marked `python` and `sh` of the README and of the pages in docs/ are run."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from actor_learner import cli
from actor_learner.cli.train import train_config
from tests.support.processes import patience

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
README = PAGES[ROOT / "README.md"]

COMMAND = [sys.executable, "-m", "actor_learner.cli"]


def blocks(language, pages):
    """Return all blocks of a language in order, each once."""
    found = (block for page in pages for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL))
    return list(dict.fromkeys(found))


def of_pages(language):
    """Return the blocks that aren't in the README."""
    return [block for block in blocks(language, PAGES.values()) if block not in blocks(language, [README])]


def without_numbers(text):
    return re.sub(r"\d+(\.\d+)?", "N", text)


def run(command, directory):
    of_tests = ("KERAS_BACKEND", "TF_NUM_INTRAOP_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in of_tests}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=patience(240), check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_python_of_the_readme_prints_what_it_shows(tmp_path):
    """For fewer steps than there."""
    (code,) = blocks("python", [README])
    assert "total_steps=50_000" in code
    (tmp_path / "example.py").write_text(code.replace("total_steps=50_000", "total_steps=3_000"))
    printed = run([sys.executable, "example.py"], tmp_path)
    assert without_numbers(f"```\n\n```text\n{printed}```") in without_numbers(README)


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
@pytest.mark.parametrize("code", of_pages("python"), ids=lambda code: code.strip().splitlines()[0])
def test_the_python_of_the_pages_runs(code, tmp_path, monkeypatch):
    (tmp_path / "example.py").write_text(re.sub(r"total_steps=\d\d_000", "total_steps=1_500", code))
    monkeypatch.chdir(tmp_path)
    policy = keras.config.dtype_policy()
    try:
        runpy.run_path("example.py", run_name="__main__")
    finally:
        keras.config.set_dtype_policy(policy)  # a page shows another one


def run_lines(lines, trainings):
    """Run commands one after the other, but for trainings after so many, whose settings are only parsed.

    Those that train, train briefly, on another backend in a process of their own.
    """
    trained = 0
    for line in lines:
        words = shlex.split(line)
        if words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists()
            if words[0] != "scripts/train":
                continue
            words = ["actor-learner", "train", *words[1:]]
        assert Path(words[0]).name == "actor-learner"
        if "--help" in words:
            run([*COMMAND, *words[1:]], Path())
        elif words[1] != "train" or "--resume" in words:
            assert cli.main(words[1:]) == 0
        elif trained < trainings or "--backend" in words:
            brief = [*words[1:], "--total-steps", "2000", "--quiet"]
            if "--backend" in words:
                run([*COMMAND, *brief], Path())
            else:
                assert cli.main(brief) == 0
            trained += 1
        else:
            assert train_config(cli.parse(words[1:])).env == [*words, "CartPole-v1"][2]


def shell_lines(found):
    lines = [line.partition("#")[0].strip() for block in found for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("git clone")]


@pytest.fixture(scope="module")
def of_the_readme(tmp_path_factory, without_xla):
    """A folder in which the commands of the README have run."""
    for package in ("mujoco", "matplotlib"):
        pytest.importorskip(package, reason=f"needs {package}")
    folder = tmp_path_factory.mktemp("readme")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        run_lines(shell_lines(blocks("sh", [README])), trainings=2)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_readme_run(of_the_readme):
    assert (of_the_readme / "curve.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_the_commands_of_the_pages_run(of_the_readme, monkeypatch):
    pytest.importorskip("Box2D", reason="needs Box2D")
    monkeypatch.chdir(of_the_readme)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_lines(shell_lines(of_pages("sh")), trainings=1)


def test_links_and_pictures_exist():
    link = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"")
    targets = [path.parent / "".join(target) for path, page in PAGES.items() for target in link.findall(page)]
    assert targets
    local = [target for target in targets if not re.search("https?:/", str(target))]
    assert [target for target in local if not target.exists()] == []


def test_the_readme_is_short():
    assert len(README.encode()) <= 7_000
