"""However the caller ends, its actors, their simulators and their memory are gone soon after."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import is_alive, wait_until

pytestmark = pytest.mark.slow


CALLER = Path(__file__).parent / "caller.py"
ACTORS = 4


class Caller:
    """A process of its own that runs `caller.py`, and what it leaves behind."""

    def __init__(self, how: str, directory: Path) -> None:
        self.pids, self.temporary = directory / "pids", directory / "tmp"
        self.pids.mkdir()
        self.temporary.mkdir()
        self.shared = set(os.listdir("/dev/shm"))
        environment = os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, CALLER, how, self.pids],
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def started(self) -> list[int]:
        """Actors and simulators."""
        return [int(name) for name in os.listdir(self.pids)]

    def descendants(self) -> list[int]:
        """Its children, whatever they are."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in children for pid in task.read_text().split()]

    def assert_nothing_is_left(self, also: list[int]) -> None:
        everything = {*self.started(), *also}
        assert wait_until(lambda: not any(map(is_alive, everything)), 5), [p for p in everything if is_alive(p)]
        assert list(self.temporary.iterdir()) == []
        assert set(os.listdir("/dev/shm")) <= self.shared


@pytest.fixture
def start(tmp_path):
    callers = []

    def start(how):
        callers.append(Caller(how, tmp_path))
        return callers[-1]

    yield start
    for caller in callers:
        caller.process.kill()
        caller.process.wait()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("how", ["collect", "fork"])
def test_a_killed_caller_takes_idle_sleeping_spinning_and_stopped_actors_with_it(start, how):
    caller = start(how)
    assert len(caller.started()) == 2 * ACTORS
    assert wait_until(lambda: any(map(is_stopped, caller.started())), 10)
    descendants = [pid for pid in caller.descendants() if how != "fork" or b"caller.py" not in command_line(pid)]
    assert len(descendants) == ACTORS + 1
    caller.process.kill()
    caller.assert_nothing_is_left(descendants)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_caller_killed_while_its_actors_start(tmp_path):
    chance = random.Random(0)
    for attempt in range(6):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        caller = Caller("start", directory)
        time.sleep(chance.uniform(0.1, 1.0))
        descendants = caller.descendants()
        caller.process.kill()
        caller.process.communicate()
        caller.assert_nothing_is_left(descendants)


def test_ctrl_c_twice_quickly(start):
    caller = start("interrupt")
    assert wait_until(lambda: any(map(is_stopped, caller.started())), 10)
    descendants = caller.descendants()
    for _ in range(2):
        caller.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, errors = caller.process.communicate(timeout=10)
    assert caller.process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    caller.assert_nothing_is_left(descendants)


def test_a_pool_that_is_never_closed_ends_with_the_interpreter(start):
    caller = start("forget")
    descendants = caller.descendants()
    _, errors = caller.process.communicate(timeout=20)
    assert caller.process.returncode == 1
    assert errors.rstrip().endswith("ZeroDivisionError: the caller has forgotten its pool")
    caller.assert_nothing_is_left(descendants)


def test_a_caller_that_was_paused_beyond_its_deadline_looks_before_it_judges(start):
    caller = start("pause")
    caller.process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    caller.process.send_signal(signal.SIGCONT)
    output, errors = caller.process.communicate(timeout=20)
    assert output == "collected, replaced: 0\n", errors
