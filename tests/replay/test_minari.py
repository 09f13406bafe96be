"""Minari's datasets: what is recorded is what was played, and what is read is what is drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Tuple

import actor_learner as al
from actor_learner.cli import main
from actor_learner.replay import minari_datasets
from actor_learner.runs.directory import check_run_dir
from actor_learner.system.installation import install_command

minari = pytest.importorskip("minari", reason="needs the extra minari")
pytest.importorskip("h5py", reason="needs the extra minari")

SEEN = Dict({"image": Box(0, 255, (32, 32, 3), np.uint8), "parts": Tuple([Box(-1, 1, (2,)), Discrete(3, start=1)])})

FORCE = Box(-2, 2, (1,))


class Scripted(gym.Env):
    """Shows random observations; episodes of 3 steps that terminate and of 5 that are truncated, in turns."""

    def __init__(self, action_space=FORCE, observation_space=SEEN):
        self.observation_space, self.action_space = observation_space, action_space
        self.episode, self.played = -1, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.episode += 1
        self.step_number = 0
        return self._seen(), {}

    def _seen(self):
        observation = self.observation_space.sample()
        self.played.append(observation)
        return observation

    def step(self, action):
        self.step_number += 1
        last = self.step_number == (3, 5)[self.episode % 2]
        return self._seen(), float(self.step_number), last and self.episode % 2 == 0, last and self.episode % 2 == 1, {}


class Failing(Scripted):
    def step(self, action):
        if self.episode == 1:
            raise ValueError("a bad day")
        return super().step(action)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


def recorded(name, env, episodes=2):
    """Plays episodes with random actions, and returns the actions."""
    actions = []
    with minari_datasets.recording(name) as wrapper:
        wrapped = wrapper(env)
        env.action_space.seed(0)
        for seed in range(episodes):
            wrapped.reset(seed=seed)
            ended = False
            while not ended:
                actions.append(env.action_space.sample())
                _, _, terminated, truncated, _ = wrapped.step(actions[-1])
                ended = terminated or truncated
        wrapped.reset()  # an episode that doesn't end isn't recorded
        wrapped.step(env.action_space.sample())
    return actions


def test_what_was_recorded_is_what_is_drawn(root):
    env = Scripted()
    actions = recorded("minari:own/scripted-v0", env)
    assert [path.name for path in root.iterdir()] == ["own"]
    dataset = minari.load_dataset("own/scripted-v0")
    assert (dataset.observation_space, dataset.action_space) == (env.observation_space, env.action_space)
    assert [len(episode) for episode in dataset] == [3, 5]
    assert minari.list_local_datasets().keys() == {"own/scripted-v0"}

    buffer = al.ReplayBuffer.from_minari(dataset, squashed=False, unroll_length=4, gamma=0.5)
    assert (buffer.capacity, len(buffer)) == (12, 8)
    rows = buffer.sample(200)
    order = [0, 1, 2, 4, 5, 6, 7, 8]  # of the observations that an action followed
    for row in range(200):
        (number,) = (
            n for n, at in enumerate(order) if (env.played[at]["image"] == rows.observation["image"][row]).all()
        )
        np.testing.assert_array_equal(rows.action[row], actions[number])
        assert rows.reward[row] == number + 1 - (3 if number > 2 else 0)
        assert rows.discount[row] == (0 if number == 2 else 0.5)  # the second episode was cut off
        following = env.played[order[number] + 1]
        if number != 2:
            np.testing.assert_array_equal(rows.next_observation["parts"][0][row], following["parts"][0])
            assert rows.next_observation["parts"][1][row] + 1 == following["parts"][1]


def test_a_name_is_enough_and_the_newest_steps_are_kept():
    recorded("minari:scripted-v0", Scripted(Discrete(2)))
    for name in ("scripted-v0", "minari:scripted-v0"):
        buffer = al.ReplayBuffer.from_minari(name, 4, unroll_length=2)
        assert set(buffer.sample(100).reward) == {3, 4, 5}
    check_run_dir(al.TrainConfig(env="CartPole-v1", algorithm=al.DQN(), init_buffer="minari:scripted-v0"))


def test_an_end_that_is_neither_is_a_truncation():
    space = Discrete(2)
    episode = minari.data_collector.EpisodeBuffer(
        observations=[0, 1, 0], actions=[1, 1], rewards=[1.0, 2.0], terminations=[False] * 2, truncations=[False] * 2
    )
    with pytest.warns(UserWarning, match="is set to None"):
        dataset = minari.create_dataset_from_buffers("a-v0", [episode], observation_space=space, action_space=space)
    assert (al.ReplayBuffer.from_minari(dataset, unroll_length=2).sample(50).discount > 0).all()


def test_each_of_several_lives_is_an_episode_and_an_end_within_one_is_told():
    """A game that goes on after a life is lost isn't reset."""

    class Lives(Scripted):
        def step(self, action):
            self.step_number += 1
            return self._seen(), float(self.step_number), self.step_number % 2 == 0, False, {}

    with minari_datasets.recording("minari:lives-v0") as wrapper:
        game = wrapper(Lives(Discrete(2), Box(-1, 1, (1,))))
        game.reset(seed=0)
        for _ in range(4):
            game.step(0)
    first, second = minari.load_dataset("lives-v0")
    assert (len(first), len(second)) == (2, 2)
    np.testing.assert_array_equal(second.observations[0], first.observations[-1])
    rows = al.ReplayBuffer.from_minari("lives-v0", unroll_length=2).sample(50)
    np.testing.assert_array_equal(rows.discount == 0, rows.reward % 2 == 0)

    ends = {"terminations": [True, False, True], "truncations": [False] * 3}
    steps = {"observations": [0, 1, 0, 1], "actions": [1] * 3, "rewards": [1.0] * 3}
    episode, space = minari.data_collector.EpisodeBuffer(**steps, **ends), Discrete(2)
    with pytest.warns(UserWarning, match="is set to None"):
        dataset = minari.create_dataset_from_buffers("b-v0", [episode], observation_space=space, action_space=space)
    with pytest.warns(UserWarning, match=r"but for an episode's last step. Received: episode 0 of 'b-v0' has 1 before"):
        al.ReplayBuffer.from_minari(dataset, unroll_length=3)


