"""The last words of a process that native code ends: on stderr, or in the run's native.log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from actor_learner.system.aborts import native_log
from actor_learner.system.keras_import import silent_stderr
from tests.support.processes import patience

MESSAGE = "corrupted size vs. prev_size"
ABORT = f"""
import ctypes, os, sys, time
from pathlib import Path
from actor_learner.system.aborts import native_log
from actor_learner.system.keras_import import silent_stderr
from actor_learner.system.signals import Interrupts

def abort(*spaces):
    os.write(2, b"{MESSAGE}\\n")
    ctypes.CDLL(None).abort()
"""
TRAIN = """
import actor_learner as al

def network(*spaces):
    with silent_stderr():
        abort()

if __name__ == "__main__":
    al.train(al.TrainConfig(env="CartPole-v1", network=network, num_actors=0, run_dir=sys.argv[1]))
"""
HANG_UP = """
import fcntl, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with native_log(Path(sys.argv[1])), Interrupts(quiet=True) as interrupts:
    print("waiting", flush=True)
    while not interrupts.requested:
        time.sleep(0.01)
    abort()
"""


def run(program, folder, **streams):
    command = [sys.executable, "-c", ABORT + program, str(folder)]
    return subprocess.run(command, text=True, timeout=patience(120), **{"capture_output": not streams, **streams})


def is_complete(text):
    return MESSAGE in text and "Fatal Python error: Aborted" in text and "in abort" in text


@pytest.mark.slow
def test_an_abort_of_a_run_whose_stderr_is_hidden_is_in_its_log(tmp_path):
    done = run(TRAIN, tmp_path / "run")
    assert done.returncode == -signal.SIGABRT
    assert is_complete((tmp_path / "run/logs/native.log").read_text())
    assert MESSAGE not in done.stderr


@pytest.mark.slow
def test_any_other_abort_is_on_stderr_or_in_the_log_where_nobody_reads_that(tmp_path):
    program = "with native_log(Path(sys.argv[1])): abort()"
    done = run(program, tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert is_complete(done.stderr)
    assert run(program, tmp_path, stderr=subprocess.DEVNULL).returncode == -signal.SIGABRT
    assert "in abort" in (tmp_path / "native.log").read_text()


@pytest.mark.slow
def test_an_abort_after_the_terminal_was_closed_is_in_the_log(tmp_path):
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", ABORT + HANG_UP, str(tmp_path)]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        try:
            os.close(terminal)
            said = b""
            while not said.endswith(b"\n"):  # or the terminal is closed in the midst of the line
                said += os.read(ours, 64)
            assert said == b"waiting\r\n"
            os.close(ours)
            assert process.wait(patience(60)) == -signal.SIGABRT
        finally:
            process.kill()
    assert is_complete((tmp_path / "native.log").read_text())


def test_what_was_hidden_is_dropped_and_an_empty_log_is_removed(tmp_path):
    with native_log(tmp_path / "logs"):
        with silent_stderr():
            os.write(2, b"a remark")
            assert (tmp_path / "logs/native.log").read_bytes() == b"a remark"
        assert not (tmp_path / "logs").exists()  # as in a run that is killed from now on


def test_a_log_that_cannot_be_made_is_left_out(tmp_path):
    (tmp_path / "logs").touch()
    with native_log(tmp_path / "logs"), silent_stderr():
        os.write(2, b"a remark")
    assert not (tmp_path / "logs").read_bytes()
