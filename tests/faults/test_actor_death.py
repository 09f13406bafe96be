"""An actor that fails, dies or hangs: one clear error in the caller, and nothing is left."""

from __future__ import annotations

import functools
import os
import signal

import pytest

from actor_learner.actors.group import ActorError
from actor_learner.actors.pool import ActorPool
from actor_learner.environments.errors import EnvError
from tests.faults.failing_envs import DifferentSpacesEnv, FailingEnv, FailingStartEnv, LateEnv, QuietEnv
from tests.support.processes import children, is_alive, patience, wait_until

pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.slow]


def make_pool(env, network, **kwargs):
    """Of actors that aren't replaced."""
    arguments = {"num_actors": 2, "envs_per_actor": 1, "unroll_length": 32, "max_restarts": 0, **kwargs}
    return ActorPool(env, network, **arguments)


DEATHS = {
    "sys.exit": (None, r"Actor 1 failed: `step` of env `FailingEnv` in actor 1 raised SystemExit: 4 \(.*failing_envs"),
    "exit": (3, r"Actor 1 ended with exit code 3\."),
    "kill": (-signal.SIGKILL, r"Actor 1 was killed \(SIGKILL\), perhaps because memory ran out\."),
    "segfault": (
        -signal.SIGSEGV,
        r"(?s)Actor 1 was ended by SIGSEGV\..*What it printed last:.*Segmentation.*in segfault",
    ),
    "close": (-signal.SIGKILL, r"Actor 1 was killed"),
    "thread": (None, r"a bad day"),  # one that keeps the actor from ending doesn't keep the error
}


@pytest.mark.parametrize("how", DEATHS)
def test_collect_says_how_an_actor_ended(network, how):
    exit_code, message = DEATHS[how]
    lag = list(DEATHS).index(how) % 2
    pool = make_pool(functools.partial(FailingEnv, how), network, max_policy_lag=lag, actor_timeout=3600.0)
    with pytest.raises(ActorError, match=message) as error:
        pool.collect(timeout=patience(60))
    assert error.value.actor == 1
    assert error.value.exit_code == exit_code
    with pytest.raises(ActorError, match=message):
        pool.collect()


def test_an_exception_comes_along_with_its_traceback_and_what_was_printed(network, capsys, tmp_path):
    pool = make_pool(functools.partial(FailingEnv, "raise"), network, logs_dir=tmp_path / "logs")
    place = r"\(.*failing_envs\.py, line \d+, in raise_error\)"
    with pytest.raises(ActorError, match=f"^Actor 1 failed: ZeroDivisionError: a bad day {place}") as error:
        pool.collect()
    assert (error.value.actor, error.value.exit_code) == (1, None)
    assert 'raise ZeroDivisionError("a bad day")' in error.value.traceback
    assert error.value.traceback in str(error.value)
    assert "[actor 1] the last words\n" in capsys.readouterr().out
    assert (tmp_path / "logs/actor-1.log").read_text() == "the last words\n"
    assert (tmp_path / "logs/actor-0.log").read_text() == ""


def test_a_death_while_the_caller_is_busy_is_told_by_a_call_that_needs_no_actor(network):
    pool = make_pool(QuietEnv, network)
    pool.collect()
    os.kill(max(pid for pid in children() if is_alive(pid)), signal.SIGKILL)
    with pytest.raises(ActorError, match="killed"):  # at the first call after the pool has noticed it
        wait_until(lambda: pool.publish(network.get_weights()))


def test_actors_killed_while_they_start_are_an_error_too(network):
    before = children()

    def kill_children(observation_space, action_space):
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        return network

    with pytest.raises(ActorError, match="killed"):
        make_pool(QuietEnv, kill_children).collect()


def test_a_late_actor_is_named_and_may_catch_up(network, tmp_path):
    file, seconds = tmp_path / "go on", patience(1.0)
    with make_pool(functools.partial(LateEnv, file), network) as pool:
        late = rf"^Actor 1 has not filled.*the batch within {seconds:g} s. Received: timeout={seconds:g}$"
        with pytest.raises(TimeoutError, match=late):
            pool.collect(timeout=seconds)
        file.touch()
        assert pool.collect().policy_version.tolist() == [0, 0]


def test_a_stopped_actor_is_late_and_is_ended(network):
    with make_pool(QuietEnv, network) as pool:
        pool.collect()
        for pid in children():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="Actors 0, 1 have"):
            pool.collect(timeout=0.2)


@pytest.mark.parametrize("where", ["__init__", "reset"])
def test_an_environment_that_cannot_start_is_one_line(network, where):
    with pytest.raises(EnvError, match=r"ZeroDivisionError: a bad day \(.*failing_envs\.py, line \d+") as error:
        make_pool(functools.partial(FailingStartEnv, where), network)
    assert "\n" not in str(error.value)


def test_actors_must_agree_on_the_spaces(network):
    with pytest.raises(EnvError, match=r"same spaces.*in actor [01]$"):
        make_pool(DifferentSpacesEnv, network)


def test_environments_that_take_too_long_to_start(network):
    # Whichever is first: the pool's own deadline, or an actor's that began and was heard of no more.
    late, silent = r"not made and reset .*start_timeout=0.01", r"no sign of life for 0.01\d* s, making or"
    with pytest.raises((TimeoutError, ActorError), match=f"{late}|{silent}"):
        make_pool(QuietEnv, network, start_timeout=0.01)
