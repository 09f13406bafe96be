import math
import os

import pytest

from actor_learner.cores import available_cores, cpu_quota


@pytest.fixture
def cgroups(tmp_path):
    """A tree of cgroups, and the file that says this process is in the innermost."""
    (tmp_path / "mounted" / "outer" / "inner").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    return tmp_path / "mounted", own


def test_the_quota_of_the_own_cgroup(cgroups):
    mounted, own = cgroups
    (mounted / "outer" / "inner" / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(mounted, own) == 1.5


def test_the_smallest_quota_of_those_around_holds(cgroups):
    mounted, own = cgroups
    (mounted / "outer" / "inner" / "cpu.max").write_text("400000 100000\n")
    (mounted / "outer" / "cpu.max").write_text("200000 100000\n")
    (mounted / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(mounted, own) == 2.0


def test_no_quota(cgroups, tmp_path):
    mounted, own = cgroups
    (mounted / "outer" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(mounted, own) == math.inf
    assert cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") == math.inf


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_affinity_bounds_the_cores():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= available_cores() <= len(before)
