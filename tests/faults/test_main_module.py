"""Wherever the caller's code stands, its actors find it, run none of it twice and load nothing heavy that it imports.

One program for all: it has no `__main__` guard and defines its environment in itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.processes import patience

pytestmark = pytest.mark.slow

ENV = """
print("the program runs")
import sys
import gymnasium as gym
import numpy as np
import {heavy}

HEAVY = {{"tensorflow", "{heavy}"}}

class LeanEnv(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        flags = sys.flags.bytes_warning + ("utf8" in sys._xoptions)
        print("heavy modules:", len(HEAVY & set(sys.modules)), "flags:", flags)
        return np.array([0, 0], np.float32), {{}}

    def step(self, action):
        return np.array([0, 0], np.float32), 1.0, False, False, {{}}
"""
POOL = """
import threading
import actor_learner as al

def main():
    with al.ActorPool(LeanEnv, num_actors=1, envs_per_actor=2, unroll_length=4) as actors:
        print("rewards:", actors.collect().reward.sum())

thread = threading.Thread(target=main)
thread.start()
thread.join()
main()
"""
ACTORS = """
from actor_learner.actors.actor import make_startups
from actor_learner.actors.processes.group import ProcessActors
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.factory import resolve_env

settings = PoolSettings(start_timeout=600.0, actor_timeout=600.0, on_env_error="raise", max_restarts=0)
actors = ProcessActors(resolve_env(LeanEnv).dumps(), make_startups([1], settings), settings)
try:
    actors.start()
    print("actions:", actors.spaces(600.0)[""].gymnasium.action_space)
finally:
    actors.close()
"""
PROGRAM = ENV.format(heavy="heavy_module") + ACTORS
"""As the program with a pool, but without what the learner's side loads."""


def run(arguments, directory, text=None):
    """Runs Python as a user would."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        input=text,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )


def assert_ran(result, *printed):
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["the program runs", *printed]


def test_a_script_with_pools(tmp_path):
    """In a thread, whose pool is the process's first, and then in the main thread. Actors get Python's flags, too."""
    script = tmp_path / "script.py"
    script.write_text(ENV.format(heavy="keras") + POOL)
    folder = tmp_path / "working_directory"
    folder.mkdir()
    for name in ("types", "random", "queue", "json"):
        (folder / f"{name}.py").write_text("raise RuntimeError('this shadows a module of the standard library')\n")
    reset = "[actor 0] heavy modules: 0 flags: 2"
    result = run(["-b", "-X", "utf8", "-W", "ignore", script], folder)
    assert_ran(result, *[reset, reset, "rewards: 8.0"] * 2)


@pytest.mark.parametrize("way", ["-c", "-", "-m"])
def test_a_command_standard_input_and_a_module_of_a_package(tmp_path, way):
    (tmp_path / "heavy_module.py").write_text("")
    if way == "-m":
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "constants.py").write_text("HEAVY = {'tensorflow', 'heavy_module'}\n")
        (package / "program.py").write_text(PROGRAM.replace("HEAVY = {", "from .constants import HEAVY\nUNUSED = {"))
    result = run([way, {"-c": PROGRAM, "-": "", "-m": "package.program"}[way]], tmp_path, PROGRAM)
    assert_ran(result, "[actor 0] heavy modules: 0 flags: 0", "actions: Discrete(2)")


@pytest.mark.thorough
def test_a_notebook(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    (tmp_path / "heavy_module.py").write_text("")
    cells = [nbformat.v4.new_code_cell(source) for source in (ENV.format(heavy="heavy_module"), ACTORS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    options = {"timeout": int(patience(120)), "startup_timeout": int(patience(120))}
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **options)
    client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    printed = "".join(output["text"] for output in notebook.cells[1]["outputs"] if output.get("name") == "stdout")
    assert "[actor 0] heavy modules: 0 flags: 0" in printed
    assert "actions: Discrete(2)" in printed
