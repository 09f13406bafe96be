"""Searches with Optuna: what is refused first, what a trial is, and studies that outlive and join processes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.runs.directory import SEEDS_FILE, RunDirectory, run_lock, write_config
from tests.support.processes import patience, wait_until

optuna = pytest.importorskip("optuna", reason="needs optuna")

sweeps = importlib.import_module("actor_learner.sweep")
SPACE = {"learning_rate": {"log_uniform": [1e-5, 1e-2]}, "gamma": {"choice": [0.9, 0.99]}}
CONFIG = al.TrainConfig(quiet=True, num_actors=1)


def train(config, seeds, *, parallel=1, resume=False, stop=None):
    """Stand in for `train_seeds`: the return is the learning rate in thousandths; it notes each call."""
    del parallel, stop
    folder = Path(config.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "calls").open("a") as file:
        file.write(json.dumps([os.getpid(), folder.name, resume, config.algorithm.learning_rate]) + "\n")
    write_config(folder / SEEDS_FILE, config, seeds=seeds)
    if hang := os.environ.get("HANG"):
        Path(hang).touch()
        time.sleep(600)
    time.sleep(float(os.environ.get("SECONDS", "0")))
    runs = {seed: folder / f"seed-{seed}" for seed in seeds}
    return al.SeedResults(folder, runs, dict.fromkeys(seeds, 1000 * config.algorithm.learning_rate), {})


def main(trials):
    """Search in a process of its own, with a short heartbeat."""
    sweeps.train_seeds, sweeps._HEARTBEAT_SECONDS, sweeps._GRACE_SECONDS = train, 1, 2
    sweeps._LOOK_SECONDS = 0.1
    al.sweep(CONFIG.replace(run_dir="all"), SPACE, trials=int(trials), sampler="random")


def start(trials, **environment):
    program = "import sys; from tests.test_sweep import main; main(sys.argv[1])"
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-c", program, str(trials)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **environment}, start_new_session=True)


def calls():
    return [json.loads(line) for line in Path("all/calls").read_text().splitlines()]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if "drawn" not in request.node.name:
        monkeypatch.setitem(sys.modules, "matplotlib", None)  # which takes longer than the test
    monkeypatch.setattr("actor_learner.runs.directory.provenance", dict)  # which starts git
    monkeypatch.setattr(sweeps, "train_seeds", train)


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was_and_loses_no_trial():
    for kill in range(2):
        process = start(4, HANG=f"hangs-{kill}")
        assert wait_until(Path(f"hangs-{kill}").exists, 60)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(2.5)  # the grace period
    assert start(4).wait(patience(60)) == 0
    (study,) = optuna.get_all_study_summaries("sqlite:///all/study.db")
    found = optuna.load_study(study_name=study.study_name, storage="sqlite:///all/study.db").trials
    assert [trial.state.name for trial in found].count("COMPLETE") == 4
    assert {trial.state.name for trial in found} == {"COMPLETE", "FAIL"}
    seen = calls()
    assert [(name, resume) for _, name, resume, _ in seen[:3]] == [
        *(("trial-0", False), ("trial-0", True), ("trial-0", True))
    ]
    assert len({rate for *_, rate in seen[:3]}) == 1, "the same settings"
    assert sorted(name for _, name, _, _ in seen[3:]) == sorted({name for _, name, _, _ in seen} - {"trial-0"})


@pytest.mark.slow
def test_two_processes_share_a_study_and_train_each_trial_once():
    processes = [start(8, SECONDS="0.3") for _ in range(2)]
    assert [process.wait(patience(60)) for process in processes] == [0, 0]
    seen = calls()
    assert sorted(name for _, name, *_ in seen) == [f"trial-{number}" for number in range(len(seen))]
    assert len(seen) in (8, 9), "both may begin the last one"
    assert {pid for pid, *_ in seen} == {process.pid for process in processes}


UNLUCKY = """
import keras

