"""What an environment returns must be what its space says: nothing is changed by a cast without a word."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from actor_learner.environments.environments import Environments
from actor_learner.environments.serial import SerialVectorEnv

PIXELS = Box(0, 255, (3,), np.uint8)


class Returning(gym.Env):
    def __init__(self, space, value, terminated=False):
        self.observation_space, self.action_space = space, Discrete(2)
        self._value, self._terminated = value, terminated

    def reset(self, *, seed=None, options=None):
        return self._value, {}

    def step(self, action):
        return self._value, 0.0, self._terminated, False, {}


def played(*arguments):
    """The observations at the reset and after a step of two environments."""
    environments = Environments(SerialVectorEnv([Returning(*arguments) for _ in range(2)]))
    (first,) = environments.reset(0)
    return np.stack([first, *environments.step(np.zeros(2, np.int64)).observation])


@pytest.mark.parametrize(
    ("space", "value", "named"),
    [
        (PIXELS, np.array([0.1, 0.2, 0.3]), "0.1 where the space has uint8"),
        (PIXELS, [300, -5, 2], "300 where the space has uint8"),
        (Box(-10, 10, (3,), np.int32), np.array([1, np.nan, 2]), "nan where the space has int32"),
        (Discrete(4), 1.7, "1.7 where the space has"),
        (Dict(a=Discrete(3, start=1)), {"a": np.float64(1.5)}, "1.5 where the space has"),
        (MultiBinary(2), np.array([0.5, 1]), "0.5 where the space has int8"),
        (MultiBinary(2), np.array([256, 1]), "256 where the space has int8"),
        (Box(-9, 9, (3,), np.int16), np.array([1, 40_000, 2]), "40000 where the space has int16"),
        (PIXELS, np.array([1, 300, 2], np.uint16), "300 where the space has uint8"),
    ],
)
def test_numbers_that_a_space_of_integers_lacks_are_refused(space, value, named):
    with pytest.raises(ValueError, match=named):
        played(space, value)


@pytest.mark.parametrize("value", [np.array([1.0, 2, 3]), [1, 2, 3], np.array([1, 2, 3]), np.array([1, 2, 3], np.int8)])
def test_the_same_numbers_in_another_dtype_are_taken(value):
    np.testing.assert_array_equal(played(PIXELS, value), np.full((2, 2, 3), [1, 2, 3]))


@pytest.mark.parametrize("flag", ["False", float("nan"), 0.5])
def test_an_end_must_be_a_bool(flag):
    with pytest.raises(ValueError, match="must return a bool as terminated. Received: terminated="):
        played(PIXELS, np.zeros(3, np.uint8), flag)


def test_an_end_may_be_any_kind_of_bool():
    for flag in (np.bool_(False), 0):
        assert not played(PIXELS, np.zeros(3, np.uint8), flag).any()