@pytest.mark.parametrize("steps", [1, 2])
def test_episodes_of_as_many_steps_as_a_tuple_has_parts(steps):
    space = Tuple([Box(-9, 9, (2,)), Box(-9, 9, (2,))])
    seen = np.arange(4.0 * (steps + 1)).reshape(2, steps + 1, 2).astype(np.float32)
    episode = minari.data_collector.EpisodeBuffer(
        observations=tuple(seen),
        actions=tuple(seen[:, :-1]),
        rewards=[1.0] * steps,
        terminations=[False] * (steps - 1) + [True],
        truncations=[False] * steps,
    )
    with pytest.warns(UserWarning, match="is set to None"):
        dataset = minari.create_dataset_from_buffers("a-v0", [episode], observation_space=space, action_space=space)
    rows = al.ReplayBuffer.from_minari(dataset, squashed=False, unroll_length=1).sample(50)
    for part in (0, 1):
        assert {tuple(row) for row in rows.observation[part]} == {tuple(row) for row in seen[part, :-1]}
        np.testing.assert_array_equal(rows.action[part], rows.observation[part])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("minari:scripd-v0", r"on this machine \(did you mean 'scripted-v0'\?\); .* Received: init_buffer='min"),
        ("minari:own/other-v0", "`init_buffer` must be a dataset that Minari has on this machine"),
        ("minari:without-version", "`init_buffer` must be minari:NAME-v0, or minari:NAMESPACE/NAME-v0"),
        ("minari:../x-v0", "`init_buffer` must be minari:NAME-v0"),
        ("minari:", "`init_buffer` must be minari:NAME-v0"),
        ("nowhere", "`init_buffer` must be a folder that .*, a checkpoint, or minari:NAME"),
    ],
)
def test_a_dataset_that_is_not_there(name, said):
    recorded("minari:scripted-v0", Scripted(Discrete(2)))
    with pytest.raises(ValueError, match=said):
        check_run_dir(al.TrainConfig(env="CartPole-v1", algorithm=al.DQN(), init_buffer=name))


