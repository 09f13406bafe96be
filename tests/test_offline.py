"""Runs that learn from a buffer before the first env step, or without any."""

import json

import gymnasium as gym
import numpy as np
import pytest

import actor_learner as al
from tests.support.small_networks import same_weights

pytestmark = pytest.mark.slow

SAC = al.SAC(minibatch_size=8, updates_per_step=0.5, buffer_size=400, learning_starts=10)
SIZES = {"hidden_sizes": (8,), "num_envs": 2, "unroll_length": 8, "quiet": True, "tensorboard": False, "seed": 3}


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """The checkpoint of a run that has collected a buffer."""
    run_dir = tmp_path_factory.mktemp("runs") / "collected"
    config = al.TrainConfig(env="Pendulum-v1", algorithm=SAC, total_steps=320, num_actors=0, run_dir=run_dir, **SIZES)
    al.train(config)
    return run_dir / "checkpoints/final"


def offline(collected, run_dir, **fields):
    fields = {"total_steps": 0, "offline_steps": 60, "num_actors": 0, "algorithm": SAC, **SIZES, **fields}
    return al.TrainConfig(env="Pendulum-v1", init_buffer=collected, run_dir=run_dir, **fields)


def test_a_run_without_env_steps_learns_evaluates_and_finishes(collected, tmp_path):
    played = al.callbacks.Evaluate(20, episodes=1, max_episode_steps=5)
    config = offline(collected, tmp_path / "run", callbacks=[played], num_actors=2, num_envs=4)
    assert config.num_actors == 0
    result = al.train(config)
    rows = rows_of(result.run_dir)
    assert {row["env_steps"] for row in rows} == {0}
    assert [row["offline_steps"] for row in rows] == [row["gradient_steps"] for row in rows] == [16, 32, 48, 60]
    assert [row["updates"] for row in rows] == [1, 2, 3, 4]
    assert ["evaluation/return_mean" in row for row in rows] == [False, True, True, True]
    assert all(np.isfinite(row["critic_loss"]) for row in rows)
    assert json.loads((result.run_dir / "config.json").read_text())["finished"] == {"env_steps": 0, "offline_steps": 60}
    assert al.evaluate(result.run_dir, episodes=1, max_episode_steps=5).mean <= 0
    again = al.train(config.replace(callbacks=()), resume=True)
    assert len(rows_of(again.run_dir)) == len(rows)
    assert same_weights(again.network.get_weights(), result.network.get_weights())


def test_env_steps_follow_with_the_same_buffer(collected, tmp_path):
    result = al.train(offline(collected, tmp_path / "run", total_steps=48))
    rows = rows_of(result.run_dir)
    assert [row["env_steps"] for row in rows] == [0] * 8 + [16, 32, 48]
    assert [row["gradient_steps"] for row in rows][-4:] == [60, 68, 76, 84]
    assert rows[-1]["buffer_rows"] > 48
    assert rows[-1]["gradient_steps_owed"] == 0


def test_a_run_that_stops_offline_goes_on_as_if_it_had_not(collected, tmp_path):
    class Stop(al.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.learner.updates == 2

    whole = al.train(offline(collected, tmp_path / "whole"))
    stopped = offline(collected, tmp_path / "stopped")
    al.train(stopped.replace(callbacks=[Stop()]))
    assert rows_of(tmp_path / "stopped")[-1]["offline_steps"] == 16
    result = al.train(stopped, resume=True)
    assert [row["offline_steps"] for row in rows_of(tmp_path / "stopped")] == [
        row["offline_steps"] for row in rows_of(tmp_path / "whole")
    ]
    assert same_weights(result.network.get_weights(), whole.network.get_weights())


def test_targets_that_move_by_env_steps_move_offline_too(tmp_path):
    dqn = al.DQN(learning_starts=0, updates_per_step=0.5, target_update_interval=40, minibatch_size=8, buffer_size=400)
    config = al.TrainConfig(env="CartPole-v1", algorithm=dqn, total_steps=64, num_actors=0, run_dir=tmp_path, **SIZES)
    al.train(config)
    buffer = al.ReplayBuffer.load(tmp_path / "checkpoints/final")
    network = al.load_network(tmp_path)
    spaces = {"action_space": buffer.spaces.action_space, "observation_space": buffer.spaces.observation_space}
    learner = al.Learner(network, dqn, total_steps=1000, buffer=buffer, **spaces)
    moved = []
    for _ in range(5):  # of 8 gradient steps, to which 16 env steps belong
        before = learner._targets_at // 40
        learner.learn(8)
        moved.append(learner._targets_at // 40 - before)
    assert learner.offline_steps == learner.gradient_steps == 40
    assert moved == [0, 0, 0, 1, 0]


def test_statistics_of_observations_come_from_the_buffer(collected):
    buffer = al.ReplayBuffer.load(collected)
    spaces = {"action_space": buffer.spaces.action_space, "observation_space": buffer.spaces.observation_space}
    options = {"distribution": "squashed", "state_dependent_std": True, "normalize_observation": True}
    network = al.default_network(
        buffer.spaces.observation_space, buffer.spaces.action_space, hidden_sizes=(8,), **options
    )
    learner = al.Learner(network, SAC, total_steps=100, buffer=buffer, **spaces)
    learner.learn(1)
    layer = network.get_layer("observation_normalization")
    seen = np.concatenate([buffer.sample(64).observation for _ in range(40)])
    np.testing.assert_allclose(layer.mean, seen.mean(axis=0), atol=0.2)
    count = float(layer.count)
    learner.learn(1)
    assert float(layer.count) == count


def test_learning_needs_rows():
    env = gym.make("Pendulum-v1")
    options = {"distribution": "squashed", "state_dependent_std": True, "hidden_sizes": (8,)}
    network = al.default_network(env.observation_space, env.action_space, **options)
    spaces = {"action_space": env.action_space, "observation_space": env.observation_space}
    learner = al.Learner(network, SAC, total_steps=100, **spaces)
    with pytest.raises(ValueError, match="`learn` takes rows of the replay buffer.* Received: no buffer"):
        learner.learn(1)
    learner.make_buffer(8, action_masks=False)
    with pytest.raises(ValueError, match="Received: an empty buffer"):
        learner.learn(1)
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1. Received: steps=0"):
        learner.learn(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"total_steps": 0}, "`total_steps` must be at least 1, or 0 with `offline_steps`. Received: total_steps=0"),
        ({"offline_steps": 10, "init_buffer": "somewhere"}, "`offline_steps` must be 0 for PPO, which has no replay"),
        (
            {"offline_steps": 10, "algorithm": SAC},
            r"`offline_steps` needs rows to learn from: `init_buffer`.* Received: offline_steps=10, init_buffer=None",
        ),
        (
            {"offline_steps": 10, "algorithm": al.BC(), "init_buffer": "somewhere"},
            "`total_steps` must be 0 for BC, which learns from recorded actions alone",
        ),
        ({"offline_steps": -1}, "`offline_steps` must be an integer of at least 0"),
        (
            {
                "offline_steps": 10,
                "algorithm": SAC,
                "init_buffer": "somewhere",
                "policies": {"a": al.PolicyConfig(), "b": al.PolicyConfig()},
            },
            "`offline_steps` and `policies` exclude each other",
        ),
    ],
)
def test_bad_input(fields, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**fields)


def test_a_buffer_that_is_not_there_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`init_buffer` must be a folder that ReplayBuffer.save wrote"):
        al.train(offline(tmp_path / "nothing", tmp_path / "run"))
    assert not (tmp_path / "run").exists()
