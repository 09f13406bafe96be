"""The seam between a pool and its actors: a group that is neither processes nor shared memory."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.actors.group import ActorGroup
from actor_learner.actors.transport.batches import Block
from actor_learner.actors.transport.messages import Done
from actor_learner.spaces.spaces import Spaces
from tests.support.processes import children

ROWS, ACTORS, ENVS = 16, 2, 3


class InMemoryActors(ActorGroup):
    """Fill columns with random numbers in ordinary memory: no process, no environment, no policy."""

    version = -1

    def spaces(self, seconds):
        return Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))

    def begin(self, plan, schedule):
        self.schedule, self.assigned, self.random = schedule, deque(), np.random.default_rng(0)
        self.blocks = [Block.allocate(plan.layout) for _ in range(plan.num_blocks)]
        self.publish(plan.exported.weights)
        return self.blocks

    def publish(self, weights):
        self.version, self.weights = self.version + 1, weights.copy()

    def assign(self, actor, batch, block, start):
        self.blocks[block].erase(start, start + ENVS)
        self.assigned.append((actor, batch, self.version, self.blocks[block].columns(start, start + ENVS)))

    def wait(self, seconds):
        while not self.schedule.complete():
            actor, batch, version, columns = self.assigned.popleft()
            self.fill(columns, version, actor)
            self.schedule.finish(actor, Done(batch, 1.0, 1.0, 0.0, 0.0, actor))

    def fill(self, columns, version, actor):
        columns.observation[0][...] = self.random.uniform(-1, 1, columns.observation[0].shape)
        columns.action[0][...] = self.random.integers(0, 2, columns.action[0].shape)
        columns.reward[...] = columns.action[0] == (columns.observation[0][:-1, :, 0] > 0)
        columns.terminated[...] = columns.valid[...] = True
        columns.behaviour_log_prob[...] = np.log(0.5)
        columns.policy_version[...] = version
        columns.env_index[...] = np.arange(actor * ENVS, (actor + 1) * ENVS)
        columns.episode_return[...] = columns.reward
        columns.episode_length[...] = 1


def make_pool(group=None, **kwargs):
    arguments = {"num_actors": ACTORS, "envs_per_actor": ENVS, "unroll_length": ROWS, "info_keys": (), **kwargs}
    return al.ActorPool("CartPole-v1", group=group or InMemoryActors(), **arguments)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pool_collects_and_publishes_with_any_group(lag):
    before = children()
    group = InMemoryActors()
    with make_pool(group, max_policy_lag=lag) as pool:
        assert pool.observation_space == Box(-1, 1, (3,), np.float32)
        assert pool.action_space == Discrete(2)
        for batch in range(4):
            trajectory = pool.collect()
            assert trajectory.observation.shape == (ROWS + 1, ACTORS * ENVS, 3)
            assert set(trajectory.policy_version) == {max(0, batch - lag)}
            assert trajectory.env_index.tolist() == list(range(ACTORS * ENVS))
            assert len(pool.episodes["return"]) == ROWS * ACTORS * ENVS
            assert pool.timings == {"env": 0.5, "acting": 0.5, "other": 0.0, "waiting": 0.0}
            weights = [weight + np.float32(batch) for weight in pool.network.get_weights()]
            pool.publish(weights)
            np.testing.assert_array_equal(group.weights, np.concatenate([weight.ravel() for weight in weights]))
        assert pool.version == 4
        assert pool.pids == {}
        assert pool.idle
        assert pool.restart_count == 0
    assert children() == before


def test_rows_that_a_group_has_not_written_are_found():
    class Forgetful(InMemoryActors):
        def fill(self, columns, version, actor):
            super().fill(columns, version, actor)
            columns.behaviour_log_prob[5:, 1] = np.nan

    with pytest.raises(al.ActorError, match="Actor 0 didn't write row 5 of column 1"):
        make_pool(Forgetful()).collect()


def test_what_a_group_cannot_do_is_refused():
    with make_pool() as pool, pytest.raises(ValueError, match="Only actors that have processes"):
        pool.restart()


def test_the_group_is_closed_with_the_pool():
    class Closing(InMemoryActors):
        closed = 0

        def close(self):
            self.closed += 1

    group = Closing()
    with make_pool(group):
        pass
    assert group.closed == 1
    group = Closing()
    group.spaces = lambda seconds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        make_pool(group)
    assert group.closed == 1


def test_a_group_without_what_has_no_default_is_refused():
    class WithoutWait(InMemoryActors):
        wait = ActorGroup.wait

    with pytest.raises(TypeError, match="abstract method.* wait"):
        WithoutWait()
