"""Wherever the caller's code stands, its actors find it, run none of it twice and load no TensorFlow.

One program for all: it imports keras at its top, has no `__main__` guard and defines its environment in itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


PROGRAM = """
print("the program runs")
import sys
import keras
import gymnasium as gym
import numpy as np
import actor_learner as al

HEAVY = {"tensorflow", "keras"}

class LeanEnv(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([len(HEAVY & set(sys.modules)), 0], np.float32), {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

def main():
    with al.ActorPool(LeanEnv, num_actors=2, envs_per_actor=2, unroll_length=4) as actors:
        for _ in range(2):
            trajectory = actors.collect()
            actors.publish(actors.network.get_weights())
        print("heavy modules:", trajectory.observation[..., 0].max(), "rewards:", trajectory.reward.sum())
"""

CALL = "\nmain()\n"
THREAD = "\nimport threading\nthread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
TRAP = "raise RuntimeError('this file shadows a module of the standard library')\n"


def run(arguments, directory, text=None, **environment):
    """Runs Python as a user would, in a folder where files named like the standard library's lie about."""
    folder = directory / "working_directory"
    folder.mkdir()
    for name in ("types", "random", "queue", "json"):
        (folder / f"{name}.py").write_text(TRAP)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder if environment.pop("TRAPS", "1") == "1" else directory,
        env=os.environ | environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_ran(result, times=1):
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["the program runs", *["heavy modules: 0.0 rewards: 16.0"] * times]


def test_a_script(tmp_path):
    """In a thread, whose pool is the process's first, and then in the main thread."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + THREAD + CALL)
    assert_ran(run([script], tmp_path), times=2)


def test_a_command(tmp_path):
    assert_ran(run(["-c", PROGRAM + CALL], tmp_path, TRAPS="0"))


def test_standard_input(tmp_path):
    assert_ran(run(["-"], tmp_path, PROGRAM + CALL, TRAPS="0"))


def test_a_module_of_a_package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "constants.py").write_text("HEAVY = {'tensorflow', 'keras'}\n")
    program = PROGRAM.replace("HEAVY = {", "from .constants import HEAVY\nUNUSED = {")
    (package / "program.py").write_text(program + CALL)
    assert_ran(run(["-m", "package.program"], tmp_path, TRAPS="0"))


def test_interpreter_flags_are_passed_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM.replace("len(HEAVY & set(sys.modules))", "sys.flags.bytes_warning + sys.flags.utf8_mode") + CALL
    )
    result = run(["-b", "-X", "utf8", "-W", "ignore", script], tmp_path)
    assert "heavy modules: 2.0" in result.stdout, result.stderr


def test_a_notebook(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    talking = PROGRAM.replace(
        "    def reset(", "    def close(self):\n        print('from the actor')\n\n    def reset("
    )
    cells = [nbformat.v4.new_code_cell(source) for source in (talking, CALL)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}, startup_timeout=120
    ).execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    printed = "".join(output["text"] for output in notebook.cells[1]["outputs"] if output.get("name") == "stdout")
    assert "heavy modules: 0.0 rewards: 16.0" in printed
    assert "[actor 0] from the actor" in printed
