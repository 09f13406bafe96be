"""push: what arrives on a Hub on the loopback, that what reads runs reads it there, and what is refused."""

from __future__ import annotations

import json
import re
import shlex

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner import cli
from actor_learner.networks.default import default_network
from actor_learner.push import push
from actor_learner.runs.checkpoints import RunState, newest_whole
from actor_learner.runs.directory import RunDirectory, check_run_dir, read_config
from actor_learner.system.files import write_folder_atomically
from actor_learner.system.hub import local_path
from tests.support.hub_server import READER, Repository, running_hub
from tests.support.run_files import append_metrics, create_ended_run

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, of the extra [hub]")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

ENV = "tests.support.counting_env:CountingEnv"  # each episode returns 10, and nothing is drawn
FILES = ["README.md", "config.json", "curve.png", "metrics.jsonl", "network.keras"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """What a run leaves when it has ended, with a checkpoint and its replay buffer."""
    spaces = Box(-9, 9, (3,)), Discrete(2)
    folder = create_ended_run(tmp_path_factory.mktemp("runs") / "run", *spaces, default_network(*spaces), env=ENV)
    run = RunDirectory(folder)
    for row in range(3):
        append_metrics(run, {"env_steps": row + 1, "time_seconds": 1.0, "episode_return": float(row)})

    def write(checkpoint):
        RunState(updates=1).write(checkpoint)
        (checkpoint / "replay-0.npz").write_bytes(b"rows")

    write_folder_atomically(run.checkpoints / "0000000001", write)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with running_hub(monkeypatch, tmp_path) as hub:
        yield hub


def test_a_pushed_run_is_read_from_the_hub_as_from_its_folder(run_dir, hub, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    hub.repositories["ann/policy"] = Repository()
    hub.repositories["ann/policy"].commit("main", {"replay.mp4": b"an earlier push's", "NOTES.md": b"the user's own"})
    words = ["push", str(run_dir), "ann/policy", "--episodes", "3", "--commit-message", "Ten points"]
    with pytest.warns(UserWarning, match=r"^pushed without replay.mp4: .*no renderer"):
        assert cli.main(words) == 0
    assert capsys.readouterr().out == "hf://ann/policy\n"
    repository = hub.repositories["ann/policy"]
    assert repository.messages[1:] == ["Ten points"]
    assert sorted(name for name in repository.files if "/" not in name) == sorted([*FILES, "NOTES.md"])
    config = json.loads(repository.files["config.json"])
    assert (config["run_dir"], config["format"]) == (None, 1)
    assert not any("replay" in name or str(run_dir).encode() in text for name, text in repository.files.items())

    address, observation = "hf://ann/policy", [1.0, 2.0, 3.0]
    policies = [al.load_policy(path) for path in (address, run_dir)]
    assert policies[0].value(observation) == policies[1].value(observation)
    assert al.evaluate(address, episodes=2).returns.tolist() == [10, 10]
    check_run_dir(al.TrainConfig(init_from=address))
    assert newest_whole(local_path(address) / "checkpoints")[1].updates == 1

    card = huggingface_hub.ModelCard(repository.files["README.md"].decode())
    assert card.data.library_name == "actor-learner"
    assert {"reinforcement-learning", "keras", "ppo", ENV} <= {*card.data.tags}
    assert card.data.eval_results[0].metric_value == "10.00 +/- 0.00"
    assert "for 3 env steps" in card.text
    commands = [shlex.split(line)[1:] for line in re.findall(r"^actor-learner .*", card.text, re.MULTILINE)]
    assert [words[0] for words in commands] == ["evaluate", "train"]
    assert cli.train.train_config(cli.parse(commands[1])).init_from == address
    assert cli.main(commands[0]) == 0
    assert "return 10.0 +- 0.0 (std) over 3 episodes" in capsys.readouterr().out


def test_a_private_repository_and_a_branch_are_made(run_dir, hub, monkeypatch):
    flags = ["--private", "--revision", "v2", "--no-video", "--episodes", "1"]
    assert cli.main(["push", str(run_dir), "ann/secret", *flags]) == 0
    repository = hub.repositories["ann/secret"]
    assert repository.private
    assert not repository.files
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", "")
        with pytest.raises(ValueError, match="no such repository, or it is private"):
            local_path("hf://ann/secret@v2")
    assert al.load_policy("hf://ann/secret@v2").value([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("words", "token", "message"),
    [
        (["policy"], None, "`OWNER/NAME` must be owner/name of a repository .* Received: OWNER/NAME policy"),
        (["ann/a--b"], None, "can't be the name of a repository"),
        (["ann/policy", "--episodes", "0"], None, "`--episodes` must be an integer of at least 1"),
        (["ann/policy", "--private"], None, "`--private`: the repository is there, and everyone can read it"),
        (["ann/policy"], "", "needs a token that may write: `hf auth login`, or the variable HF_TOKEN"),
        (["ann/policy"], "hf_unknown", r"The Hub refused it \(401\)"),
        (["ann/new"], READER, r"The Hub refused it \(403\)"),
        (["ann/policy"], READER, r"The Hub refused it \(403\)"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(words, token, message, run_dir, hub, monkeypatch, capsys):
    hub.repositories["ann/policy"] = Repository()
    monkeypatch.setattr("actor_learner.push.evaluate", lambda *_, **__: pytest.fail("evaluated first"))
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert cli.main(["push", str(run_dir), *words]) == cli.REFUSED
    error = capsys.readouterr().err
    assert re.fullmatch(rf"actor-learner: error: .*{message}.*\n", error)
    assert "hf_" not in error
    assert {name: repository.files for name, repository in hub.repositories.items()} == {"ann/policy": {}}


def test_a_training_starts_from_pushed_weights_and_records_their_commit(hub, tmp_path):
    imageio = pytest.importorskip("imageio", reason="needs moviepy, of the extra [video]")
    env = gymnasium.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    pushed = default_network(*spaces, hidden_sizes=(8,), seed=3)
    run_dir = create_ended_run(tmp_path / "run", *spaces, pushed, env="CartPole-v1")
    with pytest.warns(UserWarning, match=r"^pushed without curve.png: "):  # no update was made
        push(run_dir, "ann/cartpole", episodes=1)
    repository = hub.repositories["ann/cartpole"]
    card = repository.files["README.md"].decode()
    (tmp_path / "replay.mp4").write_bytes(repository.files["replay.mp4"])
    frames = imageio.mimread(tmp_path / "replay.mp4", memtest=False)
    assert "[replay.mp4](replay.mp4)" in card
    steps = float(re.search(r"^\| 1 \| 0 \|.* ([\d.]+) \|$", card, re.MULTILINE)[1])
    assert len(frames) in (steps, steps + 1)  # the first picture is no step; moviepy may round the last one off
    assert not np.array_equal(frames[0], frames[-1])

    beginnings = []
    beginning = keras.callbacks.Callback()
    beginning.on_train_begin = lambda logs=None: beginnings.append(beginning.model.get_weights())
    hub.requests.clear()
    config = al.TrainConfig(
        env="CartPole-v1",
        init_from="hf://ann/cartpole",
        run_dir=tmp_path / "new",
        num_actors=0,
        total_steps=4096,
        callbacks=[beginning],
        quiet=True,
    )
    result = al.train(config)
    for before, start, end in zip(pushed.get_weights(), *beginnings, result.network.get_weights(), strict=True):
        np.testing.assert_array_equal(start, before)
        assert not np.array_equal(end, start)
    assert sum("/revision/" in request for request in hub.requests) == 1
    assert read_config(result.run_dir)["init_from"] == f"hf://ann/cartpole@{repository.branches['main']}"
    repository.commit("main", {})
    assert al.train(config, resume=True).metrics == result.metrics
    with pytest.raises(ValueError, match="init_from is .* there"):
        al.train(config.replace(init_from="hf://ann/other"), resume=True)


def test_commands_read_a_pushed_run_or_refuse_it_in_one_line(run_dir, hub, tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "jinja2"):
        pytest.importorskip(package, reason=f"needs {package}, of the extra [report]")
    push(run_dir, "ann/policy", episodes=1, video=False)
    monkeypatch.chdir(tmp_path)
    for command, name in {"plot": "curve.png", "report": "report.html", "export": "policy-litert"}.items():
        hub.requests.clear()
        assert cli.main([command, "hf://ann/policy"]) == 0
        assert capsys.readouterr().out == f"{name}\n"
        assert (tmp_path / name).exists()
        assert sum("/revision/" in request for request in hub.requests) == 1
    assert cli.main(["watch", "hf://ann/policy"]) == cli.REFUSED
    assert "must be a folder of this machine; `report` describes a run of the Hub" in capsys.readouterr().err
