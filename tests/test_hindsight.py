"""Whole runs with hindsight: whose function of rewards they take, what is refused, and what a checkpoint keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from actor_learner_envs.goals import BitFlippingEnv
from gymnasium.spaces import Discrete

import actor_learner as al
from actor_learner.build import goal_rewards
from tests.support.goal_envs import Closing, OfOneRow, WithoutFunction, all_equal, several
from tests.support.small_networks import same_weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

OFTEN = {"learning_starts": 50, "minibatch_size": 8, "updates_per_step": 0.3, "buffer_size": 1000}
DQN = al.DQN(**OFTEN, hindsight="future", target_update_interval=100)
FLIPPING = "actor_learner/BitFlipping-v0"
BITS = {"bits": 4, "stop_at_success": True}


def run(run_dir, env=FLIPPING, algorithm=DQN, **fields):
    short = {"total_steps": 160, "num_envs": 4, "num_actors": 0, "unroll_length": 4, "hidden_sizes": (8,)}
    fields = {**short, "env_kwargs": BITS if env == FLIPPING else {}, **fields}
    return al.train(al.TrainConfig(env=env, algorithm=algorithm, run_dir=run_dir, quiet=True, **fields))


def buffer_of(run_dir, compute_reward=all_equal):
    return al.ReplayBuffer.load(run_dir / "checkpoints/final", compute_reward=compute_reward)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The directory of a run that has ended, whose actor was a process."""
    return run(tmp_path_factory.mktemp("runs") / "first", num_actors=1).run_dir


def test_the_last_observations_of_terminated_episodes_are_kept(first):
    rows = buffer_of(first).sample(4000)
    seen = rows.observation["achieved_goal"], rows.next_observation["achieved_goal"]
    flipped = (seen[0] != seen[1]).sum(axis=-1)
    np.testing.assert_array_equal(flipped[rows.discount > 0], 1)
    assert (flipped[rows.discount == 0] == 1).mean() > 0.5  # others ended in one column: there it's the row's own


@pytest.mark.thorough
def test_the_number_of_actors_changes_no_byte(first, tmp_path):
    assert same_weights(run(tmp_path / "run").network.get_weights(), al.load_network(first).get_weights())


def test_the_environment_that_the_learner_builds_is_closed(tmp_path):
    run(tmp_path / "run", Closing)
    assert Closing.open == 0

    def fail(*_):
        raise RuntimeError("no network today")

    with pytest.raises(RuntimeError, match="no network today"):
        run(tmp_path / "other", Closing, network=fail, hidden_sizes=None)
    for env in (WithoutFunction, OfOneRow):
        with pytest.raises(ValueError, match="compute_reward"):
            run(tmp_path / "other", env)
    assert Closing.open == 0
    assert not (tmp_path / "other").exists()


def test_a_given_function_stands_for_an_environment_that_cannot_be_built_alone(tmp_path):
    run(tmp_path / "run", several, compute_reward=all_equal, unroll_length=12)
    assert buffer_of(tmp_path / "run").sample(500).reward.max() == 0.0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (several, "`compute_reward`: `several` builds only whole vector environments; give the function"),
        ("CartPole-v1", "`compute_reward`: `CartPole-v1` has no method of this name; give the funct"),
        (WithoutFunction, "`compute_reward`: `WithoutFunction` has no method of this name; give the function"),
        (
            OfOneRow,
            r"`compute_reward` must return 97 rewards for 97 goals, not an array \(\). Received: compute_reward",
        ),
    ],
)
def test_environments_without_a_usable_function_are_refused(env, message):
    config = al.TrainConfig(env=env, algorithm=DQN)
    with pytest.raises(ValueError, match=message), goal_rewards(config):
        pass


def test_a_buffer_without_episodes_is_refused():
    space = BitFlippingEnv(4).observation_space
    network = al.default_network(space, Discrete(4), hidden_sizes=(8,), **DQN.network_options(Discrete(4)))
    options = {"action_space": Discrete(4), "observation_space": space, "total_steps": 1000}
    plain = al.ReplayBuffer(space, Discrete(4))
    with pytest.raises(ValueError, match=r"`buffer` must have been made with hindsight.*a buffer with hindsight=None"):
        al.Learner(network, DQN, buffer=plain, **options)
    with pytest.raises(ValueError, match="`compute_reward` must be None for DQN without `hindsight`"):
        al.Learner(network, dataclasses.replace(DQN, hindsight=None), compute_reward=all_equal, **options)
    with pytest.raises(ValueError, match="`compute_reward` is for off-policy algorithms"):
        al.Learner(al.default_network(space, Discrete(4)), al.PPO(), compute_reward=all_equal, **options)
    with pytest.raises(ValueError, match="`compute_reward` must be a function.*compute_reward=None"):
        al.Learner(network, DQN, **options).make_buffer(4, action_masks=False)


def test_episodes_longer_than_unrolls_are_warned_of_once(tmp_path):
    """By the first batch: the environment of a given function isn't built, and may not tell its limit."""
    sac = al.SAC(hindsight="final", minibatch_size=8, learning_starts=0, updates_per_step=0.1, buffer_size=400)
    fields = {"algorithm": sac, "unroll_length": 10, "num_envs": 2, "num_actors": 0, "total_steps": 40, "quiet": True}
    config = al.TrainConfig(env="actor_learner/PointReach-v0", run_dir=tmp_path / "run", hidden_sizes=(8,), **fields)
    with pytest.warns(UserWarning, match=r"`unroll_length` should be as long as an episode.*10, .* 0 of 2") as found:
        al.train(config)
    assert len([each for each in found if "as long as an episode" in str(each.message)]) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: al.DQN(hindsight="later"), "`hindsight` must be one of None, 'future', 'final', 'episode'"),
        (lambda: al.SAC(hindsight="final", hindsight_goals=0), "`hindsight_goals` must be a finite number above 0"),
        (lambda: al.DQN(hindsight="final", n_step=3), "`n_step` must be 1 with `hindsight`.*n_step=3"),
        (lambda: al.DQN(hindsight="final", prioritized=True), "`prioritized` must be False with `hindsight`"),
        (lambda: al.TrainConfig(algorithm=DQN, unroll_length=1), "`unroll_length` must be above 1 with `hindsight`"),
        (lambda: al.TrainConfig(compute_reward=all_equal), "`compute_reward` must be None without `hindsight`"),
        (lambda: al.TrainConfig(algorithm=al.DQN(), compute_reward=all_equal), "`compute_reward` must be None without"),
        (lambda: al.TrainConfig(algorithm=DQN, compute_reward=3), "`compute_reward` must be a function .*, or None"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "Received: " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unrolls_are_as_long_as_most_episodes_of_robots():
    assert al.TrainConfig(algorithm=DQN).unroll_length == 50
