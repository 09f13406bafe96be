"""The fields of a trajectory that tell where episodes begin and what their last observation was."""

from __future__ import annotations

import functools
import itertools
import os
import signal

import numpy as np
import pytest
from actor_learner_envs.masked_treasure import MaskedTreasureEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import actor_learner as al
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.networks.contract import call_network
from tests.support.counting_env import BrokenLater, CountingEnv, FailsAt

ENVS = 3


def make(num_envs, mode, length=4):
    return SyncVectorEnv([functools.partial(CountingEnv, length)] * num_envs, autoreset_mode=mode)


def batches(mode, count, unroll_length=17, **options):
    env = functools.partial(make, mode=mode, **options)
    with al.ActorPool(env, small, num_actors=0, envs_per_actor=ENVS, unroll_length=unroll_length) as actors:
        return [actors.collect().copy() for _ in range(count)]


def small(observation_space, action_space):
    return al.default_network(observation_space, action_space, hidden_sizes=(8,))


@pytest.fixture(scope="module", params=list(AutoresetMode), ids=str)
def found(request):
    return batches(request.param, count=6)


def test_an_episode_starts_where_its_environment_was_reset(found):
    assert found[0].start[0].all()
    for before, after in itertools.pairwise(found):
        np.testing.assert_array_equal(before.start[-1], after.start[0])
    for trajectory in found:
        seen = trajectory.observation[..., 0]
        np.testing.assert_array_equal(trajectory.start, seen == 0)


@pytest.mark.parametrize("mask_in", ["info", "observation"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_row_has_the_mask_of_the_observation_after_it(mask_in, mode):
    """So a replay buffer draws it, but for all truncations of a column except the last where rows after it are new."""

    def treasures(num_envs):
        one = functools.partial(MaskedTreasureEnv, size=4, mask_in=mask_in)
        return SyncVectorEnv([lambda: TimeLimit(one(), 9)] * num_envs, autoreset_mode=mode)

    with al.ActorPool(treasures, small, num_actors=0, envs_per_actor=ENVS, unroll_length=16) as actors:
        trajectory = actors.collect()
        spaces = actors.observation_space, actors.action_space
        assert trajectory.action_mask.shape == (17, ENVS, 16)
        assert trajectory.action_mask[-1].any(axis=-1).all()
        assert trajectory.final_action_mask[trajectory.final_row >= 0].any(axis=-1).all()
        if mask_in == "observation":
            seen = trajectory.observation["action_mask"] > 0
            known = np.concatenate([trajectory.valid, np.ones((1, ENVS), bool)])
            np.testing.assert_array_equal(trajectory.action_mask[known], seen[known])
            cut = trajectory.final_row >= 0
            final = trajectory.final_observation["action_mask"] > 0
            np.testing.assert_array_equal(trajectory.final_action_mask[cut], final[cut])
        buffer = al.ReplayBuffer(*spaces, 16 * ENVS, unroll_length=16, action_masks=True)
        buffer.add(trajectory)
        lost = trajectory.truncated & (np.arange(16)[:, None] != trajectory.final_row)
        if mode is AutoresetMode.NEXT_STEP:
            lost[...] = False
        assert trajectory.truncated.any()
        assert len(buffer) == (trajectory.valid & ~lost).sum()


def test_the_last_observation_of_the_last_truncated_episode_is_kept(found):
    truncations = 0
    for trajectory in found:
        for column, row in enumerate(trajectory.final_row):
            cut = np.flatnonzero(trajectory.truncated[:, column])
            assert row == (cut[-1] if len(cut) else -1)
            if row >= 0:
                truncations += 1
                last = trajectory.final_observation[column]
                expected = [4, trajectory.action[row, column], trajectory.observation[row, column, 2]]
                np.testing.assert_array_equal(last, expected)
    assert truncations > 5


class Reporting(al.A2C):
    """A2C that reports the sum of the truncation values that it learns from."""

    def batch_metrics(self, rows):
        from keras import ops

        return {"truncation_value": ops.sum(rows["truncation_value"])}


@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize(
    "mode",
    [
        AutoresetMode.NEXT_STEP,
        pytest.param(AutoresetMode.SAME_STEP, marks=pytest.mark.thorough),
        pytest.param(AutoresetMode.DISABLED, marks=pytest.mark.thorough),
    ],
)
def test_truncated_rows_bootstrap_from_the_value_of_the_learner_s_own_weights(mode):
    """The actors' weights are others, as they are with a lag."""
    env = functools.partial(make, mode=mode)
    with al.ActorPool(env, small, num_actors=0, envs_per_actor=ENVS, unroll_length=16) as actors:
        learner = al.Learner(actors.network, Reporting(learning_rate=0.0), action_space=actors.action_space)
        network = actors.network
        network.set_weights([weight + 0.1 for weight in network.get_weights()])
        known = 0
        for _ in range(4):
            trajectory = actors.collect()
            expected = 0.0
            for row, column in np.argwhere(trajectory.truncated):
                last = trajectory.final_observation[column]
                if row != trajectory.final_row[column]:
                    if row + 1 == len(trajectory.valid) or trajectory.valid[row + 1, column]:
                        expected += trajectory.truncation_value[row, column]  # the batch doesn't have the observation
                        continue
                    last = trajectory.observation[row + 1, column]
                known += 1
                own = float(call_network(network, last[None])["value"][0])
                assert abs(own - trajectory.truncation_value[row, column]) > 1e-3
                expected += own
            assert learner.update(trajectory)["truncation_value"] == pytest.approx(expected, abs=1e-4)
        assert known >= 4


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 3])
def test_rows_before_an_exception_are_kept(tmp_path, lag):
    env = functools.partial(FailsAt, tmp_path / "failed", 6)
    with al.ActorPool(env, small, num_actors=2, envs_per_actor=1, unroll_length=8, max_policy_lag=lag) as actors:
        cut = None
        for _ in range(6):
            trajectory = actors.collect()
            columns = np.flatnonzero(~trajectory.valid.all(axis=0) & trajectory.truncated[4])
            if len(columns) and (trajectory.observation[5, columns[0], 0] == 5):
                cut = trajectory.copy(), columns[0]
            actors.publish(actors.network.get_weights())
        assert actors.restart_count == 1
        trajectory, column = cut
        assert trajectory.valid[:, column].tolist() == [True] * 5 + [False] * 3
        assert trajectory.reward[:5, column].tolist() == [1, 2, 3, 4, 5]
        value = call_network(actors.network, trajectory.observation[5, column][None])["value"][0]
        assert trajectory.truncation_value[4, column] == pytest.approx(float(value), abs=1e-5)


