"""Arenas: memory that is really there, shared by descriptor, and gone with its last holder."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from actor_learner.actors.transport import shared_memory
from actor_learner.actors.transport.shared_memory import Arena, anonymous_file
from actor_learner.system import machine
from actor_learner.system.machine import available_memory

FLOAT, BYTE = np.dtype(np.float32), np.dtype(np.uint8)


@pytest.fixture
def arena():
    arena = Arena.create()
    yield arena
    arena.close()


def test_fresh_memory_is_poisoned(arena):
    arena.reserve(4096)
    assert np.isnan(arena.array(0, (1024,), FLOAT)).all()
    assert (arena.array(64, (10,), np.dtype(np.int32)) == -1).all()


def test_reserved_memory_is_allocated_not_promised(arena):
    arena.reserve(1 << 20)
    status = os.fstat(arena.descriptor)
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20


def test_attached_arena_sees_what_the_creator_writes_and_the_other_way_round(arena):
    arena.reserve(4096)
    other = Arena(os.dup(arena.descriptor))
    other.attach(4096)
    arena.array(128, (3,), FLOAT)[:] = [1, 2, 3]
    np.testing.assert_array_equal(other.array(128, (3,), FLOAT), [1, 2, 3])
    other.array(128, (3,), FLOAT)[1] = 7
    assert arena.array(128, (3,), FLOAT)[1] == 7
    other.close()


def test_arrays_outlive_the_arena(arena):
    arena.reserve(4096)
    array = arena.array(0, (1024,), FLOAT)
    array[:] = 5
    arena.close()
    gc.collect()
    assert array.sum() == 5 * 1024


def test_close_is_idempotent_and_gives_descriptors_back():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        arena = Arena.create()
        arena.reserve(4096)
        arena.close()
        arena.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_than_there_is_raises_one_clear_error(arena):
    with pytest.raises(MemoryError, match=r"Too little shared memory.*num_actors.*Received: size=\d+$"):
        arena.reserve(1 << 50)


def test_a_refused_allocation_raises_the_same_error(arena, monkeypatch):
    def refuse(descriptor, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryError, match="No space left on device"):
        arena.reserve(4096)


def test_without_memfd_an_unlinked_file_takes_its_place(monkeypatch, tmp_path):
    def refuse(name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(shared_memory.tempfile, "tempdir", None)
    arena = Arena(anonymous_file("test"))
    arena.reserve(4096)
    arena.array(0, (4,), FLOAT)[:] = 1
    assert list(tmp_path.iterdir()) == []
    arena.close()


def test_other_errors_of_memfd_are_not_hidden(monkeypatch):
    def refuse(name):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        anonymous_file("test")


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", "del os.memfd_create; "])
def test_where_standard_streams_are_closed_it_takes_none_of_their_descriptors(without):
    program = (
        f"import os; {without}from actor_learner.actors.transport.shared_memory import anonymous_file; "
        "told = os.dup(2); os.close(0); os.close(1); os.close(2); "
        "os.write(told, str(anonymous_file('test') > 2).encode())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "True"


def test_available_memory_of_this_machine_is_plausible():
    available = available_memory()
    assert available is not None
    assert 1 << 20 < available < 1 << 50


VERSION_2 = {
    "proc/self/cgroup": "0::/outer/inner\n",
    "sys/fs/cgroup/outer/memory.max": "2000000000\n",
    "sys/fs/cgroup/outer/memory.current": "1500000000\n",
    "sys/fs/cgroup/outer/memory.stat": "anon 5\ninactive_file 100000000\n",
    "sys/fs/cgroup/outer/inner/memory.max": "max\n",
    "sys/fs/cgroup/outer/inner/memory.current": "1000\n",
}
VERSION_1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1000000000\n",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "400000000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "400000000\n",
}
HIDDEN_PATH = {
    "proc/self/cgroup": "0::/docker/abc\n",
    "sys/fs/cgroup/memory.max": "500000000\n",
    "sys/fs/cgroup/memory.current": "600000000\n",
}


@pytest.mark.parametrize(
    ("files", "available"),
    [({}, 8_000_000 * 1024), (VERSION_2, 600_000_000), (VERSION_1, 600_000_000), (HIDDEN_PATH, 0)],
)
def test_available_memory_is_what_the_system_and_the_tightest_cgroup_leave(tmp_path, monkeypatch, files, available):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert available_memory() is None
    files = {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n", **files}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory() == available
