"""Every code block of the README and of the pages in docs/ is run."""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
pytestmark = [pytest.mark.usefixtures("without_xla"), pytest.mark.slow]

COMMAND = [sys.executable, "-m", "actor_learner.cli"]


def blocks(language):
    """Return all blocks of a language in order, each once."""
    found = (block for page in PAGES.values() for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL))
    return list(dict.fromkeys(found))


def without_numbers(text):
    return re.sub(r"\d+(\.\d+)?", "N", text)


def run(command, directory):
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().splitlines()[0])
def test_python_blocks(code, tmp_path, monkeypatch):
    """Each block runs; only the first has an interpreter of its own, because importing TensorFlow takes long."""
    (tmp_path / "example.py").write_text(code)
    if code == blocks("python")[0]:
        printed = run([sys.executable, "example.py"], tmp_path)
        assert without_numbers(f"```\n\n```text\n{printed}```") in without_numbers(PAGES[ROOT / "README.md"])
    else:
        monkeypatch.chdir(tmp_path)
        policy = keras.config.dtype_policy()
        try:
            runpy.run_path("example.py", run_name="__main__")
        finally:
            keras.config.set_dtype_policy(policy)  # a page shows another one


def shell_lines():
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("git clone")]


def test_shell_blocks(tmp_path, monkeypatch):
    """The commands run one after the other. Some train, briefly; others that would train only parse their settings.

    Only the first, and those on another backend, have a process of their own: importing TensorFlow takes long.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    pytest.importorskip("Box2D")
    pytest.importorskip("mujoco")
    pytest.importorskip("matplotlib")
    trained = 0
    for line in shell_lines():
        words = shlex.split(line)
        if words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists()
            words = ["actor-learner", Path(words[0]).name, *words[1:]]
        assert Path(words[0]).name == "actor-learner"
        if "--help" in words:
            run([*COMMAND, *words[1:]], tmp_path)
        elif words[1] != "train" or "--resume" in words:
            assert cli.main(words[1:]) == 0
        elif trained < 3 or "--backend" in words:
            brief = [*words[1:], "--total-steps", "2000", "--quiet"]
            if trained and "--backend" not in words:
                assert cli.main(brief) == 0
            else:
                run([*COMMAND, *brief], tmp_path)
            trained += 1
        else:
            assert train_config(cli.parse(words[1:])).env == [*words, "CartPole-v1"][2]
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_links_and_pictures_exist():
    link = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"")
    targets = [path.parent / "".join(target) for path, page in PAGES.items() for target in link.findall(page)]
    assert targets
    local = [target for target in targets if not re.search("https?:/", str(target))]
    assert [target for target in local if not target.exists()] == []


def test_the_readme_is_short_and_its_figures_agree():
    """The first paragraph names the range of the ratios in the table; the rates are in the results of the peers."""
    readme = PAGES[ROOT / "README.md"]
    assert len(readme.encode()) <= 7_000
    speed = readme.partition("## Speed")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in speed.splitlines() if " envs x " in line]
    assert len(rows) == 4
    peers = (ROOT / "benchmarks" / "peers" / "peers.md").read_text(encoding="utf-8")
    assert all(rate in peers for row in rows for cell in row[1:] for rate in re.findall(r"^ (\d[\d,]*)", cell))
    ratios = [[re.findall(r"([\d.]+)x\)", cell) for cell in row[1:]] for row in rows]
    sb3, jax = ([float(row[column][0]) for row in ratios if row[column]] for column in (1, 3))
    opening = " ".join(readme.split("\n\n")[1].split())
    assert f"{min(sb3[:-1]):.0f} to {max(sb3[:-1]):.0f} times as fast as Stable-Baselines3" in opening
    assert f"{sb3[-1]} times on Pong" in opening
    assert f"{min(jax)} to {max(jax)} times as fast as the fastest peer" in opening
