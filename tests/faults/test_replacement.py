"""An actor that dies, fails or hangs is replaced: the batch stays whole, the cause is told, nothing is left behind."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import threading
import time

import numpy as np
import pytest

from actor_learner.actors.group import ActorError
from actor_learner.actors.pool import ActorPool
from actor_learner.networks import default
from tests.faults.failing_envs import FailingEnv, FailOnceEnv, QuietEnv, SimulatorEnv
from tests.support.counting_env import CountingEnv
from tests.support.processes import children, is_alive, patience, wait_until

pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.slow]


def make_pool(env, network, **kwargs):
    return ActorPool(env, network, **{"num_actors": 2, "envs_per_actor": 1, "unroll_length": 32, **kwargs})


CAUSES = {
    "raise": r"failed: ZeroDivisionError: a bad day \(.*failing_envs\.py, line \d+, in raise_error\)",
    "kill": r"was killed \(SIGKILL\), perhaps because memory ran out",
    "close": r"was killed \(SIGKILL\)",
    "hang": r"gave no sign of life for [\d.]+ s, in env\.step",
}
FURTHER = [("kill", 3, "actors"), ("hang", 0, "actors"), ("hang", 0, "device"), ("kill", 3, "device")]


@pytest.mark.parametrize(
    ("how", "lag", "acting"),
    [
        ("raise", 0, "actors"),
        ("kill", 1, "actors"),
        ("close", 0, "actors"),
        ("hang", 3, "actors"),
        ("kill", 1, "device"),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in FURTHER),
    ],
)
def test_another_process_fills_the_columns(network, tmp_path, how, lag, acting):
    """Where the device acts, the other actor waits for it meanwhile, and doesn't count as hung."""
    env = functools.partial(FailOnceEnv, how, str(tmp_path / "failed"))
    timeout = {"actor_timeout": patience(2.0)} if how == "hang" else {}
    with make_pool(env, network, max_policy_lag=lag, acting=acting, **timeout) as pool:
        restarts = []
        for _ in range(4):
            trajectory = pool.collect()
            assert np.isfinite(trajectory.behaviour_log_prob).all()
            assert trajectory.valid.any()
            restarts += pool.restarts
            pool.publish(network.get_weights())
        assert [(restart.actor, restart.incarnation) for restart in restarts] == [(1, 1)]
        assert pool.restart_count == 1
    assert re.match(CAUSES[how], restarts[0].cause)


def test_the_log_and_the_details_say_why(network, tmp_path, caplog):
    with make_pool(functools.partial(FailOnceEnv, "raise", str(tmp_path / "failed")), network) as pool:
        while not pool.collect().valid.all():  # the first batch has the rows before the exception
            pass
        (restart,) = pool.restarts
    assert 'raise ZeroDivisionError("a bad day")' in restart.details
    (record,) = caplog.records
    assert record.name == "actor_learner.actors.pool"
    assert record.message.startswith("Actor 1 failed: ZeroDivisionError: a bad day")
    assert restart.details in record.message


def test_the_other_actors_columns_are_what_they_would_have_been(network, tmp_path):
    """And the replacement's random numbers are its own."""
    batches = []
    for how in ("nothing", "kill"):
        env = functools.partial(FailOnceEnv, how, str(tmp_path / how))
        with make_pool(env, network, envs_per_actor=2) as pool:
            batches.append([pool.collect().copy() for _ in range(2)])
    for undisturbed, disturbed in zip(*batches, strict=True):
        np.testing.assert_array_equal(undisturbed.action[:, :2], disturbed.action[:, :2])
        assert (undisturbed.action[:, 2:] != disturbed.action[:, 2:]).any()


def test_columns_begin_anew(tmp_path):
    """A counting environment: each column counts on from its own first row, whoever was killed in the midst of it."""
    network = default.default_network(CountingEnv().observation_space, CountingEnv().action_space, hidden_sizes=(8,))
    with make_pool(CountingEnv, network, envs_per_actor=2, unroll_length=256, max_policy_lag=1) as pool:
        for victim in (0, 1):
            pool.collect()
            os.kill(pool.pids[victim], signal.SIGKILL)
            trajectory = pool.collect()
            assert trajectory.valid.all() or trajectory.terminated.any()
            assert np.isfinite(trajectory.behaviour_log_prob).all()
        assert pool.restart_count == 2


