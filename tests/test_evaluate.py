"""evaluate: whole episodes, unbiased, repeatable, without TensorFlow for a run directory."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from typing import ClassVar

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actor_learner import spaces
from actor_learner.checkpoint import create_run
from actor_learner.config import TrainConfig
from actor_learner.evaluate import Evaluation, _outline, evaluate
from actor_learner.networks import default_network
from actor_learner.policy.export import export_policy
from actor_learner.policy.policy import Policy

KWARGS = {"max_episode_steps": 120}


class Fixed(gym.Env):
    """Episodes of `length` steps with reward 1, whatever is done."""

    observation_space = Box(-1, 1, (4,))
    action_space = Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(4, np.float32), 1.0, False, self.count == self.length, {}


def balancing_network(scale=1.0):
    """Logits that push the cart under the pole, and a value that nobody reads: its mode solves CartPole-v1."""
    observation = keras.Input((4,))
    logits = keras.layers.Dense(2, name="logits")
    value = keras.layers.Dense(1, name="value")
    network = keras.Model(observation, (logits(observation), value(observation)))
    push_right = scale * np.array([[0.1], [0.5], [10.0], [5.0]])
    logits.set_weights([np.concatenate([-push_right, push_right], axis=1), np.zeros(2)])
    return network


@pytest.fixture(scope="module")
def network():
    return balancing_network()


@pytest.fixture(scope="module")
def run_dir(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    run = create_run(TrainConfig(env="CartPole-v1", env_kwargs=KWARGS, run_dir=path))
    Policy.from_network(network, Discrete(2), batch_size=8).exported.save(run.policy)
    return path


def test_network(network):
    evaluation = evaluate(network, "CartPole-v1", episodes=5)
    assert evaluation.returns.tolist() == [500.0] * 5
    assert evaluation.lengths.tolist() == [500] * 5
    assert (evaluation.mean, evaluation.std, evaluation.mean_length) == (500.0, 0.0, 500.0)


def test_summary():
    evaluation = Evaluation(np.array([1.0, 2.0, 6.0]), np.array([1, 2, 4]))
    assert evaluation.mean == 3.0
    assert evaluation.std == pytest.approx(np.sqrt(14 / 3))
    assert evaluation.mean_length == pytest.approx(7 / 3)


def test_run_directory_brings_its_environment(run_dir):
    assert evaluate(run_dir, episodes=3).returns.tolist() == [120.0] * 3
    assert evaluate(str(run_dir), episodes=1).lengths.tolist() == [120]
    assert evaluate(run_dir, episodes=2, env_kwargs={"max_episode_steps": 40}).lengths.tolist() == [40, 40]


def test_another_environment_than_the_runs(run_dir):
    assert evaluate(run_dir, Fixed, episodes=3).lengths.tolist() == [3, 3, 3]  # without the run's env_kwargs
    assert evaluate(run_dir, Fixed, episodes=3, env_kwargs={"length": 7}).lengths.tolist() == [7, 7, 7]


def test_policy_object(network):
    policy = Policy.from_network(network, Discrete(2))
    assert evaluate(policy, "CartPole-v1", episodes=2, env_kwargs=KWARGS).lengths.tolist() == [120, 120]


def test_samples_repeat_with_their_seed():
    unsure = balancing_network(scale=0.05)
    sampled = functools.partial(evaluate, unsure, "CartPole-v1", episodes=6, env_kwargs=KWARGS, deterministic=False)
    first, again, other = (sampled(seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.returns.tolist() != other.returns.tolist()
    assert first.mean < 119.0
    assert sampled(seed=3, deterministic=True).mean == 120.0


@pytest.mark.parametrize(("episodes", "num_envs"), [(7, 2), (7, 3), (3, 8), (1, 1), (20, None)])
def test_number_of_episodes(network, episodes, num_envs):
    evaluation = evaluate(network, Fixed, episodes=episodes, num_envs=num_envs)
    assert len(evaluation.returns) == len(evaluation.lengths) == episodes


def test_short_episodes_do_not_count_more_often(network):
    lengths = itertools.cycle([2, 11])
    evaluation = evaluate(network, lambda: Fixed(next(lengths)), episodes=6, num_envs=2)
    assert evaluation.lengths.tolist() == [2, 2, 2, 11, 11, 11]


def test_vector_environments_of_either_kind_agree_on_a_perfect_policy(network):
    for vectorization in ("auto", "sync"):
        assert evaluate(network, "CartPole-v1", 3, env_kwargs=KWARGS, vectorization=vectorization).mean == 120.0


def test_environments_are_closed(network):
    closed = []

    class Closing(Fixed):
        def close(self):
            closed.append(self)

    evaluate(network, Closing, episodes=3)
    assert len(closed) == 3
    with pytest.raises(ValueError, match="episodes"):
        evaluate(network, Closing, episodes=0)


def test_run_directory_needs_no_tensorflow(run_dir):
    code = (
        "import sys\nfrom actor_learner.evaluate import evaluate\n"
        "print(evaluate(sys.argv[1], episodes=4).mean, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, run_dir], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.split() == ["120.0", "False", "False"]


class Picky(gym.Env):
    """Nested spaces; an action outside of its space, or one that the mask forbids, is an error."""

    observation_space = Dict(
        {"action_mask": MultiBinary(5), "pair": Tuple([Box(-1, 1, (4,), np.float32), Discrete(3, start=7)])}
    )
    action_space = Dict({"force": Box(-2, 3, (2,), np.float32), "kind": Discrete(5, start=1)})
    chosen: ClassVar = set()

    def __init__(self, masks_in_infos=False):
        self.masks_in_infos = masks_in_infos
        if masks_in_infos:
            self.observation_space = self.observation_space["pair"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look()

    def step(self, action):
        assert self.action_space.contains(action)
        assert self.allowed[action["kind"] - 1], "a forbidden action"
        self.chosen.add(int(action["kind"]))
        self.count += 1
        return (*self.look()[:1], 1.0, self.count == 7, False, self.look()[1])

    def look(self):
        self.allowed = np.zeros(5, np.int8)
        self.allowed[(self.count % 5, (self.count + 2) % 5),] = 1
        pair = (np.full(4, self.count / 10, np.float32), np.int64(7 + self.count % 3))
        if self.masks_in_infos:
            return pair, {"action_mask": self.allowed}
        return {"action_mask": self.allowed, "pair": pair}, {}


class TestNestedSpacesAndMasks:
    @pytest.mark.parametrize("deterministic", [True, False])
    @pytest.mark.parametrize("masks_in_infos", [True, False])
    @pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
    def test_only_what_is_allowed_is_done(self, deterministic, masks_in_infos, distribution):
        make = functools.partial(Picky, masks_in_infos)
        env = make()
        network = default_network(env.observation_space, env.action_space, distribution=distribution)
        Picky.chosen.clear()
        evaluation = evaluate(network, make, episodes=20, deterministic=deterministic)
        assert evaluation.lengths.tolist() == [7] * 20
        assert len(Picky.chosen) >= (2 if deterministic else 5)

    def test_a_run_directory(self, tmp_path):
        env = Picky()
        run = create_run(TrainConfig(env=Picky, run_dir=tmp_path / "run"))
        network = default_network(env.observation_space, env.action_space)
        export_policy(network, env.action_space, 1, env.observation_space, masked=True).save(run.policy)
        assert evaluate(run.path, Picky, episodes=4, deterministic=False).lengths.tolist() == [7] * 4

    def test_a_policy_without_masks(self):
        env = Picky()
        network = default_network(env.observation_space, env.action_space)
        policy = Policy(export_policy(network, env.action_space, 1, env.observation_space))
        with pytest.raises(ValueError, match="exported without masks"):
            evaluate(policy, Picky, episodes=1)

    def test_other_leaves_are_named(self):
        env = Picky()
        network = default_network(env.observation_space, env.action_space)
        policy = Policy.from_network(network, env.action_space, observation_space=env.observation_space)
        with pytest.raises(
            ValueError, match=r"of shape observation\['action_mask'\] \(5,\), observation\['pair'\]\[0\]"
        ):
            evaluate(policy, functools.partial(Picky, masks_in_infos=True), episodes=1)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (Box(-1, 1, (2,)), Box(-5, 5, (2,), np.float64), True),
        (Discrete(3), Discrete(3, start=1), False),
        (MultiDiscrete([2, 3]), MultiDiscrete([3, 2]), False),
        (Tuple([Discrete(2), Box(-1, 1, (2,))]), Tuple([Discrete(2), Box(-2, 2, (2,))]), True),
        (Dict({"a": Discrete(2)}), Dict({"b": Discrete(2)}), False),
        (MultiBinary(2), MultiBinary(3), False),
    ],
)
def test_actions_are_compared_without_bounds(ours, theirs, same):
    assert (_outline(spaces.to_json(ours)) == _outline(spaces.to_json(theirs))) == same


class TestRefused:
    def refused(self, *args, **kwargs):
        with pytest.raises(ValueError) as caught:
            evaluate(*args, **kwargs)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_a_folder_that_is_no_run(self, tmp_path):
        assert "holds no run" in self.refused(tmp_path)
        assert "holds no run" in self.refused(tmp_path / "nowhere")
        assert "holds no run" in self.refused(str(tmp_path), "CartPole-v1")

    def test_a_run_without_a_policy(self, tmp_path):
        create_run(TrainConfig(env="CartPole-v1", run_dir=tmp_path / "run"))
        assert "no exported policy" in self.refused(tmp_path / "run")

    def test_network_without_an_environment(self, network):
        assert "`env` must be given, because there is no run" in self.refused(network)

    def test_run_of_a_callable(self, tmp_path, network):
        run = create_run(TrainConfig(env=Fixed, env_kwargs={"length": 4}, run_dir=tmp_path / "run"))
        Policy.from_network(network, Discrete(2)).exported.save(run.policy)
        message = self.refused(run.path)
        assert "`env` must be given, because the run's was the callable" in message
        assert "Fixed" in message
        assert evaluate(run.path, Fixed, episodes=2).lengths.tolist() == [4, 4]  # with the run's own env_kwargs

    @pytest.mark.parametrize(("name", "value"), [("episodes", 0), ("episodes", -3), ("num_envs", 0)])
    def test_counts(self, run_dir, name, value):
        assert f"`{name}` must be at least 1. Received: {name}={value}" in self.refused(run_dir, **{name: value})

    @pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
    def test_other_spaces(self, run_dir, env):
        message = self.refused(run_dir, env)
        assert "trained for observations of shape (4,) and actions of Discrete(2)" in message
        assert f"env={env!r}" in message

    def test_other_number_of_actions(self, run_dir):
        class Three(Fixed):
            action_space = Discrete(3)

        assert "`env` has other spaces" in self.refused(run_dir, Three)

    def test_unknown_id(self, run_dir):
        assert "did you mean `CartPole-v1`?" in self.refused(run_dir, "CartPol-v1")

    def test_environment_that_fails(self, network):
        make = functools.partial(Fixed, length="long")
        assert evaluate(network, functools.partial(make, length=2), episodes=1).mean == 2.0
        with pytest.raises(ValueError, match="can't be built: ZeroDivisionError"):
            evaluate(network, lambda: 1 / 0)
