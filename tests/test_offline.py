"""Runs that learn from a buffer before the first env step, or without any."""

import json
import math

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import actor_learner as al
from tests.support.small_networks import same_weights
from tests.support.trajectories import random_trajectory

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

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
    fields = {"total_steps": 0, "offline_steps": 160, "num_actors": 0, "algorithm": SAC, **SIZES, **fields}
    return al.TrainConfig(env="Pendulum-v1", init_buffer=collected, run_dir=run_dir, **fields)


def test_a_run_without_env_steps_learns_evaluates_and_finishes(collected, tmp_path):
    played = al.callbacks.Evaluate(100, episodes=1, max_episode_steps=5)
    config = offline(collected, tmp_path / "run", callbacks=[played], num_actors=2, num_envs=4)
    result = al.train(config)
    rows = rows_of(result.run_dir)
    assert {row["env_steps"] for row in rows} == {0}
    assert [row["offline_steps"] for row in rows] == [row["gradient_steps"] for row in rows] == [64, 128, 160]
    assert [row["updates"] for row in rows] == [1, 2, 3]
    assert ["evaluation/return_mean" in row for row in rows] == [False, True, True]
    assert all(np.isfinite(row["critic_loss"]) for row in rows)
    assert json.loads((result.run_dir / "config.json").read_text())["finished"] == {
        "env_steps": 0,
        "offline_steps": 160,
    }
    assert al.evaluate(result.run_dir, episodes=1, max_episode_steps=5).mean <= 0
    again = al.train(config.replace(callbacks=()), resume=True)
    assert len(rows_of(again.run_dir)) == len(rows)
    assert same_weights(again.network.get_weights(), result.network.get_weights())
    al.train(config.replace(callbacks=(), offline_steps=200), resume=True)
    assert [row["offline_steps"] for row in rows_of(again.run_dir)] == [64, 128, 160, 200]


def test_env_steps_follow_with_the_same_buffer(collected, tmp_path):
    result = al.train(offline(collected, tmp_path / "run", total_steps=48, offline_steps=60))
    rows = rows_of(result.run_dir)
    assert [row["env_steps"] for row in rows] == [0, 16, 32, 48]
    assert [row["gradient_steps"] for row in rows] == [60, 68, 76, 84]
    assert rows[-1]["buffer_rows"] > 48
    assert rows[-1]["gradient_steps_owed"] == 0


def test_a_run_that_stops_offline_goes_on_as_if_it_had_not(collected, tmp_path):
    class Stop(al.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.learner.updates == 2

    whole = al.train(offline(collected, tmp_path / "whole"))
    stopped = offline(collected, tmp_path / "stopped")
    al.train(stopped.replace(callbacks=[Stop()]))
    assert rows_of(tmp_path / "stopped")[-1]["offline_steps"] == 128
    result = al.train(stopped, resume=True)
    assert [row["offline_steps"] for row in rows_of(tmp_path / "stopped")] == [
        row["offline_steps"] for row in rows_of(tmp_path / "whole")
    ]
    assert same_weights(result.network.get_weights(), whole.network.get_weights())


def learner_of(buffer, algorithm, **options):
    """A learner of the buffer's spaces with a small default network."""
    spaces = buffer.spaces.observation_space, buffer.spaces.action_space
    options |= algorithm.network_options(buffer.spaces.action)
    network = al.default_network(*spaces, hidden_sizes=(8,), **options)
    own = {"action_space": spaces[1], "observation_space": spaces[0], "buffer": buffer}
    return al.Learner(network, algorithm, total_steps=1000, **own)


def buffer_of_episodes(space, actions, *, steps=40, **options):
    buffer = al.ReplayBuffer(Box(-1, 1, (3,), np.float32), space, 400, unroll_length=8)
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(steps + 1, 3)).astype(np.float32).clip(-1, 1)
    buffer.add_episode(observations, actions(rng, steps), rng.normal(size=steps), terminated=True, **options)
    return buffer


