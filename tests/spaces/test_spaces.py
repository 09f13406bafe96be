from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gymnasium import spaces as gymnasium_spaces
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Text

from actor_learner.spaces import kinds
from actor_learner.spaces.spaces import Spaces
from tests.support.trajectories import HYBRID, SENSES, TORQUES, VECTOR


def test_it_is_derived_once():
    spaces = Spaces(SENSES, HYBRID)
    for name in ("observation", "action", "masks", "gymnasium"):
        assert getattr(spaces, name) is getattr(spaces, name)


def test_masks_have_columns_only_where_there_are_masks():
    assert Spaces(VECTOR, MultiDiscrete([2, 3])).mask_size == 0
    assert Spaces(VECTOR, MultiDiscrete([2, 3]), masked=True).mask_size == 5
    assert Spaces(VECTOR, TORQUES, masked=True).mask_size == 0


def test_the_spaces_survive_json():
    given = Spaces(SENSES, HYBRID, masked=True)
    description = given.to_json()
    read = Spaces.from_json(json.loads(json.dumps(description)))
    assert read.masked
    assert isinstance(read.observation_space, kinds.Dict)
    assert read.to_json() == description
    assert (read.gymnasium.observation_space, read.gymnasium.action_space) == (SENSES, HYBRID)
    assert read.gymnasium.masked
    assert [leaf.name for leaf in read.observation.leaves] == [leaf.name for leaf in given.observation.leaves]


@pytest.mark.slow
def test_gymnasium_is_imported_for_its_own_spaces_alone():
    code = f"""
import sys
from actor_learner.spaces.spaces import Spaces
spaces = Spaces.from_json({Spaces(SENSES, HYBRID).to_json()!r})
spaces.observation, spaces.action, spaces.masks
assert "gymnasium" not in sys.modules
spaces.gymnasium
assert "gymnasium" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("description", [{}, {"observation_space": None, "action_space": None, "masked": False}])
def test_other_json_is_refused(description):
    with pytest.raises((KeyError, TypeError)):
        Spaces.from_json(description)


def test_spaces_that_are_not_supported_are_refused_at_their_first_use():
    spaces = Spaces(Dict(name=Text(3)), gymnasium_spaces.Text(3))
    with pytest.raises(ValueError, match=r"`observation\['name'\]` must be Box"):
        _ = spaces.observation
    with pytest.raises(ValueError, match="`action` must be Discrete"):
        _ = spaces.action
    with pytest.raises(ValueError, match="`observation_space` must be given. Received: observation_space=None"):
        _ = Spaces(None, Discrete(2)).observation


def test_zeros_are_nested_like_the_space():
    observation = Spaces(SENSES, HYBRID).observation
    zeros = observation.zeros(3)
    assert zeros.keys() == SENSES.spaces.keys()
    for leaf, array in zip(observation.leaves, observation.flatten(zeros), strict=True):
        assert (array.shape, array.dtype, array.any()) == ((3, *leaf.shape), leaf.dtype, False)
