"""Actors that run freely (`max_policy_lag` above 1): how old batches are, what is cut short, and that nobody waits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from actor_learner.actors.pool import ActorPool
from actor_learner.networks.contract import call_network
from actor_learner.networks.default import default_network
from tests.support.counting_env import CountingEnv, UnevenEnv
from tests.support.processes import children

pytestmark = pytest.mark.slow


ROWS, ENVS = 20, 2


@pytest.fixture(scope="module")
def network():
    env = CountingEnv()
    return default_network(env.observation_space, env.action_space, hidden_sizes=(8,))


def make_pool(network, directory, fast=0.0005, slow=0.05, **kwargs):
    env_kwargs = {"fast": fast, "slow": slow, "directory": directory / "slow"}
    arguments = {"num_actors": 3, "envs_per_actor": 1, "unroll_length": ROWS, "max_policy_lag": 2, **kwargs}
    return ActorPool(UnevenEnv, network, env_kwargs=env_kwargs, **arguments)


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
@pytest.mark.parametrize("lag", [2, 4])
def test_no_batch_is_older_than_the_lag_with_an_actor_100_times_slower(network, tmp_path, lag):
    lags, seen, valid = [], set(), []
    with make_pool(network, tmp_path, max_policy_lag=lag) as pool:
        for _ in range(30):
            trajectory = pool.collect(timeout=30)
            lags.append(pool.version - trajectory.policy_version)
            seen |= set(trajectory.env_index.tolist())
            valid.append(trajectory.valid.mean())
            check_rows(trajectory)
            pool.publish(network.get_weights())
    assert np.max(lags) == lag
    assert np.min(lags) >= 0
    assert seen == {0, 1, 2}
    assert min(valid) < 1
    assert np.median(valid) == 1


def check_rows(trajectory):
    """A column is one piece: valid rows, the last one closed where invalid ones follow."""
    for column in range(trajectory.valid.shape[1]):
        valid = trajectory.valid[:, column]
        count = int(valid.sum())
        assert valid[:count].all()
        ended = (trajectory.terminated | trajectory.truncated)[:, column]
        if 0 < count < ROWS:
            assert ended[count - 1]
        assert not ended[count:].any()
        assert np.isfinite(trajectory.behaviour_log_prob[:, column]).all()


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
def test_what_is_cut_short_goes_on_in_the_next_columns_and_is_closed_with_a_value(network, tmp_path):
    pieces = []
    with make_pool(network, tmp_path) as pool:
        for _ in range(25):
            trajectory = pool.collect(timeout=30).copy()
            pieces += [(trajectory, column) for column in range(3) if not trajectory.valid[:, column].all()]
            pool.publish(network.get_weights())
    slow = np.bincount([t.env_index[c] for t, c in pieces]).argmax()  # under load others may be late too
    pieces = [(t, c, int(t.valid[:, c].sum())) for t, c in pieces if t.env_index[c] == slow]
    pieces = [piece for piece in pieces if piece[2]]
    assert len(pieces) >= 2
    for (before, column, count), (after, next_column, _) in itertools.pairwise(pieces):
        np.testing.assert_array_equal(before.observation[-1, column], after.observation[0, next_column])
        if before.truncated[count - 1, column] and before.observation[count - 1, column, 0] != 3:
            value = call_network(network, before.observation[-1, column][None])["value"]
            np.testing.assert_allclose(before.truncation_value[count - 1, column], float(value[0]), atol=1e-5)


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
def test_the_fast_ones_fill_the_batches_while_the_slow_one_is_at_it(network, tmp_path):
    with make_pool(network, tmp_path, max_policy_lag=4) as pool:
        columns = []
        for _ in range(12):
            columns += pool.collect(timeout=30).env_index.tolist()
            pool.publish(network.get_weights())
    counts = np.bincount(columns, minlength=3)
    assert counts.min() <= 4
    assert counts.max() >= 14


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
def test_an_actor_that_hangs_is_named(network, tmp_path):
    with make_pool(network, tmp_path, slow=60.0) as pool:
        with pytest.raises(TimeoutError, match=r"Actor \d has not filled the columns .* within 1 s"):
            collect_and_publish(pool, network)
        assert len(children()) >= 3


def collect_and_publish(pool, network):
    for _ in range(10):
        pool.collect(timeout=1)
        pool.publish(network.get_weights())


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
def test_collecting_twice_without_a_publish_and_publishing_twice(network, tmp_path):
    with make_pool(network, tmp_path, slow=0.001) as pool:
        for _ in range(4):
            pool.collect(timeout=30)
            pool.collect(timeout=30)
            for _ in range(6):
                pool.publish(network.get_weights())
        assert pool.version == 24


def test_without_processes_nothing_runs_freely(network):
    with pytest.raises(ValueError, match=r"must be 0 or 1 with num_actors=0.* Received: max_policy_lag=2"):
        ActorPool(CountingEnv, network, num_actors=0, max_policy_lag=2)