@pytest.mark.slow
def test_an_exception_in_the_first_row_gives_the_columns_to_another_process(tmp_path):
    env = functools.partial(FailsAt, tmp_path / "failed", 1)
    with al.ActorPool(env, small, num_actors=2, envs_per_actor=1, unroll_length=8) as actors:
        assert actors.collect().valid.all()
        assert actors.restart_count == 1


class FailsInReset(CountingEnv):
    """The second reset raises."""

    resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        if self.resets == 2:
            raise RuntimeError("no second game")
        return super().reset(**kwargs)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_the_end_before_a_reset_that_fails_is_kept(mode):
    vector_env = SyncVectorEnv([functools.partial(FailsInReset, 4)], autoreset_mode=mode)
    environments = Environments(vector_env)
    environments.reset(0)
    found = [environments.step(np.zeros(1, np.int64)) for _ in range(4)]
    assert (found[-1].reward[0], found[-1].terminated[0]) == (4.0, True)
    with pytest.raises((RuntimeError, EnvError), match="no second game"):
        environments.step(np.zeros(1, np.int64))


def test_a_batch_without_a_valid_row_is_passed_over():
    found = batches(AutoresetMode.NEXT_STEP, count=6, unroll_length=1, length=2)
    assert all(trajectory.valid.all() for trajectory in found)


class OldApi(CountingEnv):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (BrokenLater, al.ActorError, "ended 3 times without a finished unroll"),
        (functools.partial(OldApi, 9), EnvError, r"^`step` of environment 0 must return \(.*Received: a tuple of 4"),
    ],
)
def test_what_fails_in_every_process_ends_the_pool(env, error, message):
    actors = al.ActorPool(env, small, num_actors=1, envs_per_actor=1, unroll_length=20)
    with pytest.raises(error, match=message):
        [actors.collect() for _ in range(4)]


@pytest.mark.usefixtures("without_xla")
def test_a_replaced_actor_starts_episodes_and_discounted_returns():
    env = functools.partial(CountingEnv, 1000)
    with al.ActorPool(env, small, num_actors=2, envs_per_actor=1, unroll_length=8) as actors:
        algorithm = al.PPO(normalize_reward=True, gamma=0.9, minibatch_size=16)
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space)
        learner.update(actors.collect())
        os.kill(actors.pids[1], signal.SIGKILL)
        trajectory = actors.collect()
        assert trajectory.start[0].tolist() == [False, True]
        learner.update(trajectory)
        expected = [0.0, 0.0]
        for column, rewards in enumerate([range(1, 17), range(1, 9)]):
            for reward in rewards:
                expected[column] = reward + 0.9 * expected[column]
        np.testing.assert_allclose(learner._reward_scaling.discounted_return.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("lag", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_first_statistics_are_published_before_a_batch_is_learned(lag):
    def network(observation_space, action_space):
        return al.default_network(observation_space, action_space, hidden_sizes=(8,), normalize_observation=True)

    num_actors = 2 if lag > 1 else 0
    options = {"num_actors": num_actors, "envs_per_actor": 2, "unroll_length": 8, "max_policy_lag": lag}
    versions = []
    with al.ActorPool("CartPole-v1", network, **options) as actors:
        for _ in range(4):
            versions.append(actors.collect().policy_version.min())
            layer = next(layer for layer in actors.network.layers if hasattr(layer, "count"))
            layer.count.assign(1.0)
            actors.publish(actors.network.get_weights())
    assert versions[0] == 0
    assert min(versions[1:]) >= 1
