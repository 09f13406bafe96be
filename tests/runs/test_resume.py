"""Runs that go on: from the newest whole checkpoint, with metrics as if nothing had happened, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import keras
import numpy as np
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.cli.train import resumed_config, train_config
from actor_learner.reports.curves import read_curves
from actor_learner.reports.report import report
from actor_learner.runs import resume, tensorboard
from actor_learner.runs.checkpoints import Checkpoints, RunState, checkpoint_folders
from actor_learner.runs.directory import RunDirectory, read_config, run_lock, with_init_commit
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.runs.resume import check_fits, check_resume, event_files, trim_event_files, with_own_defaults
from tests.support.event_reading import scalars_of
from tests.support.run_files import append_metrics, create_run
from tests.support.small_networks import Unserializable, same_weights

pytestmark = pytest.mark.usefixtures("without_xla")

STEPS = 12 * 64
AFTER = 5
"""Updates after which the run is killed; it has checkpoints of the first and the third."""


def config(run_dir, **changes):
    fields = {
        "env": "CartPole-v1",
        "algorithm": al.PPO(minibatch_size=None, epochs=2, learning_rate="linear_1e-3", normalize_reward=True),
        "vectorization": "sync",
        "num_actors": 0,
        "envs_per_actor": 4,
        "unroll_length": 16,
        "total_steps": STEPS,
        "hidden_sizes": (8,),
        "normalize_observation": True,
        "checkpoint_minutes": None,
        "checkpoint_updates": 2,
        "milestone_steps": 320,
        "run_dir": run_dir,
        "quiet": True,
    }
    return al.TrainConfig(**(fields | changes))


class Snapshots(al.callbacks.Callback):
    """Copies the run's directory as SIGKILL would leave it: at the start, and after an update."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_begin(self, logs=None):
        shutil.copytree(self.params["run_dir"], self.folder / "begun")

    def on_train_batch_end(self, batch, logs=None):
        if logs["updates"] == AFTER:
            shutil.copytree(self.params["run_dir"], self.folder / "killed")
            self.model.save_weights(self.folder / "after.weights.h5")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs: one killed at its beginning, one after five updates, one that has finished."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorboard, "_FLUSH_SECONDS", 0.0)
        al.train(config(folder / "finished", callbacks=[Snapshots(folder)]))
    return folder


@pytest.fixture
def run_of(runs, tmp_path):
    """Gives a copy of one of the runs: its RunDirectory."""

    def copy(name):
        shutil.copytree(runs / name, tmp_path / name, symlinks=True)
        return RunDirectory(tmp_path / name)

    return copy


def rows_of(run):
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refusal(run, **changes):
    """What `train` says, in one line, and leaves as it was."""
    before = contents(run.path)
    with pytest.raises(ValueError, match="Received: run_dir=") as error:
        al.train(config(run.path, **changes), resume=True)
    assert contents(run.path) == before
    assert "\n" not in str(error.value)
    return str(error.value)


class Watch(al.callbacks.Callback):
    """What the resumed run begins with."""

    def on_train_begin(self, logs=None):
        self.weights = self.model.get_weights()
        self.begun = (self.learner.updates, self.learner.env_steps)
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)


