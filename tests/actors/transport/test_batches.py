"""Blocks: where the fields lie, what an actor sees of them, what the learner gets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given, strategies as st

from actor_learner.actors.transport.batches import ArenaPlan, Block, BlockLayout
from actor_learner.actors.transport.messages import MAX_MESSAGE_BYTES
from actor_learner.actors.transport.shared_memory import ALIGNMENT, Arena
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import TrajectorySpec

KEYS = ("is_success", "speed")


def make_spec(observation_space=None, action_space=None, unroll_length=5, num_envs=6):
    spaces = Spaces(observation_space or Box(-1, 1, (3,)), action_space or Discrete(2))
    return TrajectorySpec.from_spaces(spaces, unroll_length=unroll_length, num_envs=num_envs)


def make_plan(spec=None, **changes):
    sizes = {"num_actors": 2, "num_blocks": 2, "num_slots": 3, "weights_size": 10, "policy_size": 100, "steps": {}}
    return ArenaPlan.of((BlockLayout.of(spec or make_spec(), KEYS),), **sizes | changes)


@pytest.fixture
def arena():
    arena = Arena.create()
    yield arena
    arena.close()


@pytest.fixture
def block(arena):
    layout = BlockLayout.of(make_spec(), KEYS)
    arena.reserve(layout.size)
    return Block.in_arena(layout, arena, 0)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 20),
    shape=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from([np.uint8, np.float32, np.float64, np.int64]),
)
def test_fields_lie_one_after_the_other_aligned_and_apart(rows, columns, shape, dtype):
    space = Box(0, 1, tuple(shape), dtype)
    layout = BlockLayout.of(make_spec(space, unroll_length=rows, num_envs=columns), KEYS)
    end = 0
    for offset, field_shape, field_dtype in layout.fields.values():
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + int(np.prod(field_shape)) * field_dtype.itemsize
    assert layout.size % ALIGNMENT == 0
    assert layout.size >= end


def test_leaves_and_masks_have_fields_of_their_own(arena):
    observation_space = Dict(
        {"camera": Box(0, 255, (4, 4, 1), np.uint8), "hand": Tuple((Discrete(3), Box(-1, 1, (2,))))}
    )
    action_space = Dict({"move": Discrete(4), "push": Box(-1, 1, (2,))})
    spaces = Spaces(observation_space, action_space, masked=True)
    spec = TrajectorySpec.from_spaces(spaces, unroll_length=5, num_envs=6)
    layout = BlockLayout.of(spec, ())
    arena.reserve(layout.size)
    block = Block.in_arena(layout, arena, 0)
    columns = block.columns(2, 4)
    assert [leaf.shape for leaf in columns.observation] == [(6, 2, 4, 4, 1), (6, 2), (6, 2, 2)]
    assert [leaf.shape for leaf in columns.action] == [(5, 2), (5, 2, 2)]
    assert columns.action_mask.shape == (6, 2, 4)
    assert columns.final_action_mask.shape == (2, 4)
    assert block.views()["observation/hand/1"].dtype == np.float32
    seen, chosen, allowed, *_ = next(columns.rows())
    chosen[1][...] = 7
    allowed[...] = True
    assert len(seen) == 3
    assert (block.arrays["action/push"][0, 2:4] == 7).all()
    assert block.arrays["action_mask"][0, 2:4].all()


def test_an_unwritten_row_is_found(block):
    block.arrays["behaviour_log_prob"][...] = -1.0
    assert block.unwritten() is None
    block.erase()
    assert block.unwritten() == (0, 0)
    columns = [block.columns(start, start + 3) for start in (0, 3)]
    columns[0].behaviour_log_prob[...] = -0.5
    columns[1].behaviour_log_prob[:3] = -0.5
    columns[1].behaviour_log_prob[3:, 0] = -0.5
    assert block.unwritten() == (3, 4)


def test_episodes_come_in_order_of_row_and_column(block):
    block.arrays["env_index"][:] = range(10, 16)
    for name in ("episode_return", "episode_length", "episode/is_success", "episode/speed"):
        block.arrays[name][...] = np.nan
    assert {name: values.shape for name, values in block.episodes().items()} == {"return": (0,), "length": (0,)}
    left, right = block.columns(0, 3), block.columns(3, 6)
    right.episode_return[1, 0], right.episode_length[1, 0] = 20.0, 2
    left.episode_return[1, 2], left.episode_length[1, 2] = 10.0, 1
    left.episode_return[4, 0], left.episode_length[4, 0] = 30.0, 3
    left.episode_info["is_success"][4, 0] = 1.0
    episodes = block.episodes()
    assert block.ended_envs().tolist() == [12, 13, 10]
    assert list(episodes) == ["return", "length", "is_success"]
    np.testing.assert_array_equal(episodes["return"], [10, 20, 30])
    np.testing.assert_array_equal(episodes["length"], [1, 2, 3])
    np.testing.assert_array_equal(episodes["is_success"], [1])


def test_the_parts_of_an_arena_do_not_overlap(arena):
    plan = make_plan()
    arena.reserve(plan.size)
    views = plan.parts(arena)
    parts = [views.stop_words, views.policy, views.slots]
    for (block,) in views.blocks:
        parts += block.arrays.values()
    for part in parts:
        part[...] = 0
    for number, part in enumerate(parts, start=1):
        part[...] = number % 2
    for number, part in enumerate(parts, start=1):
        assert (part == number % 2).all()
    assert parts[1].shape == (100,)
    assert parts[2].shape == (3, 10)
    assert all(part.ctypes.data % ALIGNMENT == 0 for part in parts)


@pytest.mark.parametrize(
    "observation_space",
    [Box(-1, 1, (3,)), Box(0, 255, (84, 84, 4), np.uint8), Discrete(5), Dict({str(i): Discrete(3) for i in range(40)})],
)
def test_a_plan_travels_in_a_message(observation_space):
    plan = make_plan(make_spec(observation_space, Box(-1, 1, (2,))))
    content = pickle.dumps(plan)
    assert len(content) < MAX_MESSAGE_BYTES
    assert pickle.loads(content) == plan
