"""However the caller ends, its actors, their simulators and their memory are gone soon after."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import is_alive, patience, wait_until

pytestmark = pytest.mark.slow


CALLER = Path(__file__).parent / "caller.py"
ACTORS = 4


class Caller:
    """A process of its own that runs `caller.py`, and what it leaves behind."""

    def __init__(self, how: str, directory: Path) -> None:
        self.pids, self.temporary = directory / "pids", directory / "tmp"
        self.seconds = patience(2.0)  # that it lets its actors be silent
        self.pids.mkdir()
        self.temporary.mkdir()
        environment = os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, CALLER, how, self.pids, str(self.seconds)],
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> None:
        """Ends it and what it forked."""
        with self.process, contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def started(self) -> list[int]:
        """Actors and simulators."""
        return [int(name) for name in os.listdir(self.pids)]

    def descendants(self) -> list[int]:
        """Its children, whatever they are."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in children for pid in task.read_text().split()]

    def assert_nothing_is_left(self, also: list[int]) -> None:
        everything = {*self.started(), *also}
        assert wait_until(lambda: not any(map(is_alive, everything))), [p for p in everything if is_alive(p)]
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def start(tmp_path):
    callers = []

    def start(how, directory=tmp_path):
        callers.append(Caller(how, directory))
        callers[-1].wait_until_ready()
        return callers[-1]

    yield start
    for caller in callers:
        caller.end()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("how", [pytest.param("collect", marks=pytest.mark.thorough), "fork"])
def test_a_killed_caller_takes_idle_sleeping_spinning_and_stopped_actors_with_it(start, how):
    caller = start(how)
    assert len(caller.started()) == 2 * ACTORS
    assert wait_until(lambda: any(map(is_stopped, caller.started())))
    descendants = [pid for pid in caller.descendants() if how != "fork" or b"caller.py" not in command_line(pid)]
    assert len(descendants) == ACTORS + 1
    caller.process.kill()
    caller.assert_nothing_is_left(descendants)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_caller_killed_while_its_actors_start(start, tmp_path):
    chance = random.Random(0)
    for attempt in range(3):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        caller = start("start", directory)
        time.sleep(chance.uniform(0.1, 1.0))
        descendants = caller.descendants()
        caller.process.kill()
        caller.process.communicate()
        caller.assert_nothing_is_left(descendants)


def test_ctrl_c_twice_quickly(start):
    caller = start("collect")
    assert wait_until(lambda: any(map(is_stopped, caller.started())))
    descendants = caller.descendants()
    for _ in range(2):
        caller.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, errors = caller.process.communicate(timeout=patience(60))
    assert caller.process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    caller.assert_nothing_is_left(descendants)


def test_a_caller_that_was_paused_looks_before_it_judges_and_a_pool_that_is_never_closed_ends_with_it(start):
    caller = start("pause and forget")
    descendants = caller.descendants()
    caller.process.send_signal(signal.SIGSTOP)
    time.sleep(2 * caller.seconds)
    caller.process.send_signal(signal.SIGCONT)
    output, errors = caller.process.communicate(timeout=patience(60))
    assert output == "collected, replaced: 0\n", errors
    assert caller.process.returncode == 1
    assert errors.rstrip().endswith("ZeroDivisionError: the caller has forgotten its pool")
    caller.assert_nothing_is_left(descendants)
