"""Actors that run freely (`asynchronous`): how old batches are, what is cut short, and that nobody waits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from actor_learner.actors.pool import ActorPool
from actor_learner.networks.contract import call_network
from actor_learner.networks.default import default_network
from tests.support.counting_env import CountingEnv, UnevenEnv
from tests.support.processes import patience

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:There are more actors than cores")]

ROWS, ACTORS, BATCHES = 20, 3, 20


@pytest.fixture(scope="module")
def network():
    env = CountingEnv()
    return default_network(env.observation_space, env.action_space, hidden_sizes=(8,))


def make_pool(network, directory, slow, **kwargs):
    env_kwargs = {"fast": 0.0005, "slow": slow, "directory": directory / "slow"}
    options = {"num_actors": ACTORS, "envs_per_actor": 1, "unroll_length": ROWS, "max_policy_lag": 2, **kwargs}
    options["asynchronous"] = True
    return ActorPool(UnevenEnv, network, env_kwargs=env_kwargs, **options)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.thorough)])
def collected(request, network, tmp_path_factory):
    """A lag, and batches with the version that each entered; one actor is 400 times slower than the others."""
    batches = []
    with make_pool(network, tmp_path_factory.mktemp("uneven"), slow=0.2, max_policy_lag=request.param) as pool:
        for _ in range(BATCHES):
            batches.append((pool.collect(timeout=patience(60)).copy(), pool.version))
            pool.publish(network.get_weights())
    return request.param, batches


def test_no_batch_is_older_than_the_lag(collected):
    lag, batches = collected
    ages = np.array([version - trajectory.policy_version for trajectory, version in batches])
    assert (ages.min(), ages.max()) == (0, lag)
    valid = [trajectory.valid.mean() for trajectory, _ in batches]
    assert min(valid) < 1
    assert max(valid) == 1


def test_a_column_is_one_piece_that_is_closed_where_it_was_cut_short(collected):
    for trajectory, _ in collected[1]:
        ended = trajectory.terminated | trajectory.truncated
        for column, valid in enumerate(trajectory.valid.T):
            count = int(valid.sum())
            assert valid[:count].all()
            if 0 < count < ROWS:
                assert ended[count - 1, column]
            assert not ended[count:, column].any()
            assert np.isfinite(trajectory.behaviour_log_prob[:, column]).all()


def test_the_fast_ones_fill_the_batches_while_the_slow_one_is_at_it(collected):
    lag, batches = collected
    counts = np.bincount(np.concatenate([trajectory.env_index for trajectory, _ in batches]), minlength=ACTORS)
    assert 0 < counts.min() <= BATCHES / lag + 2


def test_what_is_cut_short_goes_on_in_the_next_columns_and_is_closed_with_a_value(network, collected):
    columns = [(trajectory, column) for trajectory, _ in collected[1] for column in range(ACTORS)]
    pieces = [(t, c, int(t.valid[:, c].sum())) for t, c in columns if not t.valid[:, c].all()]
    slow = np.bincount([t.env_index[c] for t, c, _ in pieces]).argmax()  # under load others may be late too
    pieces = [(t, c, count) for t, c, count in pieces if t.env_index[c] == slow and count]
    assert len(pieces) >= 2
    for (before, column, count), (after, next_column, _) in itertools.pairwise(pieces):
        np.testing.assert_array_equal(before.observation[-1, column], after.observation[0, next_column])
        if before.truncated[count - 1, column] and before.observation[count - 1, column, 0] != 3:
            value = call_network(network, before.observation[-1, column][None])["value"]
            np.testing.assert_allclose(before.truncation_value[count - 1, column], float(value[0]), atol=1e-5)


def test_an_actor_that_hangs_is_named(network, tmp_path):
    text = r"Actor \d has not filled the columns of the batch within"
    with make_pool(network, tmp_path, slow=3600.0) as pool, pytest.raises(TimeoutError, match=text):
        collect_and_publish(pool, network)


def collect_and_publish(pool, network):
    for _ in range(10):
        pool.collect(timeout=patience(2.0))
        pool.publish(network.get_weights())


@pytest.mark.parametrize(("num_actors", "lag"), [(0, 2), (2, 1)])
def test_without_processes_or_a_lag_nothing_runs_freely(network, num_actors, lag):
    with pytest.raises(ValueError, match=rf"^`asynchronous` needs .* Received: max_policy_lag={lag}, num"):
        ActorPool(CountingEnv, network, num_actors=num_actors, max_policy_lag=lag, asynchronous=True)
