"""What a process tree takes, measured on real processes that grow."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actor_learner.system import machine, memory
from actor_learner.system.memory import MemorySampler, Usage, cpu_shares, measure
from tests.support.processes import is_alive, patience, wait_until

pytestmark = pytest.mark.slow


MB = 1_000_000

GROWING = """
import sys
kept = []
print("ready", flush=True)
for line in sys.stdin:
    kept.append(b"x" * int(line))
    print("grown", flush=True)
"""

# Starts a process that takes 60 MB or so many bytes, and waits, or ends at once and leaves it an orphan.
STARTING = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
grandchild.stdout.readline()
grandchild.stdin.write(f"{sys.argv[3] if sys.argv[3:] else 60_000_000}\\n".encode())
grandchild.stdin.flush()
grandchild.stdout.readline()
print(grandchild.pid, flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
import os
os._exit(0)
"""


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """The folder in which processes are found, which is empty."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


@pytest.fixture(params=["proc", "ps"])
def source(request, monkeypatch):
    """Where the processes are found: without /proc, as on macOS, `ps` tells them."""
    if request.param == "ps":
        monkeypatch.setattr(machine, "ROOT", Path("/nowhere"))


class Child:
    """A process in a session of its own, as actors are."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-S", "-c", program, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.said = self.process.stdout.readline().strip()

    def grow(self, size: int) -> None:
        """Takes `size` bytes more."""
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "grown\n"


@pytest.fixture
def start():
    children = []

    def start(*arguments):
        children.append(Child(*arguments))
        return children[-1]

    yield start
    for child in children:
        child.process.kill()
        child.process.communicate()


def test_an_actor_that_grows(start, source):
    still, growing = start(GROWING), start(GROWING)
    pids = {0: still.pid, 3: growing.pid}
    before = measure(pids)
    growing.grow(50 * MB)
    after = measure(pids)
    assert after.actors[3] - before.actors[3] == pytest.approx(50 * MB, rel=0.1)
    assert abs(after.actors[0] - before.actors[0]) < 2 * MB
    assert abs(after.learner - before.learner) < 20 * MB
    assert after.total == after.learner + sum(after.actors.values())


def test_this_process_grows(source):
    """By more than what other tests in this process give back or take at the same time."""
    before = measure({})
    taken = b"x" * 300 * MB
    assert measure({}).learner - before.learner == pytest.approx(len(taken), rel=0.15)


def test_an_orphan_of_an_actor_still_counts_as_its_own(start, source):
    """Its parent is another one by now, its group and session aren't."""
    actor = start(STARTING, GROWING + "import time\ntime.sleep(600)", "end")
    try:
        assert wait_until(lambda: not is_alive(actor.pid))
        usage = measure({0: actor.pid})
    finally:
        os.kill(int(actor.said), signal.SIGKILL)
    assert 60 * MB < usage.actors[0] < 80 * MB


SHARED_PAGES = """
import mmap, os, signal, sys, time
from actor_learner.system.memory import measure
MB = 1_000_000
shared = mmap.mmap(-1, 80 * MB)
before = measure({})
shared.write(b"x" * (80 * MB))
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    sum(shared[::4096])  # touches every page
    os.write(writing, b"x")
    time.sleep(600)
    os._exit(0)
os.read(reading, 1)
usage = measure({0: child})
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(usage.actors[0] / MB, (usage.total - before.total) / MB)
"""


def test_shared_pages_count_once():
    """Each of two processes that map 80 MB is charged with half of them; resident size would count them twice."""
    done = subprocess.run([sys.executable, "-c", SHARED_PAGES], capture_output=True, text=True, check=True)
    actor, together = map(float, done.stdout.split())
    assert actor >= 40
    assert together == pytest.approx(80, rel=0.25)


def test_an_actor_that_is_gone_takes_nothing(start):
    child = start(GROWING)
    child.process.kill()
    assert wait_until(lambda: not is_alive(child.pid))
    assert measure({0: child.pid, 1: 1 << 30}).actors == {0: 0, 1: 0}  # a zombie, and nobody


def test_a_process_may_be_called_anything(start):
    name = ") R 1 1 (é\n"
    program = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n" + GROWING
    child = start(program)
    child.grow(30 * MB)
    assert measure({0: child.pid}).actors[0] > 30 * MB


