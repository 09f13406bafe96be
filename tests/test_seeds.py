"""Runs of several seeds: each in a process of its own, compared, resumed, and refused before one starts."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import types

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

import actor_learner as al
from actor_learner import cli
from actor_learner.runs.directory import SEEDS_FILE, RunDirectory, read_config, write_config
from actor_learner.seeds import SeedResults
from actor_learner.system.machine import available_cores
from tests.support.processes import patience, wait_until

COMMAND = [sys.executable, "-P", "-m", "actor_learner", "train", "--preset", "none", "--num-actors", "0"]
BRIEF = [*("--total-steps", "512", "--unroll-length", "32", "--minibatch-size", "none", "--epochs", "1")]

UNLUCKY = """
import os
import keras

class Unlucky(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if self.params["config"].seed == 1 and not os.path.exists("luck"):
            raise ValueError("no luck")
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("actor_learner.runs.directory.provenance", dict)  # which starts git


def train(*words):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=patience(240), check=False)


@pytest.mark.slow
def test_a_failed_seed_ends_no_other_and_is_trained_where_all_are_resumed(tmp_path):
    (tmp_path / "unlucky.py").write_text(UNLUCKY)
    done = train(*BRIEF, "--seeds", "0-1", "--run-dir", "all", "--callback", "unlucky:Unlucky")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    rows = {row.split()[0]: row for row in done.stdout.splitlines() if row.startswith("     ")}
    assert list(rows) == ["seed", "0", "1", "all"]
    assert rows["1"].endswith("all/seed-1  (no luck)")
    assert rows["all"].endswith("interquartile mean while training (1 of 2 seeds)")
    assert "train --resume all goes on" in done.stdout
    assert read_config("all/seed-0")["seed"] == 0

    (tmp_path / "luck").touch()
    before = (tmp_path / "all/seed-0/metrics.jsonl").stat().st_mtime_ns
    done = subprocess.run([*COMMAND[:5], "--resume", "all"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(bootstrap over 2 of 2 seeds)" in done.stdout
    assert "has the highest return. The run is in " in done.stdout
    assert (tmp_path / "all/seed-0/metrics.jsonl").stat().st_mtime_ns == before, "it had finished"
    assert (tmp_path / "all/curve.png").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted;"), (15, 143, "SIGTERM:")])
def test_a_signal_lets_runs_save_and_ends_them(number, code, word, tmp_path):
    many = ["--total-steps", "100000000", "--seeds", "3,5", "--run-dir", "all"]
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if number == 15 else None  # as `command &` does
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*COMMAND, *many], **pipes, preexec_fn=ignore)
    wait_until((tmp_path / "all/seed-3/metrics.jsonl").exists)
    process.send_signal(number)
    output, errors = process.communicate(timeout=patience(60))
    assert process.returncode == code
    assert "stopped" in output.splitlines()[-1]
    assert f"{word} the runs are saved in all, and go on from there with" in errors
    assert (tmp_path / "all/seed-3/checkpoints").is_dir()
    assert not (tmp_path / "all/seed-3/.lock").exists()
    assert not (tmp_path / "all/seed-5").exists()


def test_a_seed_that_cannot_start_and_a_closed_terminal_end_nothing(tmp_path, monkeypatch):
    config = al.TrainConfig(run_dir=tmp_path / "all", total_steps=512)
    write_config(tmp_path / "all" / SEEDS_FILE, config, seeds=[0, 1, 2, 3])
    for seed, row in enumerate(({}, {"episode_return": 7.0}, {})):
        (run := RunDirectory(tmp_path / f"all/seed-{seed}")).path.mkdir()
        write_config(run.config, config, finished={"env_steps": 1024})
        run.metrics.write_text(json.dumps({"env_steps": 1024} | row) + "\n")
    (tmp_path / "all/seed-0/config.json").write_text("{")

    def fails(*_, **__):
        raise BrokenPipeError("gone")

    monkeypatch.setattr("actor_learner.seeds.Child", fails)
    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(write=fails, flush=fails))
    seen = []
    results = al.train_seeds(config.replace(total_steps=1024), resume=True, stop=lambda failures: seen.extend(failures))
    assert seen == [0, 3], "failures are known to what may stop the others"
    assert "config.json is damaged" in results.failures.pop(0)
    assert results.failures == {3: "gone"}
    assert results.returns == {1: 7.0}
    assert results.table().splitlines()[3].endswith("(no episode finished)")
    assert read_config(tmp_path / "all")["total_steps"] == 1024


