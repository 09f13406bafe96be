"""The run directory: names, config.json, what is overwritten and what comes back."""

import logging
import os
import threading
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner.runs.artifacts import run_log
from actor_learner.runs.directory import (
    RunDirectory,
    abandon_run,
    check_no_links,
    check_run_dir,
    confirm_run,
    open_run,
    read_config,
    record_choices,
    record_finished,
    runs_of,
)
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.runs.resume import start_run
from tests.support.run_files import append_metrics, create_run

pytestmark = pytest.mark.slow


def make_environment():
    raise AssertionError("only its name is used here")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files(path):
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def test_names_are_free_ones(tmp_path):
    config = al.TrainConfig(env="Acrobot-v1", algorithm=al.A2C(), seed=7)
    first, second = create_run(config), create_run(config)
    assert str(first.path) == "runs/Acrobot-v1/a2c-7-1"
    assert str(second.path) == "runs/Acrobot-v1/a2c-7-2"
    assert str(runs_of(config.replace(env=type("Room", (), {"__module__": "__main__"})))) == "runs/Room"


@pytest.mark.parametrize(
    ("env", "folder"),
    [("ALE/Pong-v5", "ALE-Pong-v5"), ("pkg.module:make", "pkg.module-make"), (make_environment, "make_environment")],
)
def test_an_environment_name_becomes_one_folder(env, folder):
    run = create_run(al.TrainConfig(env=env))
    assert run.path.parent.parent.name == "runs"
    assert run.path.parent.name.endswith(folder)


def test_names_are_free_ones_in_a_race():
    config, runs = al.TrainConfig(), []
    threads = [threading.Thread(target=lambda: runs.append(create_run(config).path)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(runs)) == 16


def test_config_json_can_be_read_back():
    config = al.preset("HalfCheetah-v5", run_dir="mine", seed=3)
    run = create_run(config)
    data = read_config(run.path)
    assert al.TrainConfig.from_json(data) == config
    assert {"versions", "machine", "git"} <= set(data)
    assert data["versions"]["python"].startswith("3.")
    names = {"actor-learner", "python", "tensorflow", "jax", "keras", "ai-edge-litert", "gymnasium", "numpy"}
    assert set(data["versions"]) == names


def test_choices_are_added_to_config_json():
    run = create_run(al.TrainConfig(run_dir="mine"))
    record_choices(run, xla=True)
    record_choices(run, updates_per_epoch=3)
    assert read_config("mine")["chosen"] == {"xla": True, "updates_per_epoch": 3}
    assert al.TrainConfig.from_json(read_config("mine")).run_dir == "mine"


def test_a_run_is_never_overwritten_unasked(tmp_path):
    run = create_run(al.TrainConfig(run_dir="mine", seed=1))
    append_metrics(run, {"env_steps": 1})
    before = files(tmp_path)
    for refused in (create_run, check_run_dir):
        with pytest.raises(ValueError, match=r"already holds a run.*--overwrite.*Received: run_dir='mine'"):
            refused(al.TrainConfig(run_dir="mine", seed=2))
    assert files(tmp_path) == before


def test_overwrite_replaces_the_run_and_nothing_else(tmp_path):
    run = create_run(al.TrainConfig(run_dir="mine", seed=1))
    append_metrics(run, {"env_steps": 1})
    run.policy.mkdir()
    (run.policy / "old").touch()
    (run.path / "notes.txt").write_text("the user's")
    run = create_run(al.TrainConfig(run_dir="mine", seed=2, overwrite=True))
    confirm_run(run)
    assert read_config("mine")["seed"] == 2
    assert sorted(files(run.path)) == ["config.json", "notes.txt"]


def test_a_run_that_fails_at_its_start_gives_back_what_it_was_to_replace(tmp_path):
    run = create_run(al.TrainConfig(run_dir="mine", seed=1))
    append_metrics(run, {"env_steps": 1})
    run.policy.mkdir()
    (run.policy / "old").write_text("old")
    before = files(run.path)
    run = create_run(al.TrainConfig(run_dir="mine", seed=2, overwrite=True))
    run.logs.mkdir()
    (run.logs / "actor-0.log").write_text("why it failed")
    abandon_run(run)
    after = files(run.path)
    assert {name: text for name, text in after.items() if not name.startswith("logs")} == before
    assert read_config("mine")["seed"] == 1


def test_an_overwriting_run_that_was_killed_at_its_start_loses_nothing(tmp_path):
    create_run(al.TrainConfig(run_dir="mine", seed=1))
    create_run(al.TrainConfig(run_dir="mine", seed=2, overwrite=True))  # neither confirmed nor abandoned
    create_run(al.TrainConfig(run_dir="mine", seed=3, overwrite=True))
    abandon_run(RunDirectory(tmp_path / "mine"))
    assert read_config("mine")["seed"] == 1


def test_an_abandoned_run_leaves_its_logs_only():
    run = create_run(al.TrainConfig(run_dir="mine"))
    run.logs.mkdir()
    (run.logs / "actor-0.log").touch()
    abandon_run(run)
    assert not run.path.exists()

    run = create_run(al.TrainConfig(run_dir="mine"))
    run.logs.mkdir()
    (run.logs / "actor-0.log").write_text("why it failed")
    abandon_run(run)
    assert list(files(run.path)) == ["logs/actor-0.log"]
    create_run(al.TrainConfig(run_dir="mine"))  # the name is free again


@pytest.mark.parametrize("path", ["/dev/null/run", "/proc/run", "file", "file/run", None])
def test_a_directory_that_cannot_be_written(path, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "runs").touch()
    with pytest.raises(ValueError, match=r"^`run_dir` (can't be written: |is a file)") as error:
        create_run(al.TrainConfig(run_dir=path))
    assert "\n" not in str(error.value)
    assert f"Received: run_dir='{path or 'runs/'}" in str(error.value)


def test_init_from_must_hold_a_network_and_not_be_the_run_that_is_replaced(tmp_path):
    with pytest.raises(ValueError, match=r"`init_from` must be .* network .*Received: init_from='nothing'"):
        check_run_dir(al.TrainConfig(init_from="nothing"))
    create_run(al.TrainConfig(run_dir="untrained"))
    with pytest.raises(ValueError, match="Received: init_from='untrained'"):
        check_run_dir(al.TrainConfig(init_from="untrained"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "network.keras").touch()
    with pytest.raises(ValueError, match=r"`init_from` must be another directory than `run_dir`.*Received: init_from="):
        check_run_dir(al.TrainConfig(run_dir=tmp_path / "run", init_from=f"{tmp_path}/./run", overwrite=True))
    check_run_dir(
        al.TrainConfig(run_dir=tmp_path.parent, init_from=tmp_path / "run")
    )  # two floors below, no checkpoint


def test_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no run: .* has no config.json. Received: run_dir='empty'"):
        open_run("empty")
    with pytest.raises(ValueError, match=r"holds no run: .* isn't there. Received: run_dir='nowhere'"):
        read_config("nowhere")
    for number in range(7):
        create_run(al.TrainConfig(run_dir=f"runs/Env-v0/ppo-0-{number}"))
    (tmp_path / "failed/logs").mkdir(parents=True)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/network.keras").touch()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="holds no run: it is a file"):
        open_run("file")
    for folder, said in (
        ("runs/Env-v0", r"but these runs: runs/Env-v0/ppo-0-0, .*/ppo-0-4 and 2 others\. Received"),
        ("runs", r"but these runs: runs/Env-v0/ppo-0-0,"),
        ("failed", r"only the logs of a run that ended before its first update\."),
        ("checkpoint", r".*al\.evaluate\(al\.load_network\('checkpoint'\), env=\.\.\.\) plays its network\."),
    ):
        with pytest.raises(ValueError, match=rf"holds no run: the directory has no config.json[,;]? ?{said}"):
            open_run(folder)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="config.json (is damaged|must hold an object)"):
            read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 99, "versions": {}, "surprise": 1}')
    for read in (read_config, lambda folder: al.load_config(folder / "config.json")):
        with pytest.raises(ValueError, match="config.json is in format 99, .* Received: file="):
            read(tmp_path)