def test_targets_and_schedules_move_within_one_call():
    """By the env steps to which the gradient steps would belong: here 1,024 of 512."""
    buffer = buffer_of_episodes(Discrete(2), lambda rng, steps: rng.integers(0, 2, steps))
    rate = keras.optimizers.schedules.PolynomialDecay(1e-2, decay_steps=1000, end_learning_rate=0.0)
    dqn = {"learning_starts": 0, "updates_per_step": 0.5, "minibatch_size": 8, "buffer_size": 400}
    learner = learner_of(buffer, al.DQN(learning_rate=rate, target_update_interval=300, **dqn))
    first = [np.asarray(copy.value) for copy in learner._build_models().targets]
    metrics = learner.learn(512)
    assert learner.offline_steps == learner.gradient_steps == 512
    assert metrics["learning_rate"] == pytest.approx(1e-2 * (1 - np.mean(np.arange(0, 512, 64)) / 1000), rel=1e-4)
    targets = [np.asarray(copy.value) for copy in learner._models.targets]
    weights = learner.network.get_weights()
    assert not any(np.array_equal(a, b) for a, b in zip(targets[:2], first[:2], strict=True))
    assert not same_weights(targets, weights)  # they have moved before the last call's steps
    kept = learner_of(buffer, al.DQN(target_update_interval=10_000, **dqn))
    first = [np.asarray(copy.value) for copy in kept._build_models().targets]
    kept.learn(512)
    assert same_weights([np.asarray(copy.value) for copy in kept._models.targets], first)


@pytest.mark.parametrize("squashed", [True, False])
def test_a_buffer_s_actions_are_converted_to_those_that_the_network_plays(squashed, tmp_path):
    """SAC keeps actions before tanh; behaviour cloning and the others as the environment got them."""
    space = Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
    played = []

    def actions(rng, steps):
        played.append(rng.uniform(space.low, space.high, (steps, 2)).astype(np.float32))
        return played[0]

    buffer = buffer_of_episodes(space, actions, squashed=squashed)
    buffer.save(tmp_path / "buffer")
    fields = {"minibatch_size": 8, "learning_starts": 0, "buffer_size": 400}
    for algorithm in (al.BC(**fields), al.SAC(**fields)):
        kept = al.ReplayBuffer.load(tmp_path / "buffer")
        assert kept.squashed is squashed
        learner_of(kept, algorithm)
        rows = kept.sample(64)
        found = rows.action
        if isinstance(algorithm, al.SAC):
            found = np.tanh(found) * (space.high - space.low) / 2 + (space.high + space.low) / 2
        distance = np.abs(found[:, None] - played[0][None]).max(axis=-1).min(axis=1)
        assert distance.max() < 1e-5
        assert kept.squashed == isinstance(algorithm, al.SAC)


def test_actions_of_another_policy_s_trajectory_are_those_that_the_caller_names():
    """A trajectory doesn't say how its policy squashes actions, so a buffer of unknown ones is warned of."""
    space, algorithm = Box(-2, 2, (1,), np.float32), al.SAC(minibatch_size=8, learning_starts=0, buffer_size=400)
    trajectory = random_trajectory(space, observation_space=Box(-1, 1, (3,)), steps=8)
    for squashed, factor in ((True, None), (False, 2.0)):
        buffer = al.ReplayBuffer(Box(-1, 1, (3,)), space, 400, unroll_length=8)
        buffer.add(trajectory, squashed=squashed)
        learner_of(buffer, algorithm)
        kept, given = buffer.sample(64).action, trajectory.action.reshape(-1, 1)
        found = kept if factor is None else np.tanh(kept) * factor
        expected = given if factor is None else np.clip(given, -factor, factor)
        assert np.abs(found[:, None] - expected[None]).max(axis=-1).min(axis=1).max() < 1e-4
        older = set(buffer.sample(4096).action.ravel())
        buffer.add(trajectory._replace(action=np.full_like(trajectory.action, 1.0)), squashed=False)
        newer = set(buffer.sample(256).action.ravel()) - older  # a learner's buffer keeps its own form
        assert [float(each) for each in newer] == pytest.approx([math.atanh(0.5)] * len(newer), abs=1e-5)
        assert newer
        assert buffer.squashed
    unknown = al.ReplayBuffer(Box(-1, 1, (3,)), space, 400, unroll_length=8)
    unknown.add(trajectory)
    with pytest.warns(
        UserWarning, match="It isn't known whether the buffer's actions are those before tanh .* squashed=N"
    ):
        learner_of(unknown, algorithm)