def test_a_killed_run_goes_on_from_its_newest_checkpoint(run_of):
    run, watch = run_of("killed"), Watch()
    before = rows_of(run)
    returns = RunState.read(checkpoint_folders(run.checkpoints)[0]).episodes["return"]
    with run.metrics.open("a") as file:
        file.write('{"env_steps": 99999, "upd')  # killed while it wrote
    assert [path.name[-2:] for path in checkpoint_folders(run.checkpoints)] == ["03", "01"]
    assert 3 <= len(scalars_of(run.path)["updates"]) <= AFTER  # written every two seconds, and with checkpoints
    actors = {"num_actors": 1, "envs_per_actor": 4}  # with as many environments as before
    assert config(run.path).max_policy_lag == 1 == before[3]["policy_lag"]
    recorded = json.loads(run.config.read_text()) | {"max_policy_lag": 0}  # the default once
    run.config.write_text(json.dumps(recorded))
    al.train(config(run.path, **actors, callbacks=[watch]), resume=True)
    rows = rows_of(run)
    assert rows[:3] == before[:3]
    assert [row["updates"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["policy_lag"] for row in rows[3:]} == {0.0}
    assert rows[-2]["env_steps"] < STEPS <= rows[-1]["env_steps"]
    for name in ("env_steps", "time_seconds"):
        values = [row[name] for row in rows]
        assert values == sorted(set(values))
    assert watch.begun == (3, before[2]["env_steps"])
    assert watch.epochs[0] == 3
    assert rows[3]["learning_rate"] == pytest.approx(before[3]["learning_rate"])
    assert RunState.read(run.checkpoints / "final").episodes["return"][: len(returns)] == returns != []
    assert "is resumed from" in (run.logs / "run.log").read_text()
    assert [step for step, _ in scalars_of(run.path)["updates"]] == [row["env_steps"] for row in rows]


def test_a_run_of_an_earlier_version_that_ran_freely_goes_on_so(tmp_path):
    actors = {"num_actors": 2, "envs_per_actor": 2}
    recorded = config(tmp_path, **actors, max_policy_lag=2).to_json()
    del recorded["asynchronous"]
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    for given in ({}, {"max_policy_lag": 2}):
        own = with_own_defaults(config(tmp_path, **actors, **given))
        assert (own.max_policy_lag, own.asynchronous) == (2, True)
        check_fits(RecordedConfig(recorded), own)
    with pytest.raises(ValueError, match="asynchronous is true there, false here"):
        check_fits(RecordedConfig(recorded), own.replace(asynchronous=False))


def test_a_resumed_run_begins_with_what_was_saved_and_keeps_it_when_it_is_stopped_at_once(run_of):
    """Nothing is lost, nothing is doubled."""
    run, watch = run_of("killed"), Watch()
    saved = al.load_network(checkpoint_folders(run.checkpoints)[0]).get_weights()
    al.train(config(run.path, callbacks=[watch, StopAtOnce()], tensorboard=False), resume=True)
    assert same_weights(saved, watch.weights)
    assert len(event_files(run.path)) == 1, "those of before"
    assert [row["updates"] for row in rows_of(run)] == [1, 2, 3]
    assert (run.checkpoints / "final").resolve().name == "0000000003"
    assert not check_resume(config(run.path)).finished
    assert read_config(run.path)["chosen"]["updates_per_epoch"] == 1


class StopAtOnce(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


class StopAfterOne(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_a_callback_by_name_is_recorded_and_made_again(run_of):
    run, name = run_of("killed"), f"{__name__}:StopAfterOne"
    al.train(config(run.path, callbacks=[name]), resume=True)
    assert json.loads(run.config.read_text())["callbacks"] == [name]
    al.train(al.load_config(run.config, run_dir=run.path), resume=True)
    assert [row["updates"] for row in rows_of(run)] == [1, 2, 3, 4, 5]


def test_a_run_without_a_checkpoint_starts_from_the_beginning_and_says_so(run_of, caplog):
    run, watch = run_of("begun"), Watch()
    append_metrics(run, {"updates": 1, "env_steps": 64})  # killed after its first row, before its first checkpoint
    with caplog.at_level(logging.WARNING, "actor_learner"):
        al.train(config(run.path, callbacks=[watch, StopAfterOne()]), resume=True)
    assert "starts from the beginning" in caplog.text
    assert watch.begun == (0, 0)
    assert json.loads((run.path / "metrics.jsonl.1").read_text()) == {"updates": 1, "env_steps": 64}
    assert [row["updates"] for row in rows_of(run)] == [1]


def test_a_damaged_checkpoint_is_named_and_passed_over(run_of, caplog):
    run, watch = run_of("killed"), Watch()
    file = run.checkpoints / "0000000003" / "learner.npz"
    file.write_bytes(file.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING, "actor_learner"):
        al.train(config(run.path, callbacks=[watch, StopAtOnce()]), resume=True)
    assert "0000000003" in caplog.text
    assert "learner.npz" in caplog.text
    assert watch.begun[0] == 1
    assert [row["updates"] for row in rows_of(run)] == [1]
    assert (run.checkpoints / "0000000003.damaged").is_dir()


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(run_of):
    run = run_of("killed")
    for path in checkpoint_folders(run.checkpoints):
        (path / "learner.npz").unlink()
    message = refusal(run)
    assert "none is whole; the newest: The folder is damaged: 'learner.npz' is missing" in message


def test_a_resume_that_cannot_start_leaves_all_as_it_was_and_says_why_in_the_log(run_of):
    run = run_of("killed")
    (run.checkpoints / "0000000003" / "learner.npz").unlink()  # would be set aside, and its rows removed
    before = contents(run.path)
    with pytest.raises(ValueError, match=r"must be a metric of the run.* Received: monitor='return'"):
        al.train(config(run.path, callbacks=[keras.callbacks.EarlyStopping("return")]), resume=True)
    assert "ERROR the run ended: ValueError: `monitor` of EarlyStopping must" in (run.logs / "run.log").read_text()
    changing = {run.logs / "run.log": b"", run.path / ".lock": b""}
    assert contents(run.path) | changing == before | changing


def test_hyperparameters_change_by_the_users_word_and_the_run_knows_it(run_of, runs, tmp_path):
    run, plain = run_of("killed"), al.PPO(minibatch_size=None, epochs=2, learning_rate=1e-3, normalize_reward=True)
    cli.main(["train", "--resume", str(run.path), "--change", "learning_rate=1e-3", "--change", "ent_coef=0.5"])
    changed = read_config(run.path)
    before = {"updates": 3, "env_steps": 192, "offline_steps": 0, "time_seconds": changed["changes"][0]["time_seconds"]}
    named = {"learning_rate": ["linear_1e-3", 1e-3], "ent_coef": [0.0, 0.5]}
    assert changed["changes"] == [before | {"changed": named}]
    assert [row["learning_rate"] == np.float32(1e-3) for row in rows_of(run)] == [True, False, False] + [True] * 9
    assert "after 3 updates: learning_rate linear_1e-3 to 0.001, ent_coef 0.0 to 0.5" in report(run.path).read_text()
    assert read_curves([run.path], ["value_loss"])[0].changes[0][0] == 192
    again = RunDirectory(shutil.copytree(runs / "killed", tmp_path / "again"))  # before a checkpoint after the change
    again.config.write_text(json.dumps({name: value for name, value in changed.items() if name != "finished"}))
    al.train(config(again.path, algorithm=dataclasses.replace(plain, ent_coef=0.5)), resume=True)
    assert {row["learning_rate"] for row in rows_of(again)[3:]} == {np.float32(1e-3)}
    assert read_config(again.path)["changes"] == changed["changes"]


@pytest.mark.parametrize("callable_of", ["__main__:<lambda>", "keras.src.optimizers:ExponentialDecay"])
def test_a_number_in_place_of_a_function_is_a_change(callable_of):
    recorded = RecordedConfig({"algorithm": {"learning_rate": {"callable": callable_of}, "ent_coef": 0.5}})
    (change,) = resume._changes(recorded, al.TrainConfig(), RunState(), ["learning_rate"])
    assert change["changed"] == {"learning_rate": [{"callable": callable_of}, 3e-4]}
    with pytest.raises(ValueError, match="`ent_coef` must be another number, where it was a number"):
        al.SAC().changed({"ent_coef": 0.1})
    assert al.SAC(ent_coef=0.2).changed({"ent_coef": 0.1}) == al.SAC(ent_coef=0.1)


def test_a_finished_run_is_left_as_it_is(run_of, capsys):
    run = run_of("finished")
    before = contents(run.path)
    result = al.train(config(run.path, quiet=False), resume=True)
    assert "has finished" in capsys.readouterr().out
    assert result.metrics["env_steps"] >= STEPS
    assert result.network.count_params() > 0
    assert contents(run.path) == before


def test_a_finished_run_goes_on_when_its_steps_grow(run_of):
    run = run_of("finished")
    before, left = rows_of(run), []

    def look(batch, logs):
        left.append(run.policy.exists())
        if not left[-1]:
            with pytest.raises(ValueError, match=r"a run writes it when it ends; its newest checkpoint, .*@latest, is"):
                al.load_network(run.path)
            assert al.load_network(f"{run.path}@latest")

    looking = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    result = al.train(config(run.path, total_steps=STEPS + 128, callbacks=[looking]), resume=True)
    assert left == [True, False]  # its policy is older than the checkpoint of the first update
    assert same_weights(al.load_network(run.path).get_weights(), result.network.get_weights())
    assert al.load_policy(run.path)
    rows = rows_of(run)
    assert rows[: len(before)] == before
    assert result.metrics["env_steps"] >= STEPS + 128
    assert read_config(run.path)["total_steps"] == STEPS + 128
    assert 0 < rows[-1]["learning_rate"] < 1e-3
    assert check_resume(config(run.path, total_steps=STEPS + 128)).finished


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "Acrobot-v1"}, 'env is "CartPole-v1" there, "Acrobot-v1" here'),
        ({"algorithm": al.A2C()}, 'algorithm.name is "ppo" there, "a2c" here'),
        (
            {"algorithm": al.PPO(minibatch_size=None, epochs=3, learning_rate="linear_1e-3")},
            "algorithm.epochs is 2 there",
        ),
        ({"seed": 1, "unroll_length": 8}, "unroll_length is 16 there, 8 here; seed is 0 there, 1 here"),
        ({"num_actors": 2}, "the number of environments is 4 there, 8 here"),
        ({"hidden_sizes": (9,)}, "hidden_sizes is [8] there, [9] here"),
        ({"wrappers": "here:One"}, 'wrappers is [] there, ["here:One"] here'),
        ({"total_steps": STEPS - 1}, "total_steps (which may grow) is 768 there, 767 here"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_with_the_differences(run_of, changes, said):
    assert said in refusal(run_of("killed"), **changes)


def test_true_is_not_1_but_1_is_a_float(runs):
    recorded, given = read_config(runs / "killed"), config(runs, env_kwargs={"render": 1})
    for value in (1, 1.0):
        check_fits(RecordedConfig(recorded | {"env_kwargs": {"render": value}}), given)
    with pytest.raises(ValueError, match="env_kwargs.render is true there, 1 here"):
        check_fits(RecordedConfig(recorded | {"env_kwargs": {"render": True}}), given)


class Level(enum.IntEnum):
    HARD = 2


def test_a_run_of_a_version_that_kept_no_types_goes_on(runs):
    recorded = {"size": 5, "rate": 0.5, "folder": "/a", "level": 2, "pair": [1, 2]}
    recorded = RecordedConfig(read_config(runs / "killed") | {"env_kwargs": recorded})
    given = {"size": np.int64(5), "rate": np.float32(0.5), "folder": Path("/a"), "level": Level.HARD, "pair": (1, 2)}
    check_fits(recorded, config(runs, env_kwargs=given))
    for changed in ({"size": np.int64(6)}, {"folder": Path("/b")}, {"pair": (1, 3)}):
        with pytest.raises(ValueError, match=f"another config: .*env_kwargs.{min(changed)} is"):
            check_fits(recorded, config(runs, env_kwargs=given | changed))


def test_what_does_not_change_what_is_learned_may_differ(runs):
    recorded = read_config(runs / "killed")
    given = config("elsewhere", quiet=False, device="cpu", keep_checkpoints=9, actor_timeout=5.0, total_steps=STEPS * 2)
    check_fits(recorded, given)


def test_a_run_of_a_version_with_fewer_hyperparameters_goes_on(runs):
    recorded, given = read_config(runs / "killed"), config("elsewhere")
    fewer = {name: value for name, value in recorded["algorithm"].items() if name != "desired_kl"}
    check_fits(RecordedConfig(recorded | {"algorithm": fewer}), given)
    with pytest.raises(ValueError, match="forgotten is 1 there, null here"):
        check_fits(RecordedConfig(recorded | {"algorithm": recorded["algorithm"] | {"forgotten": 1}}), given)


@pytest.mark.parametrize(
    ("before", "fits"),
    [
        ("package.module:make", True),
        ("package.module:build", False),
        ("__main__:make", True),  # the script, imported by its name
        ("__main__:build", False),
        ("package.module:<lambda>", True),
        ("functools:partial", True),
        ("keras.src.models.functional:Functional", True),
    ],
)
def test_a_callable_may_be_named_when_it_is_given_again(runs, before, fits):
    recorded = RecordedConfig(read_config(runs / "killed") | {"env": {"callable": before}})
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="another config: env is"):
        check_fits(recorded, config(runs, env="package.module:make"))


@pytest.mark.parametrize(("before", "fits"), [({"callable": f"{__name__}:refusal"}, True), ({"import": "a:b"}, False)])
def test_a_function_among_keyword_arguments_is_compared_by_its_name(runs, before, fits):
    recorded = RecordedConfig(read_config(runs / "killed") | {"env_kwargs": {"a": [before]}})
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=r"another config: env_kwargs.a is"):
        check_fits(recorded, config(runs, env_kwargs={"a": [refusal]}))


