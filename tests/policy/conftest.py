"""Exported policies, which tests share: of three actions, of two torques, and of leaves of every kind.

Policies are converted here, whatever earlier runs have left in the cache.
"""

from __future__ import annotations

import contextlib

import pytest

from actor_learner.networks import default
from actor_learner.policy.export import cache
from actor_learner.policy.export.exporting import export_policy
from tests.support.policies import ACTIONS, BATCH, TORQUES, VECTOR
from tests.support.trajectories import HYBRID, SENSES


@contextlib.contextmanager
def without_cache():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "key_of", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _without_cache():
    """For a module only: a fixture of these tests' package would last for the whole session."""
    with without_cache():
        yield


def converted(*arguments, **options):
    with without_cache():
        return export_policy(*arguments, **options)


@pytest.fixture(scope="session")
def network():
    return default.default_network(VECTOR, ACTIONS)


@pytest.fixture(scope="session")
def exported(network):
    return converted(network, ACTIONS, BATCH, VECTOR)


@pytest.fixture(scope="session")
def gaussian():
    network = default.default_network(VECTOR, TORQUES, initial_log_std=-0.3, noise_hold=3)
    return converted(network, TORQUES, BATCH, VECTOR)


@pytest.fixture(scope="session")
def composite_network():
    return default.default_network(SENSES, HYBRID, image_network="impala", distribution="squashed", noise_hold=2)


@pytest.fixture(scope="session")
def composite(composite_network):
    return converted(composite_network, HYBRID, 4, SENSES, masked=True)
