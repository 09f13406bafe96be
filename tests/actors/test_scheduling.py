"""Which columns are handed out when: simulated actors of any speed, so that every order of events can be had."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from actor_learner.actors.scheduling import FreeRunning, LockStep
from actor_learner.actors.transport.batches import ArenaPlan, BlockLayout
from actor_learner.actors.transport.messages import Done
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.actors.transport.weights import WeightSlots
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import TrajectorySpec

ENVS = 2


class Simulation:
    """A pool without processes: `step` lets one actor finish; what it was handed out is written down."""

    def __init__(self, num_actors, lag):
        spec = TrajectorySpec.from_spaces(
            Spaces(Box(-1, 1, (1,)), Discrete(2)), unroll_length=3, num_envs=num_actors * ENVS
        )
        plan = ArenaPlan(BlockLayout.of(spec, ()), num_actors, lag + 1, max(num_actors, lag + 1) + 2, 1, 1)
        self.arena, self.num_actors, self.lag = Arena.create(), num_actors, lag
        self.arena.reserve(plan.size)
        self.blocks = plan.blocks(self.arena)
        self.stop_words = plan.stop_words(self.arena)[1:]
        self.slots = WeightSlots(plan.slots(self.arena), [np.zeros(1, np.float32)])
        self.at_work = {}
        self.updates = 0
        shape = {"num_actors": num_actors, "envs_per_actor": ENVS, "lag": lag}
        if lag > 1:
            self.hand_outs = FreeRunning(self.blocks, self.slots, self.send, self.stop_words, **shape)
        else:
            self.hand_outs = LockStep(self.blocks, self.slots, self.send, **shape)

    def send(self, actor, hand_out):
        self.at_work.setdefault(actor, []).append(hand_out)
        columns = self.blocks[hand_out.block].columns(hand_out.start, hand_out.stop)
        assert np.isnan(columns.behaviour_log_prob).all()
        columns.policy_version.fill(hand_out.version)

    def step(self, actor):
        """One actor fills what it was handed out first. Returns whether there was something."""
        if not self.at_work.get(actor):
            return False
        hand_out = self.at_work[actor].pop(0)
        columns = self.blocks[hand_out.block].columns(hand_out.start, hand_out.stop)
        columns.behaviour_log_prob.fill(-1.0)
        self.hand_outs.done(actor, Done(hand_out.batch, 0.0, 0.0, 0.0, 0.0))
        return True

    def cut(self):
        """The actors that were told to end their unroll."""
        return [a for a, given in self.at_work.items() if given and self.lag > 1 and self.stop_words[given[0].block]]

    def take(self):
        """The batch that is complete: its block, and how old its columns are."""
        index, done = self.hand_outs.take()
        block = self.blocks[index]
        assert len(done) == self.num_actors
        assert block.unwritten() is None
        return index, self.slots.newest.number - block.arrays["policy_version"]

    def publish(self):
        self.slots.publish([np.zeros(1, np.float32)])
        self.updates += 1


@pytest.fixture
def simulate():
    made = []

    def make(*args):
        made.append(Simulation(*args))
        return made[-1]

    yield make
    for simulation in made:
        simulation.arena.close()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_actors=st.integers(1, 5), lag=st.integers(2, 5))
def test_whoever_is_fast_no_batch_is_older_than_the_lag_and_nobody_waits_for_ever(data, num_actors, lag):
    simulation = Simulation(num_actors, lag)
    speed = data.draw(st.lists(st.sampled_from([1, 10, 1000]), min_size=num_actors, max_size=num_actors))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = 1 / np.array(speed)
    for _ in range(25):
        simulation.hand_outs.begin()
        for _ in range(int(random.integers(0, 12))):  # while the learner learned
            simulation.step(int(random.choice(num_actors, p=weights / weights.sum())))
        for _ in range(10_000):
            if simulation.hand_outs.complete():
                break
            cut = simulation.cut()
            simulation.step(cut[0] if cut else int(random.choice(num_actors, p=weights / weights.sum())))
        else:
            pytest.fail("nothing was ever complete")
        _, ages = simulation.take()
        assert ages.min() >= 0
        assert ages.max() <= lag
        simulation.publish()
    simulation.arena.close()


@pytest.mark.parametrize("lag", [0, 1])
def test_in_rounds_batch_j_has_version_j_minus_lag_in_any_order(simulate, lag):
    simulation = simulate(3, lag)
    for batch in range(6):
        simulation.hand_outs.begin()
        assert simulation.hand_outs.late() == [0, 1, 2]
        for actor in (2, 0, 1):
            assert not simulation.hand_outs.complete()
            simulation.step(actor)
        assert simulation.hand_outs.complete()
        _, ages = simulation.take()
        assert set(ages) == {min(lag, batch)}
        simulation.publish()


def test_a_slow_actor_holds_up_nobody_until_its_time_is_up(simulate):
    simulation = simulate(2, 3)
    order = []
    for _ in range(8):
        simulation.hand_outs.begin()
        while not simulation.hand_outs.complete():
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
    simulation.hand_outs.begin()
    finished = 0
    while any(simulation.at_work.values()):
        finished += sum(simulation.step(actor) for actor in (0, 1))
    assert finished == 2 * 3
    assert simulation.hand_outs.complete()
    simulation.take()
    simulation.publish()
    simulation.hand_outs.begin()
    assert simulation.at_work[0]
    assert simulation.at_work[1]


def test_an_actor_may_fill_several_columns_of_a_batch(simulate):
    simulation = simulate(3, 2)
    simulation.hand_outs.begin()
    simulation.step(0)
    simulation.step(0)
    given = simulation.at_work[0][0]
    assert given.block != simulation.at_work[1][0].block
    assert given.start == ENVS


def test_the_newest_weights_are_handed_out_and_those_being_read_are_kept(simulate):
    simulation = simulate(2, 2)
    simulation.hand_outs.begin()
    held = simulation.at_work[0][0].slot
    for _ in range(5):
        simulation.publish()
        assert simulation.slots.newest.slot != held
    simulation.step(1)
    assert simulation.at_work[1][0].version == 5
