from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.spaces.validate import validate_trajectory
from tests.support.trajectories import HYBRID, SENSES, TORQUES, TWO_ACTIONS, VECTOR, random_trajectory


def test_what_numpy_gives_by_default_is_brought_into_the_right_dtypes():
    right = random_trajectory(steps=3, columns=2)
    wide = Trajectory(*[field if field is None else field.tolist() for field in right])
    found = validate_trajectory(wide, Spaces(None, TWO_ACTIONS))
    for name, expected in right._asdict().items():
        if name != "policy_version" and expected is not None:
            assert getattr(found, name).dtype == expected.dtype, name
            np.testing.assert_array_equal(getattr(found, name), expected, err_msg=name)
    integers = right._replace(terminated=right.terminated.astype(np.uint8), reward=np.ones((3, 2), np.int64))
    assert validate_trajectory(integers, Spaces(None, TWO_ACTIONS)).terminated.dtype == np.bool_
    assert validate_trajectory(integers, Spaces(None, TWO_ACTIONS)).reward.dtype == np.float32


@pytest.mark.parametrize(("value", "dtype"), [(3, np.int64), (4_000_000_512, np.float32), (-(2**40), np.float32)])
def test_integers_that_a_device_would_wrap_become_floats(value, dtype):
    right = random_trajectory(steps=3, columns=2)
    large = right._replace(observation=np.full(right.observation.shape, value, np.int64))
    found = validate_trajectory(large, Spaces(None, TWO_ACTIONS)).observation
    assert found.dtype == dtype
    assert (found == np.float64(value)).all()


