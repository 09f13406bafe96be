"""Values that earlier versions took: wherever one is named, one line says what replaces it."""

from __future__ import annotations

import json

import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.config.config import FORMAT
from actor_learner.evaluate import run_environment
from actor_learner.runs.directory import read_config
from actor_learner.runs.resume import check_fits
from actor_learner.system.fields import REMOVED
from actor_learner.system.files import stamped

LINE = "`memory` can't be 'rnn' any more: use 'gru'. Received: memory='rnn'"
ALL = dict(REMOVED)


@pytest.fixture(autouse=True)
def without_rnn(monkeypatch):
    """Says of two values that they are gone, one of the network and one of the environment."""
    monkeypatch.setitem(REMOVED, ("memory", "rnn"), "'gru'")
    monkeypatch.setitem(REMOVED, ("vectorization", "fibers"), "more actors (num_actors)")


@pytest.fixture
def old_run(tmp_path):
    """The directory of a run whose config.json has both."""
    recorded = al.TrainConfig().to_json() | {"memory": "rnn", "vectorization": "fibers", "versions": {}}
    (tmp_path / "config.json").write_text(json.dumps(stamped(recorded, FORMAT)))
    return tmp_path


def test_each_value_is_refused_with_what_replaces_it():
    for (name, value), words in ALL.items():
        with pytest.raises(ValueError, match=f"use .*Received: {name}='{value}'") as error:
            al.TrainConfig(**{name: value})
        assert words in str(error.value)


def test_a_config_and_a_policys_own_settings_refuse_it():
    with pytest.raises(ValueError) as error:
        al.TrainConfig(memory="rnn")
    assert str(error.value) == LINE
    policies = {"one": al.PolicyConfig(agents=("a",), memory="rnn"), "other": al.PolicyConfig(agents=("b",))}
    with pytest.raises(ValueError) as error:
        al.TrainConfig(env="pettingzoo:mpe.simple_spread", policies=policies)
    assert str(error.value).endswith(LINE)


def test_a_pool_refuses_it():
    with pytest.raises(ValueError, match=r"use more actors \(num_actors\)\. Received: vectorization='fibers'"):
        al.ActorPool("CartPole-v1", vectorization="fibers")


def test_a_flag_refuses_it(capsys):
    assert cli.main(["train", "--memory", "rnn"]) == 2
    said = "`--memory` can't be 'rnn' any more: use 'gru'. Received: --memory rnn"
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def test_a_file_refuses_it_with_its_line(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('total_steps = 64\nmemory = "rnn"\n')
    with pytest.raises(ValueError) as error:
        al.load_config(file)
    assert str(error.value) == f"{file}, line 2: {LINE}"


def test_a_run_is_not_resumed_nor_repeated_with_it(old_run):
    with pytest.raises(ValueError, match="can't be '(rnn|fibers)' any more"):
        al.load_config(old_run / "config.json")
    with pytest.raises(ValueError, match="`run_dir` holds a run that can't go on: .* any more: use ") as error:
        check_fits(read_config(old_run), al.TrainConfig(run_dir=old_run))
    assert "\n" not in str(error.value)


def test_a_run_is_evaluated_as_others_step(old_run):
    assert run_environment(read_config(old_run))["env"] == "CartPole-v1"
    assert "vectorization" not in run_environment(read_config(old_run))
