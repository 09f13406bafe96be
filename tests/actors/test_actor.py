"""One unroll, in this process: what is written, where, and that nothing is left out."""

from __future__ import annotations

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from actor_learner.actors.actor import Actor, Position, Startup, Stopped, make_environments, make_startups, steps
from actor_learner.actors.transport.batches import ArenaPlan, Block, BlockLayout
from actor_learner.actors.transport.messages import Assignment
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.actors.transport.weights import WeightSlots
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.environments import Environments
from actor_learner.environments.factory import resolve_env
from actor_learner.networks.default import default_network
from actor_learner.networks.layers import ActionDistribution
from actor_learner.policy.exported import flatten_weights
from actor_learner.policy.policy import Policy
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import TrajectorySpec
from actor_learner.system.policies import ONLY_POLICY
from tests.support.counting_env import CountingEnv

ROWS, ENVS = 20, 3
GO_ON = np.zeros(2, np.int64).data


@pytest.fixture(scope="module")
def network():
    env = CountingEnv()
    return default_network(env.observation_space, env.action_space, seed=3)


@pytest.fixture(scope="module")
def exported(network):
    env = CountingEnv()
    from actor_learner.policy.export.exporting import export_policy

    return export_policy(network, env.action_space, ENVS, env.observation_space)


@pytest.fixture
def policy(exported):
    return Policy(exported, seed=1)


@pytest.fixture
def plan(exported):
    env = CountingEnv()
    spec = TrajectorySpec.from_spaces(
        Spaces(env.observation_space, env.action_space), unroll_length=ROWS, num_envs=2 * ENVS
    )
    return ArenaPlan.of(
        (BlockLayout.of(spec, ("is_success",)),),
        num_actors=2,
        num_blocks=2,
        num_slots=3,
        weights_size=exported.weights.size,
        policy_size=1,
        steps={},
    )


@pytest.fixture
def arena(plan):
    arena = Arena.create()
    arena.reserve(plan.size)
    plan.parts(arena).stop_words.fill(0)
    yield arena
    arena.close()


@pytest.fixture
def block(plan, arena):
    return plan.parts(arena).blocks[0][0]


def make_counting(mode=AutoresetMode.DISABLED, **kwargs):
    vector = SyncVectorEnv([lambda: CountingEnv(**kwargs)] * ENVS, autoreset_mode=mode)
    return Environments(vector)


def unroll(*arguments, **options):
    """Run `steps` to its end and return its result."""
    unrolling = steps(*arguments, **options)
    while True:
        try:
            next(unrolling)
        except StopIteration as end:
            return end.value


def fill(block, policy, environments=None, position=None, start=ENVS, version=7):
    environments = environments or make_counting()
    position = start_of(environments) if position is None else position
    columns = block.columns(start, start + ENVS)
    return unroll(environments, policy, columns, position, version=version, first_env=start, stop=GO_ON)


def start_of(environments):
    return Position(environments.reset(seed=0), np.ones(environments.num_envs, bool))


def test_every_row_is_written_and_only_in_the_actor_s_columns(block, policy):
    for array in block.arrays.values():
        array[...] = 1 if array.dtype == bool else 99
    before = {name: array.copy() for name, array in block.arrays.items()}
    fill(block, policy, start=ENVS)
    for name, array in block.arrays.items():
        by_column = array.ndim == 1 or name.startswith("final_")
        other = (slice(ENVS),) if by_column else (slice(None), slice(ENVS))
        mine = (slice(ENVS, None),) if by_column else (slice(None), slice(ENVS, None))
        np.testing.assert_array_equal(array[other], before[name][other])
        if name != "final_observation":  # which stays where no episode was cut off
            assert not (array[mine] == 99).any()
    columns = block.columns(ENVS, 2 * ENVS)
    assert columns.policy_version.tolist() == [7] * ENVS
    assert columns.env_index.tolist() == [3, 4, 5]