def test_a_crash_loop_ends_the_pool(network):
    pool = make_pool(functools.partial(FailingEnv, "kill"), network)
    with pytest.raises(ActorError, match=r"^Actor 1 ended 3 times without a finished unroll.*was killed \(SIGKILL\)"):
        pool.collect()
    assert pool.restart_count == 2


def test_deaths_with_finished_unrolls_between_are_no_crash_loop_but_are_no_more_than_max_restarts(network):
    pool = make_pool(functools.partial(FailingEnv, "exit", after=40), network, max_restarts=3)
    with pytest.raises(ActorError, match=r"^Only max_restarts=3 actors are replaced. Actor 1 ended with exit code 3"):
        collect_on(pool)
    assert pool.restart_count == 3


def collect_on(pool):
    for _ in range(12):
        pool.collect()


def test_an_exception_may_end_the_pool_while_a_death_does_not(network, tmp_path):
    env = functools.partial(FailOnceEnv, "kill", str(tmp_path / "failed"), then="raise")
    pool = make_pool(env, network, on_env_error="raise")
    with pytest.raises(ActorError, match=r"^Actor 1 failed: ZeroDivisionError"):
        pool.collect()
    assert pool.restart_count == 1


@pytest.mark.parametrize("delay", [0.0, pytest.param(0.2, marks=pytest.mark.thorough)])
def test_a_killed_starting_actor_is_replaced(network, delay):
    before = children()

    def kill_actors(observation_space, action_space):
        time.sleep(delay)
        for pid in pool_actors(before):
            os.kill(pid, signal.SIGKILL)
        return network

    with make_pool(QuietEnv, kill_actors) as pool:
        pool.collect()
        assert pool.restart_count == 2


def pool_actors(before):
    """The processes of actors among the new children: the orphan reaper is no actor."""
    found = []
    for pid in children() - before:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"\0actor-" in file.read():
                found.append(pid)
    return found


def test_a_slow_actor_is_not_replaced(network):
    seconds = patience(0.5)
    options = {"unroll_length": 8, "actor_timeout": 4 * seconds}
    with make_pool(functools.partial(QuietEnv, seconds), network, **options) as pool:
        pool.collect()
        assert pool.restart_count == 0


def test_a_stopped_actor_is_replaced(network):
    with make_pool(functools.partial(QuietEnv, 0.01), network, actor_timeout=patience(2.0)) as pool:
        pool.collect()
        os.kill(pool.pids[0], signal.SIGSTOP)
        pool.collect()
        (restart,) = pool.restarts
        assert restart.actor == 0
        assert restart.cause.startswith("gave no sign of life for")


def test_simulators_go_with_the_actor_and_come_with_the_next_and_go_with_the_pool(network, tmp_path):
    def simulators():
        return {int(path.name) for path in tmp_path.iterdir()}

    with make_pool(functools.partial(SimulatorEnv, str(tmp_path), "nothing"), network) as pool:
        pool.collect()
        before = simulators()
        assert len(before) == 4
        os.kill(pool.pids[1], signal.SIGKILL)
        pool.collect()
        after = simulators() - before
        assert len(after) == 2
        assert wait_until(lambda: sum(map(is_alive, before)) == 2)
        assert all(map(is_alive, after))
    assert wait_until(lambda: not any(map(is_alive, simulators())))


def test_restart_on_request_is_no_fault(network):
    with make_pool(QuietEnv, network, max_restarts=0) as pool:
        for _ in range(2):
            old = set(pool.pids.values())
            pool.restart()
            assert wait_until(lambda old=old: len(pool.pids) == 2 and not old & {*pool.pids.values()})
            pool.collect()
            assert {restart.cause for restart in pool.restarts} == {"was asked to end"}
        assert pool.restart_count == 4
        with pytest.raises(ValueError, match="`actors` must be numbers below 2. Received: 2"):
            pool.restart([2])
    with make_pool(QuietEnv, network, num_actors=0) as pool, pytest.raises(ValueError, match="num_actors=0"):
        pool.restart()


def test_file_descriptors_that_are_short_for_a_while_delay_the_replacement(network):
    with make_pool(QuietEnv, network) as pool:
        pool.collect()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            os.kill(pool.pids[0], signal.SIGKILL)
            threading.Timer(1.0, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))).start()
            pool.collect()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert pool.restart_count == 1
