from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory, TrajectorySpec, load_trajectory, nest
from tests.support.trajectories import HYBRID, SENSES, TORQUES, random_trajectory


def test_the_spec_gives_every_field_its_shape_and_dtype():
    spec = TrajectorySpec.from_spaces(Spaces(Box(-1, 1, (3,), np.float64), Discrete(5)), unroll_length=7, num_envs=4)
    fields = spec.fields()
    assert list(fields) == [name for name in Trajectory._fields if name in fields]
    assert set(Trajectory._fields) - set(fields) == {"action_mask", "initial_state", "final_action_mask"}
    assert fields["observation"] == ((8, 4, 3), np.float32)
    assert fields["action"] == ((7, 4), np.int32)
    assert fields["valid"] == ((7, 4), np.bool_)
    assert fields["policy_version"] == ((4,), np.int64)

    spec = TrajectorySpec.from_spaces(Spaces(Discrete(3), Box(-1, 1, (2, 2))), unroll_length=1, num_envs=1)
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


def test_a_printed_trajectory_is_its_fields_shapes():
    trajectory = random_trajectory(HYBRID, steps=3, columns=2)
    text = repr(trajectory._replace(reward=[[0.0, 1.0]], action_mask=None))
    assert "reward=list[1, 2], terminated=bool[3, 2]" in text
    assert "policy_version=int64[2]" in text
    assert "action_mask" not in text


def test_composites_are_nested_again_without_a_copy():
    observation_space = Dict(
        {"image": Box(0, 255, (2, 2, 1), np.uint8), "rest": Tuple((Discrete(3), Box(-1, 1, (2,))))}
    )
    action_space = Tuple((Discrete(2), Box(-1, 1, (3,))))
    spaces = Spaces(observation_space, action_space, masked=True)
    spec = TrajectorySpec.from_spaces(spaces, unroll_length=4, num_envs=3)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.fields().items()}
    trajectory = nest(arrays, spaces)
    assert trajectory.observation["rest"][1] is arrays["observation/rest/1"]
    assert trajectory.action[0] is arrays["action/0"]
    assert trajectory.action_mask.shape == (5, 3, 2)
    assert trajectory.final_action_mask.shape == (3, 2)
    copy = trajectory.copy()
    copy.observation["image"][...] = 7
    assert not arrays["observation/image"].any()
    assert isinstance(copy.action, tuple)


@pytest.mark.parametrize(
    "trajectory",
    [
        random_trajectory(invalid_rate=0.2),
        random_trajectory(TORQUES, steps=1, columns=1)._replace(env_index=None),
        random_trajectory(HYBRID, observation_space=SENSES, masked=True, invalid_rate=0.2),
    ],
    ids=["plain", "without env_index", "composite"],
)
def test_a_trajectory_there_and_back_bit_for_bit(tmp_path, trajectory):
    trajectory.save(tmp_path / "saved.npz")
    again = load_trajectory(tmp_path / "saved.npz")
    assert_same_trajectory(again, trajectory)
    assert again.reward.flags.writeable
    with np.load(tmp_path / "saved.npz", allow_pickle=False) as arrays:  # for whoever hasn't this package
        np.testing.assert_array_equal(arrays["reward"], trajectory.reward)


def assert_same_trajectory(first, second):
    """Bits, dtypes, shapes and nesting."""
    for name in Trajectory._fields:
        assert_same_nest(getattr(first, name), getattr(second, name))


def assert_same_nest(first, second):
    assert type(first) is type(second)
    if isinstance(first, dict | tuple):
        assert list(first) == list(second) if isinstance(first, dict) else len(first) == len(second)
        for key in first if isinstance(first, dict) else range(len(first)):
            assert_same_nest(first[key], second[key])
    elif first is not None:
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@pytest.mark.slow
def test_loading_a_trajectory_needs_no_tensorflow(tmp_path):
    random_trajectory().save(tmp_path / "saved.npz")
    program = (
        "import sys, actor_learner as al\n"
        "print(al.load_trajectory(sys.argv[1]).reward.shape, {'keras', 'tensorflow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "saved.npz"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(16, 4) set()\n"


def test_no_trajectory_there(tmp_path):
    for path in (tmp_path, tmp_path / "missing.npz"):
        with pytest.raises(ValueError, match="Trajectory not found. Received: path="):
            load_trajectory(path)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (np.array([object()]), "Object arrays cannot be saved"),
        ({1.5: np.zeros(1)}, "must be strings or integers. Received: 1.5"),
        ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, "Received: 'observation/a/b' twice"),
    ],
)
def test_what_a_file_cannot_hold(tmp_path, field, message):
    with pytest.raises(ValueError, match=message):
        random_trajectory()._replace(observation=field).save(tmp_path / "saved.npz")
    assert not list(tmp_path.iterdir())
