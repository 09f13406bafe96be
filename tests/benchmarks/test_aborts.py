"""The search for aborts: what it counts, and that the runs get the signals that it sends."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import aborts

pytestmark = pytest.mark.slow


class Program(aborts.Run):
    """Runs a program in place of the command line."""

    program = ""

    def _command(self):
        return [sys.executable, "-c", self.program]


@pytest.mark.parametrize(
    ("program", "code"), [("import os; os.abort()", -6), ("print('corrupted size vs. prev_size')", 0), ("exit(3)", 3)]
)
def test_another_end_is_an_event_and_so_is_a_word_of_damage(tmp_path, program, code):
    for name in aborts.allocators():
        folder = tmp_path / name
        folder.mkdir()
        run = Program(folder, name, "end", delay=0.0, seed=0)
        run.program = program
        event = run.result()["event"]
        assert (event["allocator"], event["exit_code"]) == (name, code)
        assert ("corrupted" in event["texts"].get("output", "")) == ("corrupted" in program)


def test_a_run_that_is_interrupted_after_its_first_update_is_none(tmp_path):
    found = next(run for run in aborts.plan(tmp_path, ["glibc without caches"], 0) if run.how == "SIGHUP")
    found.folder.mkdir()
    assert found.result()["event"] is None


def test_signals_that_are_ignored_here_are_not_ignored_by_what_is_started():
    program = """
import signal, subprocess, sys
from benchmarks.faults import aborts
signal.signal(signal.SIGINT, signal.SIG_IGN)
with subprocess.Popen(["sleep", "60"]) as process:
    try:
        aborts.check_signals(process.pid)
    except RuntimeError as error:
        print(error)
    process.kill()
aborts.heed_signals()
with subprocess.Popen(["sleep", "60"]) as process:
    aborts.check_signals(process.pid)
    process.kill()
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    refusal, ignored = done.stdout.splitlines()
    assert "SIGINT is ignored" in refusal
    assert ignored == "False"
