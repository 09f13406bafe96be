from __future__ import annotations

import numpy as np
import pytest

from actor_learner.conform import conform
from actor_learner.trajectory import Trajectory
from tests.trajectories import TORQUES, TWO_ACTIONS, random_trajectory


def test_what_numpy_gives_by_default_is_brought_into_the_right_dtypes():
    right = random_trajectory(steps=3, columns=2)
    wide = Trajectory(*[field if field is None else field.tolist() for field in right])
    found = conform(wide, TWO_ACTIONS)
    for name, expected in right._asdict().items():
        if name not in ("policy_version", "action_mask", "initial_state"):
            assert getattr(found, name).dtype == expected.dtype, name
            np.testing.assert_array_equal(getattr(found, name), expected, err_msg=name)
    integers = right._replace(terminated=right.terminated.astype(np.uint8), reward=np.ones((3, 2), np.int64))
    assert conform(integers, TWO_ACTIONS).terminated.dtype == np.bool_
    assert conform(integers, TWO_ACTIONS).reward.dtype == np.float32


def test_what_is_right_already_is_not_copied():
    right = random_trajectory(TORQUES, invalid_rate=0.3)
    found = conform(right, TORQUES)
    assert all(getattr(found, name) is getattr(right, name) for name in Trajectory._fields)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "observation",
            lambda x: x[:-1],
            r"`observation` must have shape \[4, 2, \.\.\.\], as .* Received: \(3, 2, 4\)",
        ),
        ("observation", lambda x: x * np.nan, r"`observation` must be finite in valid rows. Received: nan in row 0"),
        ("observation", lambda x: x.astype(str), "`observation` must hold numbers"),
        ("action", lambda x: x[..., None], r"`action` must have shape \[3, 2\].*Received: \(3, 2, 1\)"),
        ("action", lambda x: x + 0.5, "`action` must hold integers. Received: dtype=float64"),
        ("action", lambda x: x + 2, r"`action` must be counted from 0 and below 2 in valid rows. Received: [23]"),
        ("action", lambda x: x - 2, "must be counted from 0.*Received: -"),
        ("reward", lambda x: x.reshape(-1), r"`reward` must have shape \[T, B\].*Received: shape=\(6,\)"),
        ("reward", lambda x: x[:0], r"Received: shape=\(0, 2\)"),
        ("reward", lambda x: x / 0.0, "`reward` must be finite in valid rows. Received: -?inf"),
        ("terminated", lambda x: x[:, :1], r"`terminated` must have shape \[3, 2\].*Received: \(3, 1\)"),
        ("truncated", lambda x: x.astype(np.float32), "`truncated` must hold booleans. Received: dtype=float32"),
        ("valid", lambda x: None, r"`valid` must have shape \[3, 2\].*Received: \(\)"),
        ("behaviour_log_prob", lambda x: x.T, "`behaviour_log_prob` must have shape"),
        ("env_index", lambda x: np.arange(3), r"`env_index` must have shape \[2\]"),
        ("env_index", lambda x: x - 1, "`env_index` must hold numbers from 0. Received: -1"),
        ("action_mask", lambda x: np.ones((3, 2, 2), bool), "`action_mask` must be None"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_would_be_broadcast_or_learned_from_is_refused(name, change, message):
    right = random_trajectory(steps=3, columns=2)
    wrong = right._replace(**{name: change(getattr(right, name))})
    with pytest.raises(ValueError, match=message) as caught:
        conform(wrong, TWO_ACTIONS)
    assert "\n" not in str(caught.value)


def test_only_a_trajectory_is_one():
    with pytest.raises(ValueError, match="must be an actor_learner.Trajectory. Received: a dict"):
        conform({"reward": 1}, TWO_ACTIONS)


def test_an_invalid_row_within_an_episode_is_refused():
    valid = np.array([[True], [False], [True]])
    no = np.zeros((3, 1), bool)
    whole = random_trajectory(steps=3, columns=1, end_rate=0.0)._replace(valid=valid)
    with pytest.raises(ValueError, match=r"must be `terminated`, or `truncated`.*in row 0 of column 0"):
        conform(whole, TWO_ACTIONS)
    conform(whole._replace(terminated=np.array([[True], [False], [False]]), truncated=no), TWO_ACTIONS)
