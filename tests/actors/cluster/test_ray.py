"""Ray itself, on simulated hosts."""

from __future__ import annotations

import fcntl
import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from benchmarks import hosts
from benchmarks.cluster import faults
from tests.actors.cluster.conftest import needs_ray
from tests.support.processes import patience

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900), needs_ray]


@pytest.fixture(autouse=True)
def alone():
    """There is one network of simulated hosts on a machine, and other tests may want it."""
    if reason := hosts.unavailable():
        pytest.skip(reason)
    with (Path(tempfile.gettempdir()) / "actor-learner-hosts.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def two_hosts(alone):
    hosts.down_all()
    try:
        for name in "AB":
            hosts.up(name)
            hosts.start_ray(name, "A")
        yield
    finally:
        hosts.down_all()


def train(*words):
    command = hosts.inside("A", "actor-learner", "train", *map(str, words))
    return subprocess.run(
        command, env=hosts.environment(), capture_output=True, text=True, timeout=patience(200), check=True
    )


def test_a_run_on_two_hosts_goes_on_without_them(two_hosts, tmp_path):
    run = tmp_path / "run"
    size = ["--num-envs", 8, "--unroll-length", 32, "--preset", "none", "--vectorization", "sync"]
    train("CartPole-v1", *size, "--ray", "auto", "--num-actors", 4, "--total-steps", 2560, "--run-dir", run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"host/this machine/steps_per_second", "host/host-B/megabytes_per_second"} <= rows[-1].keys()
    train("--resume", run, "--ray", "none", "--num-actors", 1, "--total-steps", 5120)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] == 5120


def test_a_host_that_is_cut_off_is_replaced_and_ends_itself():
    found = faults.measure("cable cut")
    assert found["wrong"] == 0
    assert any("gave no sign of life for 5 s" in cause for cause in found["restarts"])


def test_nothing_is_left_of_a_learner_that_is_killed_while_a_cable_is_cut():
    assert faults.measure("learner killed, cable cut") == {"left": []}
