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
from actor_learner.system.policies import ONLY_POLICY

ROWS, ACTORS, ENVS = 16, 2, 3


class InMemoryActors(ActorGroup):
    """Fill columns with random numbers in ordinary memory: no process, no environment, no policy."""

    version = -1

    def spaces(self, seconds):
        return {ONLY_POLICY: Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))}

    def begin(self, plan, schedule):
        self.schedule, self.assigned, self.random = schedule, deque(), np.random.default_rng(0)
        self.blocks = [Block.allocate(plan.one_layout) for _ in range(plan.num_blocks)]
        self.publish(plan.one_policy.weights)
        return [(block,) for block in self.blocks]

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