def test_a_run_goes_on_with_the_network_that_was_named_at_a_shell(tmp_path, monkeypatch, capsys):
    (tmp_path / "shell_networks.py").write_text(
        "from tests.support.small_networks import linear_network as built\n\n\n"
        "def small(observation_space, action_space):\n    return built()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = create_run(train_config(cli.parse(["train", "--network", "shell_networks:small"])))
    assert json.loads(run.config.read_text())["network"] == "shell_networks:small"
    monkeypatch.delitem(sys.modules, "shell_networks")
    again = resumed_config(cli.parse(["train", "--resume", str(run.path)]))
    assert again.network is sys.modules["shell_networks"].small
    check_fits(read_config(run.path), again)


def test_a_run_that_is_going_is_refused(run_of):
    run = run_of("killed")
    with run_lock(run.path):
        assert "in use by a living run" in refusal(run)
        with pytest.raises(ValueError, match="in use by a living run"):
            al.train(config(run.path, overwrite=True))


def test_where_there_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "has no config.json"), ("nowhere", "isn't there")):
        with pytest.raises(ValueError, match=f"holds no run: the directory {message}"):
            al.train(config(tmp_path / name), resume=True)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ValueError, match="must name the run to resume. Received: run_dir=None"):
        al.train(config(None), resume=True)