@pytest.mark.slow
def test_an_id_that_the_script_registered_is_known_to_its_runs(monkeypatch):
    spec = EnvSpec("Own/Pole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    config = al.TrainConfig(env=spec.id, num_actors=0, total_steps=64, unroll_length=16, run_dir="all")
    assert not al.train_seeds(config, [0]).failures


def test_runs_are_compared_by_the_interquartile_mean(tmp_path):
    results = SeedResults(tmp_path, dict.fromkeys(range(5), tmp_path), {0: 1.0, 1: 9.0, 2: 4.0, 3: 2.0}, {4: "why"})
    assert results.iqm == 3.0
    low, high = results.interval
    assert 1.0 <= low < 3.0 < high <= 9.0
    lines = results.table().splitlines()
    assert lines[5].split() == ["4", "-", str(tmp_path), "(why)"]
    assert lines[6].split()[:5] == ["all", "3.0", "interquartile", "mean", "while"]
    assert "mean of evaluations," in dataclasses.replace(results, metric="evaluation/return_mean").table()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0-2,1"], "`--seeds` must be different numbers."),
        (["--seeds", "2-0"], "argument --seeds: must be numbers or ranges, such as 0-4 or 0,3,7. Received: 2-0"),
        (["--seeds", "0-1", "--seed", "3"], "`--seed` can't be combined with `--seeds`"),
        (["--seeds", "0-1", "--overwrite"], "`--overwrite` can't be combined with `--seeds`"),
        (["--seeds", "0,1", "--parallel", "1000"], f"`--parallel` must be at most {available_cores()}, the cores"),
        (["--parallel", "2"], "`--parallel` needs `--seeds`. Received: --parallel 2"),
        (["--seeds", "0-1", "--run-dir", "other"], "must be a new or empty folder for runs of `--seeds`. Received"),
        (["--seeds", "0-1", "--run-dir", "all"], "must be a new folder; resume the runs of this one by --resume. Rec"),
        (["--resume", "all", "--seeds", "0-1"], "`--seeds` can't be combined with `--resume` of runs of `--seeds`."),
        (["CartPol-v1", "--seeds", "0-1"], "`CartPole-v1`"),
    ],
)
def test_what_is_refused_starts_nothing(words, message, tmp_path, capsys):
    write_config(tmp_path / "all" / SEEDS_FILE, al.TrainConfig(), seeds=[0, 1])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    assert cli.main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir()) == ["all", "other"]


def test_one_number_is_one_seed_and_a_line_says_so(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    assert cli.main(["train", "--seeds", "2", "--run-dir", "other"]) == 2
    assert "--seeds 2 is seed 2 alone; 2 seeds are --seeds 0-1" in capsys.readouterr().err


def test_a_resumed_folder_must_fit(tmp_path):
    write_config(tmp_path / "all" / SEEDS_FILE, al.TrainConfig(), seeds=[0, 1])
    with pytest.raises(ValueError, match="the folder's own, \\(0, 1\\). Received: seeds=\\(2,\\)"):
        al.train_seeds(al.TrainConfig(run_dir=tmp_path / "all"), [2], resume=True)
    with pytest.raises(ValueError, match="gamma"):
        al.train_seeds(al.TrainConfig(run_dir=tmp_path / "all", algorithm=al.PPO(gamma=0.5)), resume=True)
    with pytest.raises(ValueError, match="`seeds` must be different numbers. Received: seeds=5"):
        al.train_seeds(al.TrainConfig(), 5)
    with pytest.raises(ValueError, match="a folder that `train_seeds`"):
        al.train_seeds(al.TrainConfig(run_dir=tmp_path), resume=True)