def test_a_row_holds_the_observation_the_action_that_answers_it_and_what_that_brought(block, policy):
    fill(block, policy)
    rows = block.columns(ENVS, 2 * ENVS)
    steps, last_action, episodes = np.moveaxis(rows.observation[0], -1, 0)
    ended = rows.terminated | rows.truncated
    np.testing.assert_array_equal(rows.reward, steps[:-1] + 1)
    np.testing.assert_array_equal(ended, steps[:-1] == 3)
    np.testing.assert_array_equal(np.where(ended, -1, rows.action[0]), last_action[1:])
    np.testing.assert_array_equal(rows.truncated, ended & (episodes[:-1] % 3 == 2))
    assert rows.valid.all()
    assert not (rows.terminated & rows.truncated).any()
    assert set(np.unique(rows.action[0])) == {0, 1}


def test_a_truncated_row_gets_the_value_of_the_episode_s_own_last_observation(block, policy):
    fill(block, policy)
    rows = block.columns(ENVS, 2 * ENVS)
    assert rows.truncated.sum() == ENVS
    assert (rows.truncation_value[~rows.truncated] == 0).all()
    t, column = np.argwhere(rows.truncated)[0]
    last = np.array([4, rows.action[0][t, column], 2], np.float32)
    assert rows.truncation_value[t, column] == pytest.approx(policy.value(last), abs=1e-6)


def test_finished_episodes_stand_at_the_row_that_they_ended_in(block, policy):
    fill(block, policy)
    rows = block.columns(ENVS, 2 * ENVS)
    ended = rows.terminated | rows.truncated
    np.testing.assert_array_equal(~np.isnan(rows.episode_return), ended)
    assert (rows.episode_return[ended] == 1 + 2 + 3 + 4).all()
    assert (rows.episode_length[ended] == 4).all()
    np.testing.assert_array_equal(rows.episode_info["is_success"][rows.terminated], 1)
    np.testing.assert_array_equal(rows.episode_info["is_success"][rows.truncated], 0)


def test_what_an_earlier_unroll_left_does_not_remain(block, policy):
    environments = make_counting(length=4)
    fill(block, policy, environments)
    fill(block, policy, make_counting(length=1000))
    rows = block.columns(ENVS, 2 * ENVS)
    assert np.isnan(rows.episode_return).all()
    assert (rows.truncation_value == 0).all()


def test_the_next_unroll_goes_on_where_this_one_ended(block, policy):
    environments = make_counting()
    position, _ = fill(block, policy, environments)
    rows = block.columns(ENVS, 2 * ENVS)
    last, started = rows.observation[0][-1].copy(), rows.start[-1].copy()
    np.testing.assert_array_equal(position.observation[0], last)
    fill(block, policy, environments, position)
    np.testing.assert_array_equal(rows.start[0], started)
    np.testing.assert_array_equal(rows.observation[0][0], last)


def test_rows_that_only_reset_are_invalid(block, policy):
    fill(block, policy, make_counting(AutoresetMode.NEXT_STEP))
    rows = block.columns(ENVS, 2 * ENVS)
    ended = rows.terminated | rows.truncated
    assert ended.any()
    np.testing.assert_array_equal(~rows.valid[1:], ended[:-1])
    assert np.isfinite(rows.behaviour_log_prob).all()


def test_a_stop_word_ends_the_unroll(block, policy):
    environments = make_counting()
    stop = np.ones(2, np.int64).data
    with pytest.raises(Stopped):
        unroll(environments, policy, block.columns(0, ENVS), start_of(environments), version=0, first_env=0, stop=stop)


def make_actor(exported, plan, arena, seed=0, actor=0):
    startup = Startup(ENVS, ("is_success",), None, seed, actor, actor * ENVS)
    environments = make_environments(resolve_env(CountingEnv), startup)
    return Actor(startup, environments, startup.make_policies({ONLY_POLICY: exported}, environments), plan.parts(arena))