def test_cloning_has_a_gradient_where_means_are_beyond_the_bounds():
    space = Box(-1, 1, (1,), np.float32)
    buffer = buffer_of_episodes(space, lambda rng, steps: rng.uniform(-0.5, 0.5, (steps, 1)), squashed=False)
    network = al.default_network(buffer.spaces.observation_space, space, hidden_sizes=(8,))
    mean = network.get_layer("mean")
    mean.set_weights([mean.get_weights()[0], np.array([-9.0], np.float32)])
    spaces = {"action_space": space, "observation_space": buffer.spaces.observation_space}
    algorithm = al.BC(learning_rate=0.1, minibatch_size=8, learning_starts=0, buffer_size=400)
    learner = al.Learner(network, algorithm, total_steps=1000, buffer=buffer, **spaces)
    assert learner.learn(64)["loss"] > 10 * learner.learn(64)["loss"]


def test_statistics_of_observations_come_from_the_buffer(collected):
    buffer = al.ReplayBuffer.load(collected)
    learner = learner_of(buffer, al.BC(minibatch_size=8), normalize_observation=True)
    learner.learn(1)
    layer = learner.network.get_layer("observation_normalization")
    seen = np.concatenate([buffer.sample(64).observation for _ in range(40)])
    np.testing.assert_allclose(layer.mean, seen.mean(axis=0), atol=0.2)
    count = float(layer.count)
    learner.learn(1)
    assert float(layer.count) == count


RELABELS = al.Hindsight("future", 4, lambda achieved, desired, info: -np.abs(achieved - desired).sum(-1))
PRIORITIZED = al.DQN(prioritized=True, priority_alpha=1.0, minibatch_size=8, learning_starts=0)


@pytest.mark.parametrize(
    ("own", "algorithm"),
    [({"hindsight": RELABELS}, al.BC(minibatch_size=8)), ({"priority_exponent": 1.0}, PRIORITIZED)],
)
def test_statistics_take_each_row_once_as_it_was_stored(own, algorithm):
    """Whatever goals hindsight would give the rows, and however often their priorities would draw them."""
    part = Box(-1e3, 1e3, (1,), np.float32)
    space = Dict({"observation": part, "achieved_goal": part, "desired_goal": part})
    buffer = al.ReplayBuffer(space, Discrete(2), 6000, unroll_length=10, **own)
    ramp = np.arange(5001, dtype=np.float32)[:, None] / 50
    observations = {"observation": ramp, "achieved_goal": ramp, "desired_goal": np.full_like(ramp, 100)}
    buffer.add_episode(observations, np.zeros(5000, int), -np.abs(ramp[1:, 0] - 100), terminated=True)
    if buffer.hindsight is None:
        drawn = buffer.sample(20_000)
        buffer.update_priorities(drawn.indices, np.where(drawn.observation["observation"][:, 0] > 90, 1.0, 0.0))
    learner = learner_of(buffer, algorithm, normalize_observation=True)
    learner.learn(1)
    of = {leaf: learner.network.get_layer(f"{leaf}.observation_normalization") for leaf in observations}
    assert {float(layer.count) for layer in of.values()} == {5000}
    np.testing.assert_allclose([of["desired_goal"].mean, of["desired_goal"].variance], [[100], [0]], atol=1e-3)
    seen = of["observation"].mean, of["observation"].variance
    np.testing.assert_allclose(seen, [[ramp[:-1].mean()], [ramp[:-1].var()]], rtol=1e-4)


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
