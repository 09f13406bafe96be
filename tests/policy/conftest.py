"""Two exported policies, of three actions and of two torques."""

from __future__ import annotations

import pytest

from actor_learner.networks import default
from actor_learner.policy.export import cache
from actor_learner.policy.export.exporting import export_policy
from tests.support.policies import ACTIONS, BATCH, TORQUES, VECTOR


@pytest.fixture(scope="session", autouse=True)
def _without_cache():
    """Policies are converted here, whatever earlier runs have left in the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "key_of", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def network():
    return default.default_network(VECTOR, ACTIONS)


@pytest.fixture(scope="session")
def exported(network):
    return export_policy(network, ACTIONS, BATCH, VECTOR)


@pytest.fixture(scope="session")
def gaussian():
    network = default.default_network(VECTOR, TORQUES, initial_log_std=-0.3, noise_hold=3)
    return export_policy(network, TORQUES, BATCH, VECTOR)
