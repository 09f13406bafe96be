"""What the tests of actors that die have in common."""

import pytest

from actor_learner.networks import default
from tests.faults.failing_envs import QuietEnv


@pytest.fixture(scope="module")
def network():
    env = QuietEnv()
    return default.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))


@pytest.fixture
def nothing_is_left(network, nothing_is_left):
    """The one of all tests, once the network has opened what it opens."""
