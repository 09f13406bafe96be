"""Which columns are handed out when: simulated actors of any speed, so that every order of events can be had."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings, strategies as st

from actor_learner.actors.group import Plan
from actor_learner.actors.scheduling import FreeRunning, LockStep
from actor_learner.actors.transport.arena_memory import ArenaMemory
from actor_learner.actors.transport.batches import BlockLayout
from actor_learner.actors.transport.messages import Done
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import TrajectorySpec

ENVS = 2


class Simulation:
    """A group without processes: `step` lets one actor finish; its assignments are recorded."""

    def __init__(self, num_actors, lag, kind=FreeRunning):
        spaces = Spaces(Box(-1, 1, (1,)), Discrete(2))
        layout = BlockLayout.of(TrajectorySpec.from_spaces(spaces, unroll_length=3, num_envs=num_actors * ENVS), ())
        self.num_actors, self.lag, self.counts = num_actors, lag, [ENVS] * num_actors
        self.memory = ArenaMemory()
        exported = SimpleNamespace(weights=np.zeros(1, np.float32))
        self.memory.allocate(Plan((layout,), self.counts, lag + 1, max(num_actors, lag + 1), {"": exported}))
        self.blocks = [block for (block,) in self.memory.blocks]
        self.stop_words = self.memory.plan.parts(self.memory.arena).stop_words[1:]
        self.at_work = {}
        self.updates = 0
        kind = kind if lag > 1 else LockStep
        self.schedule = kind(self, self.counts, lag=lag)

    @property
    def version(self):
        return self.memory.version

    def assign(self, actor, batch, block, start):
        assignment = self.memory.assign(actor, batch, block, start)
        self.at_work.setdefault(actor, []).append(assignment)
        columns = self.blocks[block].columns(start, start + ENVS)
        assert np.isnan(columns.behaviour_log_prob).all()
        columns.policy_version.fill(assignment.version)

    def end_early(self, block):
        self.memory.end_early(block)

    def step(self, actor):
        """One actor fills its oldest assignment. Returns whether there was one."""
        if not self.at_work.get(actor):
            return False
        assignment = self.at_work[actor].pop(0)
        columns = self.blocks[assignment.block].columns(assignment.start, assignment.stop)
        columns.behaviour_log_prob.fill(-1.0)
        self.memory.finish(actor, assignment.batch)
        self.schedule.finish(actor, Done(assignment.batch, 0.0, 0.0, 0.0, 0.0))
        return True

    def cut(self):
        """The actors that end their unroll early."""
        return [a for a, given in self.at_work.items() if given and self.lag > 1 and self.stop_words[given[0].block]]

    def take(self):
        """The batch that is complete: its block, and the age of its columns."""
        index, done = self.schedule.take()
        block = self.blocks[index]
        assert len(done) == self.num_actors
        assert block.unwritten() is None
        return index, self.version - block.arrays["policy_version"]

    def publish(self):
        self.memory.weights.publish(np.zeros(1, np.float32))
        self.updates += 1


@pytest.fixture
def simulate():
    made = []

    def make(*args):
        made.append(Simulation(*args))
        return made[-1]

    yield make
    for simulation in made:
        simulation.memory.close()


def test_in_lock_step_the_actors_of_the_callers_core_are_woken_last(simulate, monkeypatch):
    simulation = simulate(4, 0)
    simulation.schedule.begin()
    for actor, core in enumerate((1, 0, 1, 2)):
        assignment = simulation.at_work[actor].pop()
        simulation.memory.finish(actor, assignment.batch)
        simulation.schedule.finish(actor, Done(assignment.batch, 0.0, 0.0, 0.0, 0.0, core=core))
    simulation.schedule.take()
    simulation.at_work.clear()
    monkeypatch.setattr("actor_learner.actors.scheduling.current_core", lambda: 1)
    simulation.schedule.begin()
    assert list(simulation.at_work) == [1, 3, 0, 2]
    assert {actor: given[0].start for actor, given in simulation.at_work.items()} == {0: 0, 1: 2, 2: 4, 3: 6}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_actors=st.integers(1, 5), lag=st.integers(2, 5))
def test_whoever_is_fast_no_batch_is_older_than_the_lag_and_nobody_waits_for_ever(data, num_actors, lag):
    simulation = Simulation(num_actors, lag)
    speed = data.draw(st.lists(st.sampled_from([1, 10, 1000]), min_size=num_actors, max_size=num_actors))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = 1 / np.array(speed)
    for _ in range(25):
        simulation.schedule.begin()
        for _ in range(int(random.integers(0, 12))):  # while the learner learned
            simulation.step(int(random.choice(num_actors, p=weights / weights.sum())))
        for _ in range(10_000):
            if simulation.schedule.complete():
                break
            cut = simulation.cut()
            simulation.step(cut[0] if cut else int(random.choice(num_actors, p=weights / weights.sum())))
        else:
            pytest.fail("nothing was ever complete")
        _, ages = simulation.take()
        assert ages.min() >= 0
        assert ages.max() <= lag
        simulation.publish()
    simulation.memory.close()


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_in_rounds_batch_j_has_version_j_minus_lag_in_any_order(simulate, lag):
    simulation = simulate(3, lag, LockStep)
    for batch in range(6):
        simulation.schedule.begin()
        assert simulation.schedule.late_actors() == [0, 1, 2]
        for actor in (2, 0, 1):
            assert not simulation.schedule.complete()
            simulation.step(actor)
        assert simulation.schedule.complete()
        _, ages = simulation.take()
        assert set(ages) == {min(lag, batch)}
        simulation.publish()


@pytest.mark.parametrize("lag", [1, 3])
def test_no_batch_is_assigned_beside_the_first_one_if_that_is_to_be_alone(simulate, lag):
    simulation = simulate(2, lag)
    simulation.schedule = type(simulation.schedule)(simulation, [ENVS] * 2, lag=lag, first_alone=True)
    simulation.schedule.begin()
    while simulation.step(0) or simulation.step(1):
        pass
    assert simulation.schedule.complete()
    simulation.take()
    simulation.publish()
    simulation.schedule.begin()
    assert min(given[0].version for given in simulation.at_work.values() if given) == 1


def test_actors_may_have_different_numbers_of_environments(simulate):
    simulation = simulate(2, 0)
    simulation.memory._env_counts = [3, 1]
    simulation.schedule = LockStep(simulation.memory, [3, 1], lag=0)
    simulation.schedule.begin()
    pending = [simulation.memory._pending[actor][0] for actor in (0, 1)]
    assert [(given.start, given.stop) for given in pending] == [(0, 3), (3, 4)]


def test_a_slow_actor_holds_up_nobody_until_its_time_is_up(simulate):
    simulation = simulate(2, 3)
    order = []
    for _ in range(8):
        simulation.schedule.begin()
        while not simulation.schedule.complete():
            cut = simulation.cut()
            assert cut in ([], [1])
            if cut:
                order.append("cut")
            assert simulation.step(1 if cut else 0)
        _, ages = simulation.take()
        order.append(int(ages.max()))
        simulation.publish()
    assert order[:5] == [0, 1, 1, "cut", 3]


def test_without_a_free_block_actors_wait_for_the_learner(simulate):
    simulation = simulate(2, 2)
    simulation.schedule.begin()
    finished = 0
    while any(simulation.at_work.values()):
        finished += sum(simulation.step(actor) for actor in (0, 1))
    assert finished == 2 * 3
    assert simulation.schedule.complete()
    simulation.take()
    simulation.publish()
    simulation.schedule.begin()
    assert simulation.at_work[0]
    assert simulation.at_work[1]


def test_an_actor_may_fill_several_columns_of_a_batch(simulate):
    simulation = simulate(3, 2)
    simulation.schedule.begin()
    simulation.step(0)
    simulation.step(0)
    given = simulation.at_work[0][0]
    assert given.block != simulation.at_work[1][0].block
    assert given.start == ENVS


def test_the_newest_weights_are_handed_out_and_those_being_read_are_kept(simulate):
    simulation = simulate(2, 2)
    simulation.schedule.begin()
    held = simulation.at_work[0][0].slot
    for _ in range(5):
        simulation.publish()
        assert simulation.memory.weights.newest.slot != held
    simulation.step(1)
    assert simulation.at_work[1][0].version == 5


@pytest.mark.parametrize("lag", [1, 2])
def test_a_successor_gets_what_was_not_finished_erased_and_by_the_same_versions(simulate, lag):
    simulation = simulate(2, lag)
    simulation.schedule.begin()
    for _ in range(3):
        simulation.publish()
    first = simulation.at_work[1][0]
    columns = simulation.blocks[first.block].columns(first.start, first.stop)
    columns.behaviour_log_prob.fill(-1.0)
    assert simulation.memory.assign_again(1) == simulation.at_work[1]
    assert np.isnan(columns.behaviour_log_prob).all()
    simulation.step(1)
    assert first not in simulation.memory.assign_again(1)


def test_a_block_that_ended_early_is_whole_again_in_its_next_batch(simulate):
    simulation = simulate(2, 2)
    simulation.assign(0, batch=1, block=1, start=0)
    simulation.end_early(1)
    simulation.assign(1, batch=1, block=1, start=ENVS)
    assert simulation.stop_words.tolist() == [0, 1, 0]
    simulation.assign(0, batch=4, block=1, start=0)
    assert not simulation.stop_words.any()