def test_without_smaps_rollup_resident_size_counts(proc):
    """As on kernels before 4.14: a /proc of links to the real one, without that file."""
    pid = str(os.getpid())
    (proc / pid).mkdir()
    for name in ("stat", "status"):
        (proc / pid / name).symlink_to(f"/proc/{pid}/{name}")
    (proc / "self").symlink_to(pid)
    (resident,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    assert measure({}).learner == pytest.approx(int(resident.split()[1]) * 1024, rel=0.05)


def test_ids_that_changed_hands_while_the_table_was_read_are_no_endless_loop(proc):
    for pid, parent in ((2, 3), (3, 2), (os.getpid(), 2)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} (python) S {parent} {pid} {pid} 0")
        (proc / str(pid) / "status").write_text("VmRSS:\t  7 kB\nVmSwap:\t  3 kB\n")
    (proc / "self").symlink_to(str(os.getpid()))
    usage = measure({5: 77})
    assert (usage.learner, usage.actors) == (10 * 1024, {5: 0})


BUSY = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end:
        pass
    print("grown", flush=True)
"""


def test_cpu_seconds_are_those_of_whoever_used_them(start, source):
    idle, busy = start(BUSY), start(BUSY)
    pids = {0: idle.pid, 3: busy.pid}
    before = measure(pids)
    busy.grow(1.1)
    after = measure(pids)
    shares = cpu_shares(before, after, 2.0)
    assert set(shares) == {None, 0, 3}
    assert 0.45 < shares[3] < 1.1  # `ps` counts whole seconds
    assert shares[0] < 0.3
    assert cpu_shares(before, after, 4.0)[3] == pytest.approx(shares[3] / 2)


def test_a_process_that_is_new_counts_from_its_beginning_and_one_that_is_gone_not_at_all():
    before = Usage(0, {}, {(None, 1): 5.0, (0, 2): 7.0, (1, 4): 9.0})
    after = Usage(0, {0: 0, 1: 0}, {(None, 1): 6.0, (0, 3): 3.0, (1, 4): 1.0})  # the last: another one of that number
    assert cpu_shares(before, after, 2.0) == {None: 0.5, 0: 1.5, 1: 0.5}


def test_shares_of_the_cpu_come_with_the_second_measurement(start, monkeypatch):
    monkeypatch.setattr(memory, "_MAX_SHARE", 1e6)
    actor = start(BUSY)
    sampler = MemorySampler(lambda: {1: actor.pid}, seconds=3600, second_after=1e-6)
    started = time.monotonic()
    assert set(sampler.metrics()) == {"memory/learner_mb", "memory/actor_1_mb"}
    actor.grow(0.1)
    second = sampler.metrics()
    assert second.keys() >= {"cpu/learner", "cpu/actor_1"}
    assert second["cpu/actor_1"] * (time.monotonic() - started) > 0.07  # CPU time is told in hundredths of seconds
    assert sampler.metrics() == second


@pytest.mark.skipif(memory._busy_seconds() is None, reason="needs Linux's /proc/stat, and no quota")
def test_the_cpu_time_of_other_programs(monkeypatch):
    """Of a process whose parent has ended: it isn't this one's."""
    monkeypatch.setattr(memory, "_MAX_SHARE", 1e6)
    sampler = MemorySampler(dict, seconds=1e-6)
    started = time.monotonic()
    assert "cpu/others" not in sampler.metrics()
    busy = f"{shlex.quote(sys.executable)} -S -c 'import time\nwhile time.process_time() < 1: pass' &"
    subprocess.run(["sh", "-c", busy], stdout=subprocess.PIPE, check=True)  # until nobody holds the pipe
    found = sampler.metrics()
    assert found["cpu/others"] * (time.monotonic() - started) > 0.8
    assert 0 <= found["cpu/pressure"] <= 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:00:07", 7), ("1-02:03:04", 93784), ("0:01.25", 1.25), ("70:00", 4200)]
)
def test_times_as_ps_writes_them(text, seconds):
    assert memory._parse_ps_time(text) == seconds


def test_the_sampler_measures_no_more_often_than_it_should(start):
    actor = start(GROWING)
    sampler = MemorySampler(lambda: {2: actor.pid}, seconds=3600)
    first = sampler.metrics()
    assert set(first) == {"memory/learner_mb", "memory/actor_2_mb"}
    assert first["memory/learner_mb"] == pytest.approx(measure({}).learner / 1e6, rel=0.3)
    actor.grow(30 * MB)
    assert sampler.sample() is None
    assert sampler.metrics() == first


def test_a_sampler_whose_measuring_is_dear_measures_less_often(monkeypatch):
    monkeypatch.setattr(memory, "_MAX_SHARE", 1e-9)
    sampler = MemorySampler(dict, seconds=1e-6)
    assert sampler.sample() is not None
    assert sampler.sample() is None


def test_without_a_descriptor_left_the_sampler_keeps_what_it_had():
    """Measuring needs one; a run doesn't end because it can't be watched."""
    program = """
import os, resource
from actor_learner.system import machine, memory
memory._MAX_SHARE = 1e6
sampler = memory.MemorySampler(dict, seconds=1e-6)
before = sampler.metrics()
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
assert sampler.sample() is None
assert sampler.metrics() == before and before["memory/learner_mb"] > 1
empty = memory.MemorySampler(dict)
assert empty.metrics() == {}
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr
