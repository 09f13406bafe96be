from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from actor_learner.trajectory import Trajectory, TrajectorySpec
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