class Unlucky(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if self.params["config"].algorithm.gamma == 0.5:
            raise ValueError("no luck")
"""


@pytest.mark.slow
def test_trials_train_fail_with_their_reason_and_are_pruned_by_their_evaluations(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unlucky.py").write_text(UNLUCKY)
    monkeypatch.syspath_prepend(tmp_path)
    brief = al.PPO(minibatch_size=None, epochs=1)
    config = al.TrainConfig(num_actors=0, quiet=True, unroll_length=32, algorithm=brief, total_steps=100_000)
    config = config.replace(eval_every=256, eval_episodes=1, callbacks=["unlucky:Unlucky"])
    pruner = optuna.pruners.ThresholdPruner(lower=1e6)
    found = al.sweep(config, {"gamma": {"choice": [0.5, 0.9]}}, trials=2, sampler="bruteforce", pruner=pruner)
    failed, pruned = sorted(found.study.trials, key=lambda trial: trial.params["gamma"])
    assert (failed.state.name, failed.user_attrs["failure"]) == ("FAIL", "seed 0: no luck")
    assert pruned.state.name == "PRUNED"
    assert pruned.intermediate_values[1] >= 8
    assert found.config is None
    lines = found.table().splitlines()
    assert lines == [f"trial {failed.number} failed: seed 0: no luck", "0 finished, 1 pruned, 1 failed"]


def test_the_best_settings_are_a_file_for_train_and_all_are_drawn(tmp_path, capsys):
    Path("space.toml").write_text("learning_rate = {uniform = [0.001, 0.01]}\nhidden_sizes = {choice = [[8], [9]]}\n")
    assert cli.main(["sweep", "--space", "space.toml", "--trials", "4", "--sampler", "random", "--run-dir", "all"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("trial 0: learning_rate 0.00")
    rows = [line.split() for line in said[8:13]]
    assert rows[0] == ["trial", "return", "hidden_sizes", "learning_rate"]
    assert [float(row[1]) for row in rows[1:]] == sorted((float(row[1]) for row in rows[1:]), reverse=True)
    assert said[13] == "4 finished, 0 pruned, 0 failed"
    assert said[14].startswith("The trials are drawn in all")
    best = al.load_config("all/best.toml")
    assert 1000 * best.algorithm.learning_rate == pytest.approx(float(rows[1][1]), abs=0.05)
    assert best.hidden_sizes in ((8,), (9,))
    assert (best.eval_every, best.run_dir) == (10_000, None)
    assert Path("all/parallel.png").stat().st_size > 10_000
    assert cli.main(["sweep", "--space", "space.toml", "--trials", "4", "--run-dir", "all"]) == 0
    assert len(calls()) == 4, "the study had its trials"


ENDS = [(SystemExit(143), "143"), (KeyboardInterrupt("run"), "the same command"), (ValueError("`run_dir`"), "run_dir")]


@pytest.mark.parametrize(("end", "message"), ENDS)
def test_a_trial_whose_process_is_interrupted_or_cannot_train_is_tried_again(end, message, monkeypatch):
    monkeypatch.setattr(sweeps, "train_seeds", raising(end))
    with pytest.raises(type(end), match=message):
        al.sweep(CONFIG.replace(run_dir="all"), SPACE, trials=1)
    monkeypatch.setattr(sweeps, "train_seeds", train)
    found = al.sweep(CONFIG.replace(run_dir="all"), SPACE, trials=1)
    assert [trial.state.name for trial in found.study.trials] == ["FAIL", "COMPLETE"]
    assert found.study.trials[0].params == found.study.trials[1].params
    assert found.table().splitlines()[-1] == "1 finished, 0 pruned, 0 failed"


def raising(error):
    def train_seeds(*_, **__):
        raise error

    return train_seeds


def test_a_trial_that_ends_its_process_again_and_again_fails(monkeypatch):
    monkeypatch.setattr(sweeps, "train_seeds", raising(OSError("No space left on device")))
    storage = optuna.storages.InMemoryStorage()
    for _ in range(4):
        with pytest.raises(OSError, match="No space left"):
            al.sweep(CONFIG.replace(run_dir="all"), SPACE, trials=1, storage=storage)
    found = al.sweep(CONFIG.replace(run_dir="all"), SPACE, trials=1, storage=storage)
    assert found.table().splitlines() == [
        "trial 3 failed: its process ended 4 times",
        "0 finished, 0 pruned, 1 failed",
    ]


@pytest.mark.parametrize("end", [None, ValueError("told so"), KeyboardInterrupt()])
def test_a_trial_that_another_process_took_for_dead_is_left_to_it(end, monkeypatch, capsys):
    storage = optuna.storages.InMemoryStorage()

    def asleep(*arguments, **options):
        monkeypatch.setattr(sweeps, "train_seeds", train)
        study = optuna.load_study(study_name="sweep", storage=storage)
        study.tell(0, state=optuna.trial.TrialState.FAIL)
        sweeps.Retry()(study, study.trials[0])
        if end is not None:
            raise end
        return train(*arguments, **options)

    monkeypatch.setattr(sweeps, "train_seeds", asleep)
    arguments = (CONFIG.replace(run_dir="all", quiet=False), SPACE)
    if isinstance(end, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            al.sweep(*arguments, trials=1, storage=storage)
    found = al.sweep(*arguments, trials=1, storage=storage)
    assert "trial 0 went to another process" in capsys.readouterr().out
    assert [trial.state.name for trial in found.study.trials] == ["FAIL", "COMPLETE"]


def test_a_trial_waits_for_runs_that_live_in_its_folder(monkeypatch):
    lock, waits = contextlib.ExitStack(), []
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(sleep=lambda seconds: waits.append(seconds) or lock.close()))
    with lock, sweeps._without_warnings():
        lock.enter_context(run_lock(Path("all/trial-0/seed-0")))
        trials = sweeps._Trials(CONFIG, sweeps._read(SPACE, CONFIG), [0], 1, Path("all"))
        study = optuna.create_study(direction="maximize")
        study.set_user_attr("sweep", {"id": "0"})
        trials.run(study, 1, wait=False)
    assert len(waits) == 1
    assert study.trials[0].state.name == "COMPLETE"


def test_an_interrupted_search_leaves_what_it_has(monkeypatch, capsys):
    def train_one(*arguments, **options):
        monkeypatch.setattr(sweeps, "train_seeds", raising(KeyboardInterrupt()))
        return train(*arguments, **options)

    monkeypatch.setattr(sweeps, "train_seeds", train_one)
    Path("space.toml").write_text("learning_rate = {uniform = [0.001, 0.01]}\n")
    assert cli.main(["sweep", "--space", "space.toml", "--run-dir", "all"]) == 130
    assert "1 finished, 0 pruned, 0 failed" in capsys.readouterr().out.splitlines()
    assert al.load_config("all/best.toml").algorithm.learning_rate == calls()[0][-1]


@pytest.mark.parametrize("sampler", ["bruteforce", optuna.samplers.GridSampler({"gamma": [0.9, 0.99]})])
def test_samplers_that_draw_each_setting_once_end_the_search(sampler):
    storage = optuna.storages.InMemoryStorage()
    for _ in range(2):
        found = al.sweep(CONFIG, {"gamma": SPACE["gamma"]}, trials=5, sampler=sampler, storage=storage)
        assert sorted(trial.params["gamma"] for trial in found.study.trials) == [0.9, 0.99]


def test_a_failed_run_ends_the_others_of_its_trial():
    pruning = sweeps._Pruning(None, Path(), [0, 1], 100)
    assert not pruning({})
    assert pruning({1: "NaN"})
    assert not pruning.pruned


@pytest.mark.parametrize("count", [49, 50])
def test_the_importance_is_shown_where_the_best_tenth_is_more_than_a_few(count):
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(0))
    study.optimize(lambda trial: trial.suggest_float("gamma", 0, 1) + 0 * trial.suggest_int("epochs", 1, 9), count)
    last = sweeps.SweepResults(study, Path()).table().splitlines()[-1]
    assert last.startswith("what sets the best tenth apart: gamma ") == (count == 50)


def test_tpe_draws_beside_trials_that_run_elsewhere():
    assert sweeps._named("sampler", "tpe")._constant_liar


@pytest.mark.parametrize(("all_steps", "stops"), [(300, False), (1_000, True)])
def test_pruners_see_the_mean_of_the_first_runs_and_end_none_that_is_at_its_end(all_steps, stops):
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=5.0))
    pruning = sweeps._Pruning(study.ask(), Path(), [0, 1], all_steps)
    for seed, returns in enumerate(([7.0, 1.0, 1.0], [9.0, 3.0])):
        (run := RunDirectory(Path(f"seed-{seed}"))).path.mkdir()
        for count in range(1, len(returns) + 1):
            rows = [{"env_steps": 100 * n, "evaluation/return_mean": returns[n - 1]} for n in range(1, count + 1)]
            run.metrics.write_text("".join(json.dumps(row) + "\n" for row in [{"env_steps": 1}, *rows]))
            stop = pruning({})
            assert not stop or (seed, count) == (1, 2)
    assert study.trials[0].intermediate_values == {1: 8.0, 2: 2.0}
    assert stop == stops


REFUSED = [
    ({}, "`space` must be settings with their values"),
    ({"gama": {"uniform": [0, 1]}}, "has no such field (did you mean 'gamma'?). Received: gama="),
    ({"seed": {"int": [0, 9]}}, "has no such field"),
    ({"gamma": {"normal": [0, 1]}}, "`space` must be of the form gamma = { uniform = [LOW, HIGH] }"),
    ({"gamma": {"uniform": [0.5]}}, "`space` must be of the form gamma"),
    ({"gamma": {"uniform": [0.9, 0.5]}}, "`space`, gamma: "),
    (
        {"gamma": {"uniform": [0.5, 1.5]}},
        "`space`, gamma: `gamma` must be a number between 0 and 1. Received: gamma=1.5",
    ),
    ({"learning_rate": {"log_uniform": [0, 1]}}, "`space`, learning_rate: "),
    ({"epochs": {"int": [0, 5]}}, "`space`, epochs: `epochs` must be an integer of at least 1. Received: epochs=0"),
    ({"epochs": {"uniform": [1, 5]}}, "`epochs` must be an integer"),
    ({"activation": {"choice": ["tanh", 3]}}, "`activation` must be a Keras name. Received: activation=3"),
]


@pytest.mark.parametrize(("space", "message"), REFUSED)
def test_a_space_that_the_settings_refuse_is_one_line(space, message):
    with pytest.raises(ValueError) as caught:
        al.sweep(CONFIG, space)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not os.listdir()


MANY = np.linspace(0.9, 0.99, 70).tolist()


@pytest.mark.parametrize(
    "space",
    [
        {"sequence_length": {"choice": [64, "none"]}, "memory": {"choice": ["lstm"]}},
        {
            "memory": {"choice": ["none", "lstm"]},
            "gamma": {"choice": MANY},
            "sequence_length": {"choice": ["none", 64]},
        },
        {"epochs": {"choice": range(1, 4)}},
        {"epochs": {"int": np.array([1, 4]).tolist()}},
        {"epochs": {"int": [np.int64(1), np.int64(4)]}},
    ],
)
def test_a_value_may_need_another_of_the_space_and_be_of_any_sequence(space):
    train_nothing = al.sweep(CONFIG, space, trials=1, storage=optuna.storages.InMemoryStorage(), sampler="random")
    assert len(train_nothing.study.trials) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run-dir", "/proc/all"], "`--run-dir` can't be written: No such file or directory. Received"),
        (["--sampler", "tpee"], "`--sampler` must be one of 'bruteforce', 'cmaes'"),
        (["--sampler", "bruteforce"], "`--sampler` must be one for this space (FloatDistribution.step"),
        (["--sampler", "cmaes"], "the sampler 'cmaes' needs a package: "),
        (["--pruner", "threshold"], "`--pruner` must be one that needs no arguments; in Python an object. Received"),
        (["--storage", "sqlite:////none/where.db"], "`--storage` must be one that Optuna can open ("),
        (["--storage", "nosql://me:se/c@ret@host/db"], "Received: --storage '***@host/db'"),
        (["--storage", "mysqlme:se/c@ret@host/db"], "Received: --storage '***@host/db'"),
        (["--trials", "0"], "`--trials` must be an integer of at least 1. Received: --trials 0"),
        (["--seeds", "0,0"], "`--seeds` must be different numbers"),
        (["--space", "none.toml"], "`--space` must be a TOML file, or module:name"),
        (["CartPol-v1"], "`CartPole-v1`"),
    ],
)
def test_what_is_refused_begins_no_trial(words, message, capsys, monkeypatch):
    monkeypatch.setattr(sweeps, "_LOOK_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "cmaes", None)
    Path("space.toml").write_text("gamma = {uniform = [0.9, 1.0]}\n")
    assert cli.main(["sweep", "--space", "space.toml", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "c@ret" not in error
    assert not list(Path().rglob("trial-*"))


def test_callbacks_that_this_machine_lacks_are_refused():
    with pytest.raises(ValueError, match=r"`callbacks` must be of modules .* Received: callbacks='not_here.mine:Mine'"):
        al.sweep(CONFIG.replace(callbacks=["not_here.mine:Mine"]), SPACE)


def test_another_search_is_not_joined():
    config = CONFIG.replace(run_dir="all")
    al.sweep(config, SPACE, trials=1)
    with pytest.raises(ValueError, match="`space` must be as in the study 'sweep'"):
        al.sweep(config, {"gamma": {"uniform": [0.9, 1.0]}})
    with pytest.raises(ValueError, match=r"`seeds` must be as in the study 'sweep', \[0\]. Received: seeds=\[1\]"):
        al.sweep(config, SPACE, seeds=[1])
    with pytest.raises(ValueError, match="`algorithm.clip_range` must be as in the study 'sweep', 0.2. Received"):
        al.sweep(config.replace(algorithm=al.PPO(clip_range=0.3)), SPACE)
    with pytest.raises(ValueError, match="`run_dir` must be a new folder, or the study's own"):
        al.sweep(config, SPACE, study="other")
    al.sweep(CONFIG.replace(run_dir="more"), SPACE, trials=1)
    with pytest.raises(ValueError, match="`run_dir` must be a new folder, or the study's own"):
        al.sweep(config, SPACE, storage="sqlite:///more/study.db")


def test_a_study_of_a_version_with_fewer_settings_goes_on():
    storage = optuna.storages.InMemoryStorage()
    study = al.sweep(CONFIG, SPACE, trials=1, storage=storage).study
    study.set_user_attr("sweep", {name: study.user_attrs["sweep"][name] for name in ("id", "space", "seeds")})
    assert len(al.sweep(CONFIG, SPACE, trials=2, storage=storage).study.trials) == 2
    with pytest.raises(ValueError, match="`seeds` must be as in"):
        al.sweep(CONFIG, SPACE, seeds=[1], storage=storage)


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(sweeps, "optuna", None)
    with pytest.raises(ImportError, match=r"a sweep needs optuna 4.9 or newer: .*\[sweep\]"):
        al.sweep(CONFIG, SPACE)
