"""The end of the command line's process: Python's own, to the letter, and nothing after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.system.aborts import VARIABLE
from tests.support.processes import patience
from tests.support.run_files import create_ended_run

pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, os, sys, threading, time
import ai_edge_litert
from actor_learner.system.aborts import exit_with

def main():
    {body}

exit_with(main)
"""
BODIES = {
    "code": "return 3",
    "negative code": "return -1",
    "exit": "sys.exit()",
    "exit with a code": "sys.exit(4)",
    "exit with a message": "sys.exit('no')",
    "exception": "raise ValueError('no')",
    "Ctrl-C": "raise KeyboardInterrupt",
    "function of atexit": "atexit.register(print, 'at exit'); return 0",
    "thread": "threading.Timer(0.2, print, ['from a thread']).start(); return 0",
    "Ctrl-C while a thread works": "threading.Timer(0.2, os.kill, [os.getpid(), 2]).start(); return 5",
    "open file": "global file; file = open(1, 'w', closefd=False); file.write('all of it'); return 0",
    "closed stdout": "sys.stdout.close(); return 0",
    "no stdout": "sys.stdout = None; return 0",
}


def run(body, *, usually, **streams):
    environment = {**os.environ, VARIABLE: "1" if usually else "", "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    done = subprocess.run(command, env=environment, text=True, timeout=patience(60), **streams)
    # Python's own report of an ignored exception has a colon, and a blank, after a name without a message.
    return done.returncode, done.stdout, done.stderr and done.stderr.replace("KeyboardInterrupt: ", "KeyboardInterrupt")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_exit_code_and_output_are_the_usual_ones(body):
    assert run(body, usually=False) == run(body, usually=True)


def test_so_they_are_where_the_disk_is_full():
    with open("/dev/full", "w") as full:
        ends = [run("print('lost'); return 0", usually=usually, stdout=full) for usually in (False, True)]
    assert ends[0] == ends[1]
    assert ends[0][0] == 120


ABORTS_IN_THE_END = """
import ctypes
import gymnasium

def make():
    library = ctypes.CDLL(None)
    library.on_exit(library.abort, None)
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="on_exit is glibc's")
def test_nothing_native_runs_after_a_command(tmp_path):
    (tmp_path / "aborts_in_the_end.py").write_text(ABORTS_IN_THE_END)
    spaces = Box(-10, 10, (4,)), Discrete(2)
    create_ended_run(tmp_path / "run", *spaces, al.default_network(*spaces, hidden_sizes=(4,)))
    words = ["evaluate", "run", "--env", "aborts_in_the_end:make", "--episodes", "1"]
    command = [sys.executable, "-m", "actor_learner.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    assert "return " in done.stdout


def test_a_script_that_uses_the_package_ends_as_usual():
    program = "import ai_edge_litert, ctypes, actor_learner; c = ctypes.CDLL(None); c.on_exit(c.abort, None)"
    assert subprocess.run([sys.executable, "-c", program], timeout=patience(60)).returncode == -signal.SIGABRT