def assign(slots, batch=0, block=0):
    return Assignment(batch, block, 0, ENVS, *slots.newest)


def test_an_actor_acts_with_the_version_that_it_is_told(exported, plan, arena, network):
    slots = WeightSlots(plan.parts(arena).slots, flatten_weights(network.get_weights()))
    actor = make_actor(exported, plan, arena)
    (first,), (second,) = plan.parts(arena).blocks
    actor.fill(assign(slots))
    slots.publish(flatten_weights(network.get_weights()) + 1)
    done = actor.fill(assign(slots, batch=1, block=1))
    assert done.batch == 1
    assert first.columns(0, ENVS).policy_version.tolist() == [0] * ENVS
    assert second.columns(0, ENVS).policy_version.tolist() == [1] * ENVS
    changed = keras.models.clone_model(network)
    changed.set_weights([weight + 1 for weight in network.get_weights()])
    rows = second.columns(0, ENVS)
    parameters = changed(rows.observation[0][:-1].reshape(-1, 3))[0]
    log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(parameters)).reshape(ROWS, ENVS, 2)
    expected = np.take_along_axis(log_probs, rows.action[0][..., None].astype(int), -1)[..., 0]
    np.testing.assert_allclose(rows.behaviour_log_prob, expected, atol=1e-5)


def test_a_replaced_actor_has_streams_of_its_own(exported):
    startups = [Startup(ENVS, (), None, 0, 1, ENVS, incarnation) for incarnation in (0, 0, 1)]
    seeds = [startup.env_seed() for startup in startups]
    assert seeds[0] == seeds[1] != seeds[2]
    observation = (np.zeros((64, 3), np.float32),)
    first, again, other = (startup.make_policy(exported).step_leaves(observation)[0][0] for startup in startups)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_environment_has_the_same_streams_in_any_actor(exported):
    (alone,) = make_startups([6], PoolSettings(seed=3))
    parts = make_startups([4, 2], PoolSettings(seed=3))
    assert [alone.env_seed() + 4, alone.env_seed()] == [parts[1].env_seed(), parts[0].env_seed()]
    policies = [startup.make_policy(exported) for startup in (alone, *parts)]
    for _ in range(200):  # more than are drawn ahead
        actions = [
            policy.step_leaves((np.zeros((rows, 3), np.float32),))[0][0]
            for policy, rows in zip(policies, (6, 4, 2), strict=True)
        ]
        np.testing.assert_array_equal(actions[0], np.concatenate(actions[1:]))


def test_held_noise_is_renewed_at_unrolls_and_ends_of_episodes():
    """With the mean at 0 and a deviation of 1 an action is its noise."""
    space = Box(-10, 10, (1,))
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    held = ActionDistribution(noise_hold=4)(network.outputs[0])
    network = keras.Model(network.inputs, (held, keras.layers.Dense(1)(network.inputs[0])))
    spec = TrajectorySpec.from_spaces(Spaces(Box(-1, 1, (1,)), space), unroll_length=14, num_envs=1)
    arena, layout = Arena.create(), BlockLayout.of(spec, ())
    arena.reserve(layout.size)
    columns = Block.in_arena(layout, arena, 0).columns(0, 1)
    env = SyncVectorEnv([lambda: TimeLimit(ZeroEnv(space), 6)], autoreset_mode=AutoresetMode.DISABLED)
    environments, policy = Environments(env), Policy.from_network(network, space, seed=0)
    unroll(environments, policy, columns, start_of(environments), version=0, first_env=0, stop=GO_ON)
    runs = [len(list(group)) for _, group in itertools.groupby(columns.action[0].ravel())]
    assert runs == [4, 2, 4, 2, 2]
    arena.close()


class ZeroEnv(gym.Env):
    def __init__(self, action_space):
        self.observation_space, self.action_space = Box(-1, 1, (1,)), action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}
