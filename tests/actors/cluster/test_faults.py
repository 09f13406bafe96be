"""Hosts, actors and brokers that die, hang or join: the batches stay whole, and nothing is left."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import actor_learner as al
from actor_learner.actors.cluster import shares
from tests.actors.cluster.conftest import collect_until, hosts
from tests.support.cluster_envs import ObedientEnv
from tests.support.counting_env import UnevenEnv
from tests.support.processes import is_alive, patience, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:There are more actors than cores")
thorough = pytest.mark.thorough


@pytest.fixture
def obedient(machines, tmp_path):
    """A pool on a machine of its own and another one, by an environment that obeys a file."""
    machines.are(own=2, far=2)
    file = tmp_path / "order"

    def pool(**fields):
        return machines.pool(ObedientEnv, env_kwargs={"file": str(file)}, **fields)

    return pool, file


def all_rows(trajectory):
    return bool(trajectory.valid.all())


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        pytest.param(signal.SIGKILL, "Host far, with actors 2 to 3, closed the connection", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "gave no sign of life for 5 s", marks=thorough),
    ],
)
def test_a_host_that_is_killed_or_hangs_is_replaced_and_its_batch_is_whole(obedient, loss, cause):
    make, _ = obedient
    with make() as pool:
        pool.collect()
        (host,) = hosts(pool)
        os.kill(host.pid, loss)
        assert all_rows(collect_until(pool, lambda _: pool.restarts))
        assert {restart.actor for restart in pool.restarts} == {2, 3}
        assert cause in pool.restarts[0].cause
        assert pool.restart_count == 2
        assert wait_until(lambda: not is_alive(host.pid))


@thorough
@pytest.mark.parametrize("lag", [1, 3])
def test_a_host_of_many_actors_is_replaced_in_the_middle_of_several_batches(machines, tmp_path, lag):
    """Each actor has columns of lag + 1 batches, by as many versions of the weights."""
    machines.are(far=3)
    kwargs = {"fast": 0.02, "slow": 0.02, "directory": tmp_path / "slow"}
    options = {"num_actors": 3, "envs_per_actor": 1, "unroll_length": 20, "max_policy_lag": lag}
    with machines.pool(UnevenEnv, env_kwargs=kwargs, **options) as pool:
        for _ in range(3):
            pool.collect()
            pool.publish(pool.exported.weights)
        os.kill(hosts(pool)[0].pid, signal.SIGKILL)
        for batch in range(3, 8):
            trajectory = pool.collect()
            assert trajectory.policy_version.tolist() == [max(0, batch - lag)] * 3
            assert all_rows(trajectory)
            pool.publish(pool.exported.weights)
        assert pool.restart_count == 3


@thorough
def test_a_killed_actor_is_replaced_by_its_own_host(obedient):
    make, file = obedient
    with make() as pool:
        pool.collect()
        file.write_text("exit")
        collect_until(pool, lambda _: pool.restarts)
        (restart,) = pool.restarts
        assert "ended with exit code 3" in restart.cause
        if restart.actor >= 2:
            assert "(on host far)" in restart.cause
        assert pool.restart_count == 1


@thorough
def test_actors_without_cpus_move_to_a_machine_that_joins(machines, monkeypatch):
    monkeypatch.setattr(shares, "HOME_SECONDS", 0.2)
    machines.are(a=2)
    with machines.pool("CartPole-v1") as pool:
        pool.collect()
        assert [host.name for host in hosts(pool)] == ["a", "a"]
        assert [host.home for host in hosts(pool)] == [True, False]
        machines.are(a=2, b=2)
        collect_until(pool, lambda _: hosts(pool)[1] is not None and hosts(pool)[1].name == "b")
        assert [host.home for host in hosts(pool)] == [True, True]
        assert all_rows(pool.collect())
        assert pool.restart_count == 0


@thorough
def test_a_broker_that_is_killed_ends_the_pool_in_order(obedient):
    make, _ = obedient
    with make() as pool:
        pool.collect()
        os.kill(pool._group._broker._child._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="Ray at auto is gone: .* killed by SIGKILL"):
            collect_until(pool, lambda _: False)


@thorough
def test_max_restarts_0_makes_the_loss_of_a_host_an_error_and_lets_requested_replacements_be(obedient):
    make, _ = obedient
    with make(max_restarts=0) as pool:
        pool.collect()
        pool.restart([3])
        collect_until(pool, lambda _: pool.restarts)
        assert pool.restart_count == 1
        os.kill(hosts(pool)[0].pid, signal.SIGKILL)
        with pytest.raises(al.ActorError, match="Host far, with actors 2 to 3"):
            collect_until(pool, lambda _: False)


@pytest.mark.slow
def test_an_exception_that_ends_the_pool_names_the_host(machines, tmp_path):
    machines.are(far=2)
    file = tmp_path / "order"
    with machines.pool(ObedientEnv, env_kwargs={"file": str(file)}, on_env_error="raise", num_actors=2) as pool:
        pool.collect()
        file.write_text("raise")
        with pytest.raises(al.ActorError, match=r"(?s)as the file says.*\(on host far\)") as caught:
            collect_until(pool, lambda _: False)
        assert caught.value.actor in range(2)
        assert "ValueError" in caught.value.traceback


@thorough
def test_no_batch_is_older_than_the_lag_over_two_machines(machines, tmp_path):
    machines.are(own=3, far=2)
    kwargs = {"fast": 0.0005, "slow": 0.2, "directory": tmp_path / "slow"}
    options = {"num_actors": 4, "envs_per_actor": 1, "unroll_length": 20, "max_policy_lag": 4, "asynchronous": True}
    lags, seen, valid = [], set(), []
    with machines.pool(UnevenEnv, env_kwargs=kwargs, **options) as pool:
        for _ in range(20):
            trajectory = pool.collect(timeout=patience(60))
            lags.append(pool.version - trajectory.policy_version)
            seen |= set(trajectory.env_index.tolist())
            valid.append(trajectory.valid.mean())
            pool.publish(pool.exported.weights)
    assert 0 <= np.min(lags) <= np.max(lags) <= 4
    assert seen == {0, 1, 2, 3}
    assert min(valid) < 1


@thorough
def test_calls_of_an_earlier_pool_reach_every_actor(obedient):
    make, _ = obedient
    with make(calls=[["set_level", [5]]]) as pool:
        assert np.all(pool.collect().reward == 5)


@thorough
def test_calls_prints_and_replacements_reach_every_host(obedient, capsys, tmp_path):
    make, file = obedient
    with make(logs_dir=tmp_path / "logs") as pool:
        pool.call("set_level", 5)
        assert np.all(pool.collect().reward == 5)
        pool.restart([3])
        collect_until(pool, lambda _: pool.restarts)
        assert pool.restarts[0].actor == 3
        assert np.all(pool.collect().reward == 5)
        os.kill(hosts(pool)[0].pid, signal.SIGKILL)
        trajectory = collect_until(pool, lambda _: any(restart.actor == 2 for restart in pool.restarts))
        assert np.all(trajectory.reward == 5)
        pool.restart([0, 1])  # so that only the far actors are asked to print
        file.write_text("print")
        printed = []
        collect_until(pool, lambda _: printed.append(capsys.readouterr().out) or "hello from" in "".join(printed))
    assert "[actor " in "".join(printed)