def test_a_link_in_the_run_is_refused(run_of, tmp_path):
    run = run_of("killed")
    run.checkpoints.rename(tmp_path / "elsewhere")
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    assert "holds a link, checkpoints," in refusal(run)


@pytest.mark.thorough
def test_a_network_that_keras_cannot_rebuild_goes_on(tmp_path):
    def network(observation_space, action_space):
        return Unserializable(al.parameter_size(action_space))

    changes = {
        "network": network,
        "normalize_observation": False,
        "hidden_sizes": (64, 64),
        "algorithm": al.PPO(minibatch_size=None, epochs=1, learning_rate=lambda left: 1e-3),
        "total_steps": 128,
    }
    watch = Watch()
    with pytest.warns(UserWarning, match="its weights alone will be saved"):  # before anything is learned
        al.train(config(tmp_path / "stopped", callbacks=[StopAtOnce()], **changes))
    with pytest.warns(UserWarning, match="weights alone"):
        first = al.train(config(tmp_path / "run", callbacks=[StopAfterOne()], **changes))
    with pytest.warns(UserWarning, match="weights alone"):
        finished = al.train(config(tmp_path / "run", callbacks=[watch], **changes), resume=True)
    assert same_weights(first.network.get_weights(), watch.weights)
    assert watch.begun[0] == 1
    again = al.train(config(tmp_path / "run", **changes), resume=True)
    assert same_weights(finished.network.get_weights(), again.network.get_weights())


