"""The first actions of a new policy against the bounds of their space."""

import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.validate import warn_of_narrow_bounds
from tests.support.trajectories import VECTOR, random_trajectory

NARROW = Box(-0.2, 0.2, (3,))


@pytest.mark.parametrize("space", [NARROW, Dict(a=Discrete(2), b=NARROW)])
def test_noise_that_is_wider_than_the_bounds_is_a_line(space):
    trajectory = random_trajectory(space, columns=16, invalid_rate=0.5)
    advice = r"`distribution='squashed'`, `initial_log_std=-2.3`, or scale"
    with pytest.warns(UserWarning, match=rf"^8\d% of .* lie on a bound.*{advice}.*Received: ") as found:
        warn_of_narrow_bounds(trajectory, Spaces(VECTOR, space), "gaussian")
    assert "\n" not in str(found[0].message)


def test_narrower_noise_does_not_help_where_the_first_means_are_outside():
    space = Box(0.4, 0.6, (3,))
    with pytest.warns(UserWarning, match="use `distribution='squashed'`, or scale actions"):
        warn_of_narrow_bounds(random_trajectory(space, columns=16), Spaces(VECTOR, space), "gaussian")


@pytest.mark.parametrize(
    ("space", "distribution"),
    [
        (NARROW, "squashed"),
        (Box(-1, 1, (3,)), "gaussian"),  # as usual: a third lies beyond
        (Box(0, 9, (3,)), "gaussian"),  # half of them lie below
        (Box(-np.inf, np.inf, (3,)), "gaussian"),
        (Discrete(3), "gaussian"),
    ],
)
def test_other_noise_is_not(space, distribution):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_narrow_bounds(random_trajectory(space, columns=16), Spaces(VECTOR, space), distribution)
