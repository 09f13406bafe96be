from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from actor_learner import spaces


@pytest.mark.parametrize(
    "space",
    [
        Box(-1, 1, (3,)),
        Box(-np.inf, np.inf, (2, 2), np.float64),
        Box(0, 255, (84, 84, 4), np.uint8),
        Box(np.array([-1.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)),
        Box(-1, 1, ()),
        Discrete(4),
        Discrete(3, start=-1),
    ],
)
def test_json_round_trip(space):
    assert spaces.from_json(json.loads(json.dumps(spaces.to_json(space)))) == space


def test_constant_bounds_are_written_once():
    assert spaces.to_json(Box(0, 255, (84, 84, 4), np.uint8))["high"] == 255
    assert spaces.to_json(Box(-np.inf, np.inf, (3,)))["low"] == "-inf"


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (MultiBinary(3), r"`observation` must be Box or Discrete.*Received: MultiBinary"),
        (Text(5), "`observation` must be"),
        (Box(0, 1, (3, 0)), r"`observation` must be a Box of at least one number. Received: shape=\(3, 0\)"),
        (Dict(a=Box(0, 1), b=Tuple([Discrete(2), Text(5)])), r"`observation\['b'\]\[1\]` must be"),
    ],
)
def test_unsupported_observation_spaces_name_the_leaf(space, message):
    with pytest.raises(ValueError, match=message):
        spaces.check_observation_space(space)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (MultiDiscrete([2, 3]), "`action` must be Discrete or Box"),
        (Box(0, 1, (0,)), r"`action` must be a Box of at least one number. Received: shape=\(0,\)"),
        (Box(0, 3, (2,), np.int32), "float dtype.*int32"),
        (Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0])), r"both infinite.*action\[0\] in \[0.0, inf\]"),
    ],
)
def test_unsupported_action_spaces(space, message):
    with pytest.raises(ValueError, match=message):
        spaces.check_action_space(space)


def test_supported_spaces_pass():
    spaces.check_observation_space(Box(0, 255, (3, 4, 5, 6), np.int16))
    spaces.check_observation_space(Discrete(3))
    spaces.check_action_space(Box(-np.inf, np.inf, (2,)))
    spaces.check_action_space(Discrete(3, start=2))


def test_shapes_and_dtypes():
    assert spaces.observation_shape_dtype(Box(-1, 1, (3,), np.float64)) == ((3,), np.float32)
    assert spaces.observation_shape_dtype(Box(0, 9, (3,), np.int64)) == ((3,), np.int64)
    assert spaces.observation_shape_dtype(Discrete(7, start=3)) == ((), np.int32)
    assert spaces.action_shape_dtype(Discrete(7)) == ((), np.int32)
    assert spaces.action_shape_dtype(Box(-1, 1, (2, 3), np.float64)) == ((2, 3), np.float32)
    assert spaces.parameter_size(Discrete(7, start=2)) == 7
    assert spaces.parameter_size(Box(-1, 1, (2, 3))) == 12