def test_milestones_and_the_best_are_marked(runs):
    states = [RunState.read(path) for path in checkpoint_folders(runs / "finished" / "checkpoints")]
    returns = [state.best_return for state in reversed(states) if state.best]
    assert returns == sorted(returns)
    assert [state.env_steps for state in reversed(states) if state.milestone] == [320, 640]
    assert all(state.metrics_size > 0 for state in states)


def test_event_files_are_what_they_were_and_those_of_others_are_not_touched(tmp_path):
    """Those of a run below, and those elsewhere, by a link or a path."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere/events.out.tfevents.1.host"
    below = folder / "finetuned"
    for path in (folder / "logs/train", below, elsewhere.parent):
        path.mkdir(parents=True)
    file = folder / "logs/train/events.out.tfevents.1.host"
    file.write_bytes(b"rows of before")
    elsewhere.write_bytes(b"somebody's")
    (below / "config.json").write_text("{}")
    (below / "events.out.tfevents.9").write_bytes(b"precious")
    sizes = event_files(folder)
    assert not any("finetuned" in name for name in sizes)
    file.write_bytes(b"rows of before, and after")
    newer = file.with_name("events.out.tfevents.2.host")
    newer.touch()
    trim_event_files(folder, sizes)
    assert file.read_bytes() == b"rows of before"
    assert not newer.exists()
    (folder / "events.out.tfevents.3.host").symlink_to(elsewhere)
    (folder / "linked").symlink_to(elsewhere.parent)
    trim_event_files(folder, {f"../{elsewhere.parent.name}/{elsewhere.name}": 0})
    assert not file.exists()
    assert elsewhere.read_bytes() == b"somebody's"
    assert (below / "events.out.tfevents.9").read_bytes() == b"precious"


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run that was killed at once, as the command line sees it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return create_run(al.preset("CartPole-v1", run_dir="run", gamma=0.97))


def resumed(*argv):
    return resumed_config(cli.parse(["train", "--resume", "run", *argv]))


def test_the_command_line_takes_the_runs_own_config_but_for_its_path(begun, tmp_path):
    assert resumed() == al.preset("CartPole-v1", run_dir="run", gamma=0.97)
    assert resumed("--total-steps", "1e6").total_steps == 1_000_000
    assert resumed("--gamma", "0.5").algorithm.gamma == 0.5
    assert resumed("CartPole-v1", "--quiet").quiet
    assert type(resumed("--algorithm", "a2c").algorithm) is al.A2C
    begun.path.rename(tmp_path / "moved")
    assert str(resumed_config(cli.parse(["train", "--resume=moved"])).run_dir) == "moved"
    create_run(al.TrainConfig(verbose=True, run_dir="run", overwrite=True))
    assert (resumed("--quiet").quiet, resumed("--quiet").verbose, resumed().verbose) == (True, False, True)
    create_run(al.TrainConfig(algorithm=al.Impala(), run_dir="run", overwrite=True))  # whose flags are understood
    assert resumed("--vf-coef", "0.25").algorithm == al.Impala(vf_coef=0.25)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resume", "nowhere"], "`--resume` holds no run: the directory isn't there. Received: --resume nowhere"),
        (["--resume", "run", "--gamma", "0.5"], "algorithm.gamma is 0.97 there, 0.5 here"),
        (
            ["--resume", "run", "--gamma", "0.5"],
            "may (--change learning_rate=1e-4), let a callback set the learning rate",
        ),
        (
            ["--resume", "run", "--change", "gamma=0.5"],
            "`--change` must be a dict of values of learning_rate, max_grad_n",
        ),
        (
            ["--resume", "run", "--change", "learning-rate=-1"],
            "`--learning-rate` must be a finite number of at least 0",
        ),
        (
            ["--resume", "run", "--change", "max_grad_norm=x"],
            "A value of `--change` must be a number or none. Received: x",
        ),
        (["--change", "ent_coef=0"], "`--change` is for a run that is resumed"),
        (["Acrobot-v1", "--resume", "run"], 'env is "CartPole-v1" there, "Acrobot-v1" here'),
        (["--resume", "run", "--algorithm", "a2c"], 'algorithm.name is "ppo" there, "a2c" here'),
        (["--resume", "run", "--total-steps", "10"], "total_steps (which may grow) is"),
        (["--resume", "run", "--run-dir", "x"], "`--run-dir` can't be combined with `--resume`"),
        (["--resume", "run", "--config", "run/config.json"], "`--config` can't be combined with `--resume`"),
        (["--resume", "run", "--overwrite"], "`--overwrite` can't be combined with `--resume`"),
        (["--resume", "run", "--preset", "CartPole-v1"], "`--preset` can't be combined with `--resume`"),
        (["--resume", "run", "--actor-timeout", "0"], "`--actor-timeout` must be a number of seconds above 0"),
        (["--resume", "run", "--clip-rang", "1"], "(did you mean '--clip-range'?)"),
    ],
)
def test_the_command_line_refuses_in_one_line(begun, capsys, argv, message):
    before = contents(begun.path)
    assert cli.main(["train", *argv]) == 2
    line, rest = capsys.readouterr().err.split("\n", 1)
    assert rest == ""
    assert message in line
    assert contents(begun.path) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"algorithm": 3}', '{"algorithm": {}}', '{"algorithm": {"name": "ppo", "x": 1}}']
)
def test_a_config_json_that_is_none_is_refused_in_one_line(begun, capsys, text):
    begun.config.write_text(text)
    assert cli.main(["train", "--resume", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("actor-learner: error: ")
    assert begun.config.read_text() == text


def test_callbacks_are_left_out_at_the_command_line_which_is_said(begun, capsys):
    data = json.loads(begun.config.read_text())
    callbacks = [{"callable": "somewhere:EarlyStopping"}, "keras.callbacks:History"]
    begun.config.write_text(json.dumps({**data, "callbacks": callbacks}))
    for argv in (["--resume", "run"], ["--config", "run/config.json"]):
        make = resumed_config if "--resume" in argv else train_config
        assert make(cli.parse(["train", *argv])).callbacks == ("keras.callbacks:History",)
        assert "warning: the run's callbacks are left out (EarlyStopping); to give" in capsys.readouterr().err
        given = make(cli.parse(["train", *argv, "--callback", "mine:make"]))
        assert given.to_json()["callbacks"] == ["mine:make"]
        assert not capsys.readouterr().err


def test_a_finished_run_needs_no_tensorflow_to_say_so(begun, capsys, monkeypatch):
    data = json.loads(begun.config.read_text())
    begun.config.write_text(json.dumps({**data, "finished": {"env_steps": 10**9}}))
    monkeypatch.setattr("actor_learner.cli.train.prepare_process", lambda *_: pytest.fail("TensorFlow would be loaded"))
    assert cli.main(["train", "--resume", "run"]) == 0
    assert "has finished" in capsys.readouterr().out


def test_a_checkpoint_of_a_stranger_decides_nothing_outside_the_run(run_of, tmp_path):
    """Its own checksums are right, and what run.json says reaches no file but those of the run."""
    run = run_of("killed")
    (tmp_path / "precious").write_text("somebody's")
    state = RunState(updates=7, env_steps=448, metrics_size=0, event_files={"../precious": 0})

    def save_learner(folder, earlier):
        (folder / "learner.json").write_text("{}")
        return {}

    Checkpoints(run.checkpoints, keep=9).write(state, save_learner)
    with pytest.raises(ValueError, match="Received"):
        al.train(config(run.path), resume=True)
    assert (tmp_path / "precious").read_text() == "somebody's"


def test_a_checkpoint_is_named_by_what_it_is(run_of, tmp_path):
    """Its network plays, is exported and begins another run; only the run itself goes on."""
    run = run_of("finished")
    newest, *_, first = checkpoint_folders(run.checkpoints)
    with pytest.raises(ValueError, match=f"no return has chosen a best .*@{int(first.name)}, .* Received: .*@best"):
        al.load_policy(f"{run.path}@best")
    state = json.loads((first / "run.json").read_text())
    (first / "run.json").write_text(json.dumps(state | {"best": True}))
    names = {f"{run.path}@best": first, f"{run.path}@{int(first.name)}": first, f"{run.path}@latest": newest}
    names |= {run.checkpoints / str(int(first.name)): first, run.checkpoints / "final": newest}
    for name, folder in names.items():
        weights = al.Policy.from_network(al.load_network(folder), gym.spaces.Discrete(2)).exported.weights
        assert (al.load_policy(name).exported.weights == weights).all()
    assert al.evaluate(f"{run.path}@best", episodes=2).mean > 0
    exported = al.export(f"{run.path}@best", tmp_path / "exported")
    assert (al.load_policy(exported).exported.weights == al.load_policy(first).exported.weights).all()
    init = config(tmp_path / "new", init_from=f"{run.path}@best", hidden_sizes=None, normalize_observation=False)
    recorded = with_init_commit(init)
    assert recorded.init_from == first
    for given in (init, init.replace(init_from=f"{run.path}@{int(first.name)}"), recorded):
        check_fits(RecordedConfig(json.loads(json.dumps(recorded.to_json()))), given)
    for given in (f"{run.path}@{int(newest.name)}", f"{tmp_path}/other@best"):
        with pytest.raises(ValueError, match="init_from is"):
            check_fits(RecordedConfig(json.loads(json.dumps(recorded.to_json()))), init.replace(init_from=given))
    for same in (f"{run.path}/", f"{run.path.parent}/./{run.path.name}"):
        assert with_init_commit(init.replace(init_from=same)).init_from == same
    assert cli.main(["evaluate", f"{run.path}@latest", "--episodes", "1"]) == 0
    with pytest.raises(
        ValueError, match="`run_dir` must be the run itself.* take that one as init_from. Received: run"
    ):
        al.train(config(f"{run.path}@best"), resume=True)
    with pytest.raises(ValueError, match="there is no such checkpoint; there are .* Received: .*@77"):
        al.evaluate(f"{run.path}@77")