def test_a_finished_run_says_after_how_many_steps():
    run = create_run(al.TrainConfig(run_dir="mine"))
    assert read_config("mine").finished_steps == 0
    record_finished(run, 1024)
    assert read_config("mine").finished_steps == 1024
    assert al.TrainConfig.from_json(read_config("mine")).run_dir == "mine"
    for data in ({}, {"finished": 5}, {"finished": {}}, {"finished": {"env_steps": "many"}}):
        assert RecordedConfig(data).finished_steps == 0


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "logs", "config.json"])
def test_a_link_in_a_run_is_refused(name, tmp_path):
    run = RunDirectory(tmp_path / "mine")
    run.path.mkdir()
    check_no_links(run)
    (run.path / name).symlink_to(tmp_path)
    with pytest.raises(ValueError, match=f"holds a link, {name}, .*Received: run_dir="):
        check_no_links(run)


def test_links_among_the_logs_are_not_followed(tmp_path):
    run = create_run(al.TrainConfig(run_dir="mine"))
    run.logs.mkdir()
    (tmp_path / "precious").write_text("somebody's")
    (run.logs / "run.log").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match=r"`run_dir` holds a link, logs/run.log"):
        check_no_links(run)
    with run_log(run.logs):
        logging.getLogger("actor_learner").warning("for nobody")
    assert (tmp_path / "precious").read_text() == "somebody's"
    (run.logs / "run.log").unlink()
    with run_log(run.logs):
        logging.getLogger("actor_learner").warning("for everybody")
    assert "WARNING for everybody" in (run.logs / "run.log").read_text()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "policy"])
def test_a_run_with_a_part_that_lies_elsewhere_is_not_read(name, tmp_path):
    run = create_run(al.TrainConfig(run_dir=tmp_path / "run"))
    (tmp_path / "elsewhere").write_text("{}")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"holds a link, {name}.*Received: run_dir="):
        read_config(run.path)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_pipe_in_a_run_is_not_waited_at(name, tmp_path):
    run = create_run(al.TrainConfig(run_dir=tmp_path / "run"))
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    with pytest.raises(ValueError, match=f"{name} must be a plain file. Received: run_dir="):
        read_config(run.path)


def test_a_run_that_is_not_there_is_answered_with_one_that_is(tmp_path):
    create_run(al.TrainConfig(run_dir=tmp_path / "runs/room-Room/ppo-0-1"))
    with pytest.raises(ValueError, match=r"isn't there \(did you mean '.*room-Room/ppo-0-1'\?\)"):
        open_run(tmp_path / "runs/room.Room/ppo-0-1")


def fail_at_the_start(config):
    with start_run(config, resume=False):
        logging.getLogger("actor_learner").warning("an actor died")
        raise ValueError("why")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_fails_at_its_start_says_where_its_log_is(overwrite):
    if overwrite:
        create_run(al.TrainConfig(run_dir="mine"))
    with pytest.raises(ValueError, match="why") as caught:
        fail_at_the_start(al.TrainConfig(run_dir="mine", overwrite=overwrite))
    assert getattr(caught.value, "__notes__", []) == ([] if overwrite else [f"More is in {Path('mine/logs')}"])
    assert overwrite or "an actor died" in Path("mine/logs/run.log").read_text()
