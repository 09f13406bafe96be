"""The parts of `scripts/measure peers` that need no peer: ratios, one run of a script, leftovers."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness import RunFailedError
from benchmarks.peers import libraries, runs as peer_runs, table as peer_table
from benchmarks.peers.libraries import OURS, PEERS
from benchmarks.processes import find_marked
from benchmarks.works import ALL_WORKS, WORKS

pytestmark = pytest.mark.thorough


def runs(*figures):
    return [figure and {"speed": figure, "start_up": 2.0, "updates": 3, "memory": {}} for figure in figures]


def test_a_ratio_is_of_the_two_runs_of_a_round_and_leaves_failed_rounds_out():
    found = {
        "lag0": runs(100.0, 120.0, 110.0),
        "lag1": runs(210.0, 200.0, 190.0),
        "sb3": runs(10.0, 20.0, 38.0),
        "sbx": runs(50.0, None, 40.0),
    }
    assert peer_table.ratio(found["lag1"], found["sb3"]) == (10.0, 5.0, 21.0)
    assert peer_table.ratio(found["lag1"], found["sbx"]) == pytest.approx((4.475, 4.2, 4.75))
    assert peer_table.ratio(runs(None, 1.0), runs(1.0, None)) is None
    assert peer_table.fastest(found, ["lag0", "lag1"]) == "lag1"
    assert peer_table.fastest(found, ["sb3", "sbx", "cleanrl_jax"]) == "sbx"
    assert peer_table.fastest({"sb3": runs(None)}, ["sb3"]) is None


def test_every_peer_has_a_script_a_venv_and_works_that_there_are():
    for peer in (*OURS.values(), *PEERS.values()):
        assert (peer_runs.PROGRAMS / f"{peer.script}.py").exists()
        assert set(peer.works) <= set(ALL_WORKS)
        assert peer.clock
    assert {peer.venv for peer in PEERS.values()} == set(libraries.VENVS)
    assert all(set(WORKS) <= set(peer.works) for peer in OURS.values())


def peer_of(tmp_path, monkeypatch, program, **fields):
    """A peer whose script is `program`, after the lines that read the task."""
    imports = "import os, subprocess, sys, time\nfrom benchmarks.peers.programs.clock import Clock, read_task\n"
    (tmp_path / "it.py").write_text(imports + "task = read_task()\nclock = Clock(task)\n" + program)
    monkeypatch.setattr(peer_runs, "PROGRAMS", tmp_path)
    return peer_runs.Peer("it", "it", "it", **fields)


def run(peer, **task):
    return peer_runs.run_peer(peer, Path(sys.executable), {"seconds": 0.0, **task})


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm")
def test_a_run_ends_when_enough_was_measured_and_nothing_is_left_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPARED_BY", str(tmp_path / "mark"))
    program = (
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open(f'/dev/shm/torch_{child.pid}_left', 'w').close()\n"  # as torch names its shared memory
        "clock.tick(90, at=task.now - 3)\nclock.tick(100, at=task.now)\ntime.sleep(1)\n"
        "clock.tick(200, at=task.now + 1)\nclock.tick(300, at=task.now + 2)\n"
        "assert clock.enough\n"
    )
    peer = peer_of(tmp_path, monkeypatch, program, worker="^sleep")
    before = set(Path("/dev/shm").glob("torch_*_left"))
    found = run(peer, seconds=1.5, now=1e6)
    assert found.ticks == [(1e6 - 3, 90), (1e6, 100), (1e6 + 1, 200), (1e6 + 2, 300)]
    assert found.speed == 100.0
    assert found.start_up == 1e6 - 3 - found.begun
    assert found.memory["workers"] == 1
    assert found.memory["processes"] == 2
    assert found.memory["worker_pss"] < found.memory["largest_pss"] < found.memory["all_pss"]
    assert find_marked(str(tmp_path / "mark")) == set()
    assert set(Path("/dev/shm").glob("torch_*_left")) <= before


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("clock.tick(1); print('it says why', file=sys.stderr); sys.exit(3)", "it says why"),
        ("clock.tick(1); time.sleep(1000)", "not done after 3 s"),
        ("clock.tick(1)", "it ended without a figure"),
    ],
)
def test_a_run_that_fails_says_why_in_a_line(tmp_path, monkeypatch, program, reason):
    peer = peer_of(tmp_path, monkeypatch, program, deadline=3.0 if "sleep" in program else 60.0)
    with pytest.raises(RunFailedError, match=reason) as raised:
        run(peer)
    assert "\n" not in str(raised.value)