def test_what_is_right_already_is_not_copied():
    right = random_trajectory(TORQUES, invalid_rate=0.3)
    found = validate_trajectory(right, Spaces(None, TORQUES))
    assert all(getattr(found, name) is getattr(right, name) for name in Trajectory._fields)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "observation",
            lambda x: x[:-1],
            r"`observation` must have shape \(4, 2, \.\.\.\), as .* Received: shape=\(3, 2, 4\)",
        ),
        ("observation", lambda x: x * np.nan, r"`observation` must be finite in valid rows. Received: nan in row 0"),
        ("observation", lambda x: x.astype(str), "`observation` must hold numbers"),
        ("action", lambda x: x[..., None], r"`action` must have shape \(3, 2\).*Received: shape=\(3, 2, 1\)"),
        ("action", lambda x: x + 0.5, "`action` must hold integers. Received: dtype=float64"),
        ("action", lambda x: x + 2, r"`action` must count from 0 and be below 2 in valid rows. Received: [23]"),
        ("action", lambda x: x - 2, "must count from 0.*Received: -"),
        ("reward", lambda x: x.reshape(-1), r"`reward` must have shape \[T, B\].*Received: shape=\(6,\)"),
        ("reward", lambda x: x[:0], r"Received: shape=\(0, 2\)"),
        ("reward", lambda x: x / 0.0, "`reward` must be finite in valid rows. Received: -?inf"),
        ("terminated", lambda x: x[:, :1], r"`terminated` must have shape \(3, 2\).*Received: shape=\(3, 1\)"),
        ("truncated", lambda x: x.astype(np.float32), "`truncated` must hold booleans. Received: dtype=float32"),
        ("valid", lambda x: None, r"`valid` must have shape \(3, 2\).*Received: shape=\(\)"),
        ("behaviour_log_prob", lambda x: x.T, "`behaviour_log_prob` must have shape"),
        ("env_index", lambda x: np.arange(3), r"`env_index` must have shape \(2,\)"),
        ("env_index", lambda x: x - 1, "`env_index` must be at least 0. Received: -1"),
        ("action_mask", lambda x: np.ones((3, 2, 3), bool), r"`action_mask` must have shape \(3, 2, 2\).*\(3, 2, 3\)"),
        ("action_mask", lambda x: np.ones((3, 2, 2)), "`action_mask` must hold booleans. Received: dtype=float64"),
        ("action_mask", lambda x: np.full((3, 2, 2), 7), "`action_mask` must hold booleans, or 0 and 1. Received: 7"),
        ("action_mask", lambda x: np.ones((4, 2, 2), int) * [[[1]], [[1]], [[1]], [[7]]], "or 0 and 1.*7"),
        ("action_mask", lambda x: 5, r"`action_mask` must have shape .*Received: shape=\(\)"),
        ("final_action_mask", lambda x: 7, "`final_action_mask` must come with `action_mask` and `final_row`"),
        ("action_mask", lambda x: np.zeros((3, 2, 2), bool), "must allow at least one choice.*in row 0"),
        ("initial_state", lambda x: np.zeros(2), "`initial_state` must be a tuple of arrays"),
        ("initial_state", lambda x: (np.full((2, 4), np.inf),), "`initial_state` must be finite .* inf in column 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_would_be_broadcast_or_learned_from_is_refused(name, change, message):
    right = random_trajectory(steps=3, columns=2)
    wrong = right._replace(**{name: change(getattr(right, name))})
    with pytest.raises(ValueError, match=message) as caught:
        validate_trajectory(wrong, Spaces(None, TWO_ACTIONS))
    assert "\n" not in str(caught.value)


def test_only_a_trajectory_is_one():
    with pytest.raises(ValueError, match="must be an actor_learner.Trajectory. Received: a dict"):
        validate_trajectory({"reward": 1}, Spaces(None, TWO_ACTIONS))


def test_an_invalid_row_within_an_episode_is_refused():
    valid = np.array([[True], [False], [True]])
    no = np.zeros((3, 1), bool)
    whole = random_trajectory(steps=3, columns=1, end_rate=0.0)._replace(valid=valid)
    with pytest.raises(ValueError, match=r"must be `terminated`, or `truncated`.*in row 0 of column 0"):
        validate_trajectory(whole, Spaces(None, TWO_ACTIONS))
    validate_trajectory(
        whole._replace(terminated=np.array([[True], [False], [False]]), truncated=no), Spaces(None, TWO_ACTIONS)
    )


def composite(**options):
    return random_trajectory(HYBRID, observation_space=SENSES, steps=3, columns=2, **options)


def changed(nest, path, change):
    """A copy of a nest with one of its parts changed."""
    if not path:
        return change(nest)
    key, *rest = path
    if isinstance(nest, tuple):
        return tuple(changed(item, rest, change) if index == key else item for index, item in enumerate(nest))
    return {**nest, key: changed(nest[key], rest, change)}


@pytest.mark.parametrize(
    ("field", "path", "change", "message"),
    [
        (
            "observation",
            ["pair", 0],
            lambda x: x[:-1],
            r"`observation\['pair'\]\[0\]` must have shape \(4, 2, \.\.\.\)",
        ),
        ("observation", ["pair", 0], lambda x: x * np.nan, r"`observation\['pair'\]\[0\]` must be .*nan in row 0"),
        ("observation", ["camera"], lambda x: x.astype(str), r"`observation\['camera'\]` must hold numbers"),
        ("action", [], lambda x: x["kind"], r"`action` must be a dict with the keys \['dials', 'force', 'kind'\]"),
        ("action", ["dials"], lambda x: x[:1], r"`action\['dials'\]` must be a tuple of 2 entries"),
        ("action", ["kind"], lambda x: x[..., None], r"`action\['kind'\]` must have shape \(3, 2\)"),
        ("action", ["kind"], lambda x: x + 3, r"`action\['kind'\]` must count from 0 and be below 3 in valid rows"),
        ("action", ["dials", 0], lambda x: x + np.array([0, 0, 4]), r"`action\['dials'\]\[0\]`.*4 at entry \[2\]"),
        ("action", ["dials", 0], lambda x: x - np.array([0, 2, 0]), r"below 2 at entry \[1\].*Received: -"),
        ("action", ["dials", 1], lambda x: x.astype(int) + 256, r"`action\['dials'\]\[1\]`.*below 2.*Received: 25[67]"),
        ("action", ["dials", 1], lambda x: x / 2, r"`action\['dials'\]\[1\]` must hold .*dtype=float"),
        ("action", ["force"], lambda x: x * np.inf, r"`action\['force'\]` must be finite in valid rows"),
    ],
)
def test_what_is_wrong_is_named_by_its_leaf(field, path, change, message):
    right = composite()
    validate_trajectory(right, Spaces(None, HYBRID))
    with pytest.raises(ValueError, match=message) as caught:
        validate_trajectory(
            right._replace(**{field: changed(getattr(right, field), path, change)}), Spaces(None, HYBRID)
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("leaf", "column"),
    [
        (r"action\['kind'\]", lambda action: 3 + 2 + 4 + action["kind"][1, 0]),
        (r"action\['dials'\]\[0\]", lambda action: 3 + action["dials"][0][1, 0, 1]),
    ],
)
def test_a_forbidden_action_is_refused_where_the_row_counts(leaf, column):
    space = Dict({"kind": Discrete(3), "dials": HYBRID["dials"]})  # its leaves: dials[0], dials[1], kind
    right = random_trajectory(space, steps=3, columns=2, end_rate=1.0)
    mask = np.ones((3, 2, 12), bool)
    mask[1, 0, column(right.action)] = False
    with pytest.raises(ValueError, match=f"`{leaf}` must be allowed.*forbidden, in row 1 of column 0"):
        validate_trajectory(right._replace(action_mask=mask), Spaces(None, space))
    mask[1, 0] = False
    valid = right.valid.copy()
    valid[1, 0] = False
    validate_trajectory(right._replace(action_mask=mask, valid=valid), Spaces(None, space))


def test_each_choice_must_leave_one_and_there_must_be_choices():
    mask = np.ones((3, 2, 5), bool)
    mask[2, 1, 2:] = False
    for space, message in (
        (MultiDiscrete([2, 3]), "none of choice 1 in row 2 of column 1"),
        (TORQUES, "`action_mask` must be None: the actions have no discrete choice"),
    ):
        wrong = random_trajectory(space, steps=3, columns=2)._replace(action_mask=mask)
        with pytest.raises(ValueError, match=message):
            validate_trajectory(wrong, Spaces(None, space))


def test_the_mask_leaf_is_read_where_no_mask_is_given():
    space = Dict(position=VECTOR, action_mask=MultiBinary(5))
    right = random_trajectory(MultiDiscrete([2, 3]), observation_space=space, masked=True, invalid_rate=0.3)
    leaf = np.concatenate([right.action_mask, np.zeros_like(right.action_mask[:1])]).astype(np.int8)
    leaf[:-1][~right.valid] = 9
    given = right._replace(observation={**right.observation, "action_mask": leaf}, action_mask=None)
    found = validate_trajectory(given, Spaces(None, MultiDiscrete([2, 3]))).action_mask
    np.testing.assert_array_equal(found[:-1][right.valid], right.action_mask[right.valid])
    assert not found[-1].any()
    leaf[tuple(np.argwhere(right.valid)[0])] = 2
    with pytest.raises(ValueError, match=r"`observation\['action_mask'\]` must hold booleans, or 0 and 1"):
        validate_trajectory(given, Spaces(None, MultiDiscrete([2, 3])))


def test_masks_of_the_last_observations_are_the_fields_or_the_leaf():
    space = Dict(position=VECTOR, action_mask=MultiBinary(3))
    right = random_trajectory(Discrete(3), observation_space=space, steps=4, columns=2, masked=True, end_rate=0.0)
    right.truncated[1, 0] = True
    given = right._replace(
        final_observation={"position": np.zeros((2, 4), np.float32), "action_mask": np.array([[1, 0, 1], [9, 9, 9]])},
        final_row=np.array([1, -1]),
    )
    given.observation["action_mask"][...] = 1
    spaces = Spaces(None, Discrete(3))
    found = validate_trajectory(given, spaces)
    np.testing.assert_array_equal(found.final_action_mask, [[True, False, True], [False, False, False]])
    np.testing.assert_array_equal(found.action_mask[:-1], right.action_mask)
    assert found.action_mask[-1].all()
    own = np.array([[0, 1, 1], [5, 5, 5]])
    found = validate_trajectory(given._replace(final_action_mask=own), spaces)
    np.testing.assert_array_equal(found.final_action_mask[0], [False, True, True])
    own[0, 0] = 2
    with pytest.raises(ValueError, match="`final_action_mask` must hold booleans, or 0 and 1. Received: 2"):
        validate_trajectory(given._replace(final_action_mask=own), spaces)
    with pytest.raises(ValueError, match=r"`final_action_mask` must have shape \(2, 3\)"):
        validate_trajectory(given._replace(final_action_mask=own[:1]), spaces)


def test_the_row_after_a_truncated_one_is_checked_where_the_learner_reads_the_last_observation_in_it():
    trajectory = random_trajectory(steps=4, columns=1, end_rate=0.0)
    trajectory.truncated[1] = trajectory.truncated[3] = True
    trajectory.valid[2] = False
    trajectory.observation[2] = np.nan
    last = trajectory.observation[-1].copy()
    elsewhere, in_the_next_row = (
        trajectory._replace(final_row=np.array([row]), final_observation=last) for row in (1, 3)
    )
    for right in (trajectory, elsewhere):
        validate_trajectory(right, Spaces(None, TWO_ACTIONS))
    with pytest.raises(ValueError, match="`observation` must be finite in valid rows. Received: nan in row 2"):
        validate_trajectory(in_the_next_row, Spaces(None, TWO_ACTIONS))
