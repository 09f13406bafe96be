"""Which cgroups limit a process, in each of the ways that systems lay them out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from actor_learner.system import machine
from actor_learner.system.machine import cgroup_limit, cpu_quota, own_groups, read_lines, read_number


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class System:
    """A made-up system: what /proc/self/cgroup says, and files below /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.mounted, self.own = root / "sys/fs/cgroup", root / "proc/self/cgroup"
        self.mounted.mkdir(parents=True)

    def is_in(self, *lines: str) -> None:
        write(self.own, "".join(f"{line}\n" for line in lines))

    def write(self, name: str, text: str) -> None:
        write(self.mounted / name, f"{text}\n")

    def folders(self, controller: str) -> list[str]:
        groups = own_groups(controller)
        return [f"{group.version}:{group.folder.relative_to(self.mounted)}" for group in groups]


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return System(tmp_path)


def test_version_2(system):
    system.is_in("0::/user.slice/run.scope")
    assert system.folders("memory") == ["2:user.slice/run.scope", "2:user.slice", "2:."]
    assert system.folders("cpu") == system.folders("memory")


def test_version_1_has_a_hierarchy_for_each_controller(system):
    system.is_in("4:memory:/job/step", "3:cpu,cpuacct:/")
    (system.mounted / "cpu").mkdir()
    assert system.folders("memory") == ["1:memory/job/step", "1:memory/job", "1:memory"]
    assert system.folders("cpu") == ["1:cpu"]


def test_version_1_where_controllers_are_mounted_together_and_no_link_leads_there(system):
    system.is_in("3:cpu,cpuacct:/a")
    (system.mounted / "cpu,cpuacct").mkdir()
    assert system.folders("cpu") == ["1:cpu,cpuacct/a", "1:cpu,cpuacct"]


def test_a_hybrid_has_both(system):
    system.is_in("4:memory:/a", "1:name=systemd:/b", "0::/c")
    (system.mounted / "unified").mkdir()
    (system.mounted / "memory").mkdir()
    assert system.folders("memory") == ["1:memory/a", "1:memory", "2:unified/c", "2:unified"]
    assert system.folders("cpu") == ["2:unified/c", "2:unified"]


def test_a_path_may_hold_colons_and_lead_out_of_what_a_container_sees(system):
    system.is_in("0::/../odd:name")
    system.write("memory.max", "7000000")
    assert cgroup_limit() == 7e6


def test_no_cgroups(system):
    assert system.folders("memory") == []
    assert cgroup_limit() == math.inf
    assert cpu_quota() == math.inf


def test_the_least_limit_of_version_2_is_that_of_memory(system):
    system.is_in("0::/outer/inner")
    system.write("outer/inner/memory.max", "max")
    system.write("outer/memory.max", "3000000000")
    system.write("memory.max", "9000000000")
    assert cgroup_limit() == 3e9


def test_what_throttles_is_a_limit_too(system):
    system.is_in("0::/job")
    system.write("job/memory.max", "3000000000")
    system.write("job/memory.high", "2000000000")
    assert cgroup_limit() == 2e9


def test_the_memory_limit_of_version_1(system):
    system.is_in("4:memory:/job")
    system.write("memory/memory.limit_in_bytes", "9223372036854771712")
    assert cgroup_limit() == math.inf
    system.write("memory/job/memory.limit_in_bytes", "5000000000")
    assert cgroup_limit() == 5e9


@pytest.mark.parametrize(
    ("version", "files", "cores"),
    [
        (1, {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "100000"}, 1.5),
        (1, {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, math.inf),
        (2, {"job/cpu.max": "150000 100000"}, 1.5),
        (2, {"job/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, 2.0),
        (2, {"cpu.max": "max 100000"}, math.inf),
    ],
)
def test_the_smallest_cpu_quota_of_those_around_holds(system, version, files, cores):
    system.is_in("3:cpu,cpuacct:/job" if version == 1 else "0::/job")
    for name, text in files.items():
        system.write(name, text)
    assert cpu_quota() == cores


@pytest.mark.parametrize(("text", "number"), [("12\n", 12), ("max\n", None), ("-1\n", None), ("", None)])
def test_a_number(tmp_path, text, number):
    write(tmp_path / "file", text)
    assert read_number(tmp_path / "file") == number


def test_what_cannot_be_read_is_empty(tmp_path):
    assert read_number(tmp_path / "nowhere") is None
    assert read_lines(tmp_path) == []
