from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from actor_learner import spaces
from actor_learner.trajectory import Trajectory, TrajectorySpec, nest
from tests.trajectories import random_trajectory


def test_the_spec_gives_every_field_its_shape_and_dtype():
    spec = TrajectorySpec.from_spaces(Box(-1, 1, (3,), np.float64), Discrete(5), unroll_length=7, num_envs=4)
    fields = spec.fields()
    assert list(fields) == [name for name in Trajectory._fields if name in fields]
    assert set(Trajectory._fields) - set(fields) == {"action_mask", "initial_state"}
    assert fields["observation"] == ((8, 4, 3), np.float32)
    assert fields["action"] == ((7, 4), np.int32)
    assert fields["valid"] == ((7, 4), np.bool_)
    assert fields["policy_version"] == ((4,), np.int64)


def test_box_actions_keep_their_shape():
    spec = TrajectorySpec.from_spaces(Discrete(3), Box(-1, 1, (2, 2)), unroll_length=1, num_envs=1)
    assert spec.fields()["action"] == ((1, 1, 2, 2), np.float32)
    assert spec.fields()["observation"] == ((2, 1), np.int32)


def test_a_copy_shares_no_memory():
    trajectory = random_trajectory()
    copy = trajectory.copy()
    for name, field in trajectory._asdict().items():
        if field is None:
            assert getattr(copy, name) is None
            continue
        np.testing.assert_array_equal(getattr(copy, name), field)
        assert not np.shares_memory(getattr(copy, name), field)


def test_composites_are_nested_again_without_a_copy():
    observation_space = Dict(
        {"image": Box(0, 255, (2, 2, 1), np.uint8), "rest": Tuple((Discrete(3), Box(-1, 1, (2,))))}
    )
    action_space = Tuple((Discrete(2), Box(-1, 1, (3,))))
    spec = TrajectorySpec.from_spaces(observation_space, action_space, unroll_length=4, num_envs=3, mask_size=2)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.fields().items()}
    structures = spaces.observation_structure(observation_space), spaces.action_structure(action_space)
    trajectory = nest(arrays, *structures)
    assert trajectory.observation["rest"][1] is arrays["observation/rest/1"]
    assert trajectory.action[0] is arrays["action/0"]
    assert trajectory.action_mask.shape == (4, 3, 2)
    copy = trajectory.copy()
    copy.observation["image"][...] = 7
    assert not arrays["observation/image"].any()
    assert isinstance(copy.action, tuple)
