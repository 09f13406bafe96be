"""The first actions of a new policy against the bounds of their space."""

import re
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.validate import warn_of_bounds
from tests.support.trajectories import VECTOR, random_trajectory

NARROW = Box(-0.2, 0.2, (3,))


@pytest.mark.parametrize("space", [NARROW, Dict(a=Discrete(2), b=NARROW)])
def test_noise_that_is_wider_than_the_bounds_is_a_line(space):
    trajectory = random_trajectory(space, columns=16, invalid_rate=0.5)
    advice = r"`distribution='squashed'`, `initial_log_std=-2.3`, or scale"
    with pytest.warns(UserWarning, match=rf"^8\d% of .* lie on a bound.*{advice}.*Received: ") as found:
        warn_of_bounds(trajectory, Spaces(VECTOR, space), "gaussian")
    assert "\n" not in str(found[0].message)


def test_narrower_noise_does_not_help_where_the_first_means_are_outside():
    space = Box(0.4, 0.6, (3,))  # in reach of the noise
    with pytest.warns(UserWarning, match="use `distribution='squashed'`, or scale actions"):
        warn_of_bounds(random_trajectory(space, columns=16), Spaces(VECTOR, space), "gaussian")


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
        warn_of_bounds(random_trajectory(space, columns=16), Spaces(VECTOR, space), distribution)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (
            [-2000, -1],
            [2000, 1],
            r"^The first batch's actions cover less than a fiftieth of the bounds of action\[0\]: use",
        ),
        ([0, -1], [1000, 1], r"cover less than a fiftieth of the bounds of action\[0\]: .*'squashed'.*RescaleAction"),
        ([25, 25], [35, 35], "means begin at 0, which is far outside: use the wrapper RescaleAction"),
        ([30, 30], [30, 30], "^Actions have only one value, and noise that means nothing"),
        ([-0.1, 5], [0.1, 5], r"^9\d% of .* wider than the bounds of action\[0\]: .*`initial_log_std=-3.0`"),
    ],
)
def test_each_component_is_judged_by_itself(low, high, message):
    space = Box(np.float32(low), np.float32(high))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_bounds(random_trajectory(space, columns=16), Spaces(VECTOR, space), "gaussian")
    assert any(re.search(message, str(one.message)) for one in found), [str(one.message) for one in found]


def test_a_single_action_says_nothing_about_its_noise():
    trajectory = random_trajectory(NARROW, columns=16)
    valid = np.zeros_like(trajectory.valid)
    valid[0, 0] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_bounds(trajectory._replace(valid=valid), Spaces(VECTOR, NARROW), "gaussian")


def observed(space, values):
    trajectory = random_trajectory(Discrete(2), columns=16)
    shape = (*trajectory.reward.shape, *space.shape)
    observation = np.broadcast_to(
        values(np.random.default_rng(0), (shape[0] + 1, *shape[1:])), (shape[0] + 1, *shape[1:])
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        spaces = Spaces(space, Discrete(2))
        dtype = spaces.observation.leaves[0].dtype
        warn_of_bounds(trajectory._replace(observation=observation.astype(dtype)), spaces, "gaussian")
    return [str(one.message) for one in found]


def test_pictures_above_their_bounds_and_offsets_that_float32_swallows_are_named():
    (message,) = observed(Box(0, 1, (8, 8, 3), np.uint8), lambda rng, shape: rng.integers(0, 256, shape))
    assert message.startswith(
        "observation reaches 255, above its bounds, by which pictures are divided: declare high=255"
    )
    time = Box(-np.inf, np.inf, (2,), np.float64)
    (message,) = observed(time, lambda rng, shape: rng.normal(size=shape) * [1, 30] + [0, 1.7e9])
    assert message.startswith(
        "observation[1] lies around 1.7e+09, where float32 hardly tells its values apart: subtract"
    )
    assert not observed(Box(0, 1, (8, 8, 3), np.uint8), lambda rng, shape: rng.integers(0, 2, shape))
    for scale, offset in ((0, 5.1), (1, 1e5), (1e-6, 0)):
        assert not observed(time, lambda rng, shape, s=scale, o=offset: rng.normal(size=shape) * s + o)
