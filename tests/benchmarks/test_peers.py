"""The parts of `scripts/measure peers` that need no peer: ratios, the table, one run of a script, leftovers."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness import RunFailedError
from benchmarks.peers import compare as compare_peers, libraries, runs as peer_runs, table as peer_table
from benchmarks.peers.libraries import OURS, PEERS
from benchmarks.processes import marked
from benchmarks.works import WORKS

pytestmark = pytest.mark.slow


def runs(*figures):
    return [figure and {"speed": figure, "start_up": 2.0, "updates": 3, "memory": {}} for figure in figures]


@pytest.fixture
def work():
    return {
        "date": "2026-11-21",
        "machine": "2 cores of a processor",
        "command": "scripts/measure peers",
        "work": {"env": "CartPole-v1", "envs": 8, "unroll_length": 32, "minibatch_size": 64, "epochs": 1},
        "settings": {"lag0": {"actors": 2}, "lag1": {"actors": 1}, "sb3": {"threads": 1}, "sbx": {"threads": 2}},
        "runs": {
            "lag0": runs(100.0, 120.0, 110.0),
            "lag1": runs(210.0, 200.0, 190.0),
            "sb3": runs(10.0, 20.0, 38.0),
            "sbx": runs(50.0, None, 40.0),
        },
        "failures": {"sbx": "Killed"},
    }


def test_a_ratio_is_of_the_two_runs_of_a_round_and_leaves_failed_rounds_out(work):
    assert peer_table.ratio(work["runs"]["lag1"], work["runs"]["sb3"]) == (10.0, 5.0, 21.0)
    assert peer_table.ratio(work["runs"]["lag1"], work["runs"]["sbx"]) == pytest.approx((4.475, 4.2, 4.75))
    assert peer_table.ratio(runs(None, 1.0), runs(1.0, None)) is None


def test_the_fastest_is_by_median_and_a_peer_without_figures_is_none(work):
    assert peer_table.fastest(work["runs"], ["lag0", "lag1"]) == "lag1"
    assert peer_table.fastest(work["runs"], ["sb3", "sbx", "cleanrl_jax"]) == "sbx"
    assert peer_table.fastest({"sb3": runs(None)}, ["sb3"]) is None


def test_the_table_has_every_figure_and_says_who_failed_or_is_missing(work):
    solved = {
        **{key: work[key] for key in ("date", "machine", "command")},
        "goal": 475,
        "seconds": {"lag0": [8.0, 6.0, 7.0], "sb3": [14.0, None, 10.5]},
        "env_steps": {"lag0": [25_000, 20_000, 30_000], "sb3": [50_000, None, 40_000]},
        "failures": {},
    }
    found = {
        "versions": {"sb3": {"torch": "2.13"}, "ours": {"keras": "3.15"}},
        "not_installed": {"sample_factory": "no wheel"},
        "works": {"cartpole": work},
        "solve": solved,
    }
    text = peer_table.page(found)
    shape = "CartPole-v1, 8 envs x 32 steps, minibatch 64, 1 epoch"
    assert f"| {shape} | 200 (lag 1) | SBX | 10.0x | 4.5x |" in text
    assert "| SB3 | 20 (10 to 38) | 1 thread | 6.00 (2.89 to 10.00) | 10.00 (5.00 to 21.00) | 2.0 |  |  |" in text
    assert "| ours, lag 0 | 110 (100 to 120) | 2 actors |  |  | 2.0 |  |  |" in text
    assert "- SBX failed: `Killed`" in text
    assert "- Sample Factory is left out, it can't be installed: no wheel" in text
    assert "| SB3 | 12.2 (10.5 to 14.0) | 45,000 | 2 of 3 | 1.75x |" in text
    assert "| ours, lag 0 | 7.0 (6.0 to 8.0) | 25,000 | 3 of 3 |  |" in text


def test_every_peer_has_a_script_a_venv_and_works_that_there_are():
    for peer in (*OURS.values(), *PEERS.values()):
        assert (peer_runs.PROGRAMS / f"{peer.script}.py").exists()
        assert set(peer.works) <= set(compare_peers.ALL_WORKS)
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
    assert found.ticks == [(1e6 - 3, 90, None), (1e6, 100, None), (1e6 + 1, 200, None), (1e6 + 2, 300, None)]
    assert found.speed == 100.0
    assert found.start_up == 1e6 - 3 - found.begun
    assert found.memory["workers"] == 1
    assert found.memory["processes"] == 2
    assert found.memory["worker_pss"] < found.memory["largest_pss"] < found.memory["all_pss"]
    assert marked(str(tmp_path / "mark")) == set()
    assert set(Path("/dev/shm").glob("torch_*_left")) <= before


def test_the_goal_needs_a_hundred_episodes(tmp_path, monkeypatch):
    program = (
        "for episode in range(300):\n    clock.episode(500.0 if episode >= 100 else 20.0)\n"
        "    if clock.tick(10 * episode):\n        break\n"
    )
    found = run(peer_of(tmp_path, monkeypatch, program), goal=475)
    assert found.ticks[98][2] is None
    assert found.ticks[99][2] == 20.0
    assert found.ticks[-1][1:] == (10 * 194, pytest.approx(476.0))
    assert found.reached(475) == pytest.approx(found.ticks[-1][0] - found.begun)
    assert found.reached(500) is None


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


def test_a_peer_that_cannot_be_installed_is_told_of_in_a_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    pythons, _, failures = compare_peers.prepare_all(["sb3"], tmp_path / "file" / "venvs")
    assert "Not a directory" in failures["sb3"]
    assert list(pythons) == list(OURS)
    *_, line = capsys.readouterr().out.splitlines()
    assert line == f"SB3 is left out, it can't be installed: {failures['sb3']}"


def made(folder, program):
    """Make the interpreter of a venv that runs only this program."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)


@pytest.mark.parametrize(
    ("program", "reason"),
    [("echo Traceback >&2; echo 'it is gone' >&2; exit 1", "it is gone"), ("exec sleep 9", "timed out")],
)
def test_a_venv_that_is_broken_is_left_out_and_the_others_go_on(program, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "_VERSIONS_SECONDS", 0.3)
    made(tmp_path / "sb3", program)
    made(tmp_path / "cleanrl_jax", 'echo \'{"jax": "1.0"}\'')
    pythons, installed, failures = compare_peers.prepare_all(["sb3", "cleanrl_jax"], tmp_path)
    assert list(pythons) == [*OURS, "cleanrl_jax"]
    assert installed["cleanrl_jax"] == {"jax": "1.0"}
    assert "keras" in installed["ours"]
    assert list(failures) == ["sb3"]
    assert reason in failures["sb3"]


def test_of_what_pip_says_its_error_is_told():
    said = "WARNING: a\nERROR: No matching distribution found for ray==0.1\n\nnotice: there is a newer pip\n"
    assert libraries.last_line(said, prefix="ERROR") == "ERROR: No matching distribution found for ray==0.1"
    assert libraries.last_line(said) == "notice: there is a newer pip"
    assert libraries.last_line("") == "without a message"