def test_a_damaged_dataset_is_one_line(root):
    recorded("minari:scripted-v0", Scripted(Discrete(2)))
    data = root / "scripted-v0/data"
    metadata = json.loads((data / "metadata.json").read_text())
    content = (data / "main_data.hdf5").read_bytes()
    for file, damaged in (
        ("main_data.hdf5", content[: len(content) // 2]),
        ("main_data.hdf5", b""),
        ("metadata.json", b"{"),
        ("metadata.json", json.dumps({**metadata, "total_episodes": 9}).encode()),
        ("metadata.json", json.dumps({**metadata, "observation_space": None}).encode()),
        ("metadata.json", json.dumps({k: v for k, v in metadata.items() if k != "action_space"}).encode()),
    ):
        before = (data / file).read_bytes()
        (data / file).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"This Minari dataset can't be read \(.* Received: dataset=") as error:
            al.ReplayBuffer.from_minari("scripted-v0", unroll_length=2)
        assert "\n" not in str(error.value)
        (data / file).write_bytes(before)
    recorded("minari:box-v0", Scripted())
    with pytest.raises(ValueError, match="Episode 0 of box-v0 doesn't fit: .*`squashed` must be given"):
        al.ReplayBuffer.from_minari("box-v0", unroll_length=2)
    with pytest.raises(ValueError, match="`dataset` must be the name of a Minari dataset, or .* Received: dataset=3"):
        al.ReplayBuffer.from_minari(3)


def test_nothing_is_left_of_a_recording_that_fails(root):
    with pytest.raises(ValueError, match="a bad day"):
        recorded("minari:own/a-v0", Failing())
    with pytest.raises(ValueError, match="`record` needs spaces that Minari stores: .*Sequence"):
        recorded("minari:own/a-v0", Scripted(observation_space=Sequence(Discrete(2))))
    assert list(root.rglob("*")) == []
    recorded("minari:own/a-v0", Scripted())
    for name, said in (
        ("minari:own/a-v0", "`record` must be a new name: a dataset is never replaced. Received: record='minari:own/"),
        ("own/b-v0", "`record` must be minari:NAME. Received: record='own/b-v0'"),
        ("minari:own/b", "`record` must be minari:NAME-v0"),
    ):
        with pytest.raises(ValueError, match=said), minari_datasets.recording(name):
            pass


def test_without_minari(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=re.escape(install_command("actor-learner[minari]"))):
        al.ReplayBuffer.from_minari("a-v0")


RUN = Path(__file__).parents[1] / "kept" / "0.1.0" / "sac"


def test_an_evaluation_is_recorded(capsys):
    assert main(["evaluate", str(RUN), "--episodes", "2", "--record", "minari:pendulum/mine-v0", "--json"]) == 0
    returns = json.loads(capsys.readouterr().out)["returns"]
    dataset = minari.load_dataset("pendulum/mine-v0")
    assert [float(episode.rewards.sum()) for episode in dataset] == pytest.approx(returns)
    assert dataset.env_spec.id == "Pendulum-v1"
    buffer = al.ReplayBuffer.from_minari(dataset, squashed=True, gamma=0.9)
    assert len(buffer) == 400
    assert np.isfinite(buffer.sample(100).action).all()
    for options, said in (
        ({}, "`record` must be a new name"),
        ({"record": "elsewhere"}, "`record` must be minari:NAME"),
        ({"num_envs": 2}, "`num_envs` must be 1 where episodes are recorded. Received: num_envs=2"),
    ):
        with pytest.raises(ValueError, match=said):
            al.evaluate(RUN, **{"record": "minari:pendulum/mine-v0", **options})


@pytest.mark.slow
def test_a_run_begins_with_a_dataset(tmp_path):
    recorded("minari:cartpole-v0", gym.make("CartPole-v1"), episodes=3)
    recorded("minari:scripted-v0", Scripted(Discrete(2)))
    fields = {
        "env": "CartPole-v1",
        "algorithm": al.DQN(learning_starts=16, updates_per_step=1.0, target_update_interval=16, buffer_size=512),
        "hidden_sizes": (4,),
        "num_actors": 0,
        "envs_per_actor": 2,
        "unroll_length": 8,
        "total_steps": 32,
        "run_dir": tmp_path / "run",
        "quiet": True,
    }
    with pytest.raises(ValueError, match="`init_buffer` 'minari:scripted-v0' doesn't fit: .*observation_space"):
        al.train(al.TrainConfig(**fields, init_buffer="minari:scripted-v0"))
    assert not (tmp_path / "run" / "config.json").exists()
    result = al.train(al.TrainConfig(**fields, init_buffer="minari:cartpole-v0"))
    steps = minari.load_dataset("cartpole-v0").total_steps
    assert result.metrics["buffer_rows"] == steps + result.metrics["env_steps"]
