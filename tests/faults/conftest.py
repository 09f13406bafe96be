"""What the tests of actors that die have in common."""

import pytest

from actor_learner.networks import default
from tests.faults.failing_envs import QuietEnv
from tests.support.processes import children, open_descriptors


@pytest.fixture(scope="module")
def network():
    env = QuietEnv()
    return default.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))


@pytest.fixture
def nothing_is_left(network):
    """A test ends with no child and no descriptor that wasn't there before."""
    processes, descriptors = children(), open_descriptors()
    yield
    assert children() <= processes
    assert open_descriptors() == descriptors
