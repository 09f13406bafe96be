"""The end of the command line's process: Python's own, to the letter, and nothing after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from actor_learner.system.exiting import VARIABLE

pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, os, sys, threading, time
import ai_edge_litert
from actor_learner.system.exiting import exit_with

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
    done = subprocess.run(command, env=environment, text=True, timeout=60, **streams)
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
FLAGS = "--num-actors 0 --envs-per-actor 2 --unroll-length 8 --minibatch-size 16 --epochs 1 --total-steps 16 --quiet"


@pytest.mark.skipif(sys.platform != "linux", reason="on_exit is glibc's")
@pytest.mark.parametrize("usually", [False, True])
def test_nothing_native_runs_after_a_command(tmp_path, usually):
    (tmp_path / "aborts_in_the_end.py").write_text(ABORTS_IN_THE_END)
    words = ["train", "aborts_in_the_end:make", "--run-dir", "run", *FLAGS.split()]
    done = subprocess.run(
        [sys.executable, "-m", "actor_learner.cli", *words],
        cwd=tmp_path,
        env={**os.environ, VARIABLE: "1" if usually else ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (-signal.SIGABRT if usually else 0), done.stderr
    assert (tmp_path / "run/policy/policy.json").exists()


def test_a_script_that_uses_the_package_ends_as_usual():
    program = "import ai_edge_litert, ctypes, actor_learner; c = ctypes.CDLL(None); c.on_exit(c.abort, None)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == -signal.SIGABRT
