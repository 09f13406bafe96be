"""`ActorPool`: what is collected, with which weights, exactly; and that it leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import inspect
import os
import random
import resource
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.actors.actor import NICENESS
from actor_learner.actors.group import ActorError
from actor_learner.actors.pool import ActorPool
from actor_learner.actors.processes.supervisor import GRACE_SECONDS
from actor_learner.config.settings import PoolSettings, names_of
from actor_learner.environments.errors import EnvError
from actor_learner.networks import default
from tests.support.counting_env import (
    BrokenLater,
    ClosingEnv,
    ClosingLate,
    CountingEnv,
    FloodingEnv,
    LeanEnv,
    NeverReset,
    NotANumberLater,
    SeesGpu,
    SlowEnv,
    TalkingEnv,
)
from tests.support.processes import children, is_alive, resident_megabytes, wait_until
from tests.support.scripted_envs import UsesTensorFlow

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]


ROWS, ENVS = 20, 3


@pytest.fixture(scope="module")
def network():
    env = CountingEnv()
    return default.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))


def make_pool(network, env=CountingEnv, **kwargs):
    return ActorPool(env, network, **{"num_actors": 1, "envs_per_actor": ENVS, "unroll_length": ROWS, **kwargs})


def changed(network, by):
    return [weight + np.float32(by) for weight in network.get_weights()]


def test_arguments_have_the_texts_and_defaults_of_the_settings_but_for_more_actors():
    parameters, text = inspect.signature(ActorPool).parameters, ActorPool.__init__.__doc__
    defaults = {name: parameters[name].default for name in names_of(PoolSettings)}
    assert PoolSettings(**defaults | {"wrapper_kwargs": {}}) == PoolSettings(num_actors=4)
    assert [name for name in parameters if f"\n    {name}: " not in text] == []


@pytest.mark.parametrize("sees", [False, True])
def test_actors_hide_the_gpu_from_their_environments_unless_they_should_not(network, sees, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with make_pool(network, SeesGpu, info_keys=["sees_gpu"], envs_see_gpu=sees) as pool:
        pool.collect()
        assert set(pool.episodes["sees_gpu"]) == {float(sees)}


@pytest.mark.parametrize("num_actors", [0, 2])
def test_a_batch_with_its_episodes_and_timings(network, num_actors):
    with make_pool(network, num_actors=num_actors) as pool:
        trajectory, columns = pool.collect(), max(num_actors, 1) * ENVS
        assert trajectory.observation.shape == (ROWS + 1, columns, 3)
        for name in ("action", "reward", "terminated", "truncated", "valid", "behaviour_log_prob", "truncation_value"):
            assert getattr(trajectory, name).shape == (ROWS, columns)
        assert trajectory.env_index.tolist() == list(range(columns))
        assert trajectory.policy_version.tolist() == [0] * columns
        assert all(field is None or field.flags.c_contiguous for field in trajectory)
        assert pool.observation_space == CountingEnv().observation_space
        assert pool.action_space == CountingEnv().action_space
        assert pool.env_name == "CountingEnv"
        assert pool.network is network
        ended = int((trajectory.terminated | trajectory.truncated).sum())
        assert pool.episodes["return"].tolist() == [10.0] * ended
        assert pool.episodes["length"].tolist() == [4.0] * ended
        assert pool.episodes["is_success"].sum() == trajectory.terminated.sum()
        assert set(pool.timings) == {"env", "acting", "other", "waiting"}
        assert sum(pool.timings.values()) == pytest.approx(1)
        assert all(0 < share < 1 for share in pool.timings.values())


def test_actors_have_the_wrappers_and_the_wrapped_spaces():
    with make_pool(None, "CartPole-v1", wrappers=["gymnasium.wrappers:TimeAwareObservation"], num_actors=1) as pool:
        assert pool.observation_space.shape == pool.collect().observation.shape[2:] == (5,)


@pytest.mark.parametrize("lag", [0, 1])
def test_views_are_read_only_and_a_copy_lasts_and_the_next_batch_goes_on_where_it_ended(network, lag):
    with make_pool(network, max_policy_lag=lag) as pool:
        first = pool.collect()
        with pytest.raises(ValueError, match="read-only"):
            first.reward[0, 0] = 1
        kept = first.copy()
        before, last = kept.action.copy(), first.observation[-1].copy()
        second = pool.collect()
        np.testing.assert_array_equal(second.observation[0], last)
        np.testing.assert_array_equal(kept.action, before)
        assert np.shares_memory(first.action, second.action) == (lag == 0)
    np.testing.assert_array_equal(second.observation[..., 0] >= 0, True)


@pytest.mark.parametrize("num_actors", [0, 1])
def test_actors_begin_the_next_batch_when_it_is_assigned(network, num_actors):
    with make_pool(network, num_actors=num_actors) as early, make_pool(network, num_actors=num_actors) as late:
        early.assign()
        early.assign()
        if num_actors:
            assert wait_until(lambda: early.idle and early.upcoming() is not None)
        for _ in range(2):
            np.testing.assert_array_equal(early.collect().observation, late.collect().observation)


@pytest.mark.parametrize("num_actors", [0, 2])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_batch_j_is_acted_by_version_j_minus_lag_and_a_second_collect_by_the_newest(network, num_actors, lag):
    with make_pool(network, num_actors=num_actors, max_policy_lag=lag) as pool:
        for batch in range(5):
            trajectory = pool.collect()
            assert set(trajectory.policy_version) == {max(0, batch - lag)}
            pool.publish(changed(network, 0.1 * batch))
            assert pool.version == batch + 1
        pool.publish(changed(network, 0.1))
        for _ in range(1 + lag):
            pool.collect()
        assert set(pool.collect().policy_version) == {6}


@pytest.mark.parametrize(
    ("lag", "acting"),
    [(0, "actors"), (1, "actors"), (1, "device"), pytest.param(0, "device", marks=pytest.mark.thorough)],
)
def test_actors_act_with_exactly_the_published_weights(network, lag, acting):
    other = keras.models.clone_model(network)
    with make_pool(network, num_actors=1 + lag, max_policy_lag=lag, acting=acting) as pool:
        pool.collect()
        weights = changed(network, 0.3)
        pool.publish(weights)
        other.set_weights(weights)
        for _ in range(1 + lag):
            trajectory = pool.collect()
        assert set(trajectory.policy_version) == {1}
        logits = other(trajectory.observation[:-1].reshape(-1, 3))[0]
        log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits)).reshape(ROWS, -1, 2)
        expected = np.take_along_axis(log_probs, trajectory.action[..., None].astype(int), -1)[..., 0]
        np.testing.assert_allclose(trajectory.behaviour_log_prob, expected, atol=1e-5)


def run(network, batches=4, **kwargs):
    """Every byte of some batches, and of the episodes in them."""
    with make_pool(network, **kwargs) as pool:
        found = []
        for batch in range(batches):
            found += [field.tobytes() for field in pool.collect() if field is not None]
            found += [values.tobytes() for values in pool.episodes.values()]
            pool.publish(changed(network, 0.1 * batch))
    return found


@pytest.mark.parametrize(
    ("env", "lag"),
    [
        ("CartPole-v1", 1),
        ("Pendulum-v1", 3),
        *(pytest.param("Pendulum-v1", lag, marks=pytest.mark.thorough) for lag in (0, 2)),
    ],
)
def test_a_run_repeats_itself_and_no_process_gives_the_same_bytes_as_one(env, lag):
    vector_env = gym.make_vec(env, num_envs=1)
    network = default.default_network(
        vector_env.single_observation_space, vector_env.single_action_space, hidden_sizes=(8,)
    )
    vector_env.close()
    options = {"env": env, "max_policy_lag": lag, "unroll_length": 110}
    assert run(network, num_actors=2, **options) == run(network, num_actors=2, **options)
    alone = run(network, num_actors=0, **options)
    assert alone == run(network, num_actors=1, **options)
    assert alone != run(network, num_actors=0, seed=1, **options)


class DrawsGlobally(gym.Env):
    observation_space, action_space = Box(0, 1, (3,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.float32([random.random(), *np.random.random(2)]), {}  # noqa: NPY002

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


def test_generators_of_an_actors_process_are_seeded(network):
    first, again, other = (run(network, 1, env=DrawsGlobally, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_actors_differ_from_one_another_and_may_be_more_than_cores_with_a_warning(monkeypatch):
    monkeypatch.setattr("actor_learner.actors.processes.group.available_cores", lambda: 1)
    with (
        pytest.warns(UserWarning, match=r"more actors than cores.*num_actors=2, cores=1"),
        ActorPool("CartPole-v1", num_actors=2, envs_per_actor=2, unroll_length=8) as pool,
    ):
        assert len(np.unique(pool.collect().observation[0], axis=0)) == 4


def test_the_network_may_be_left_out_or_built_from_the_spaces():
    weights = []
    for seed in (5, 5, 6):
        with ActorPool("CartPole-v1", num_actors=0, envs_per_actor=1, unroll_length=2, seed=seed) as pool:
            weights.append([weight.tobytes() for weight in pool.network.get_weights()])
    assert weights[0] == weights[1] != weights[2]
    seen = []

    def build(observation_space, action_space):
        seen.append((observation_space, action_space))
        return default.default_network(observation_space, action_space, hidden_sizes=(3,))

    with ActorPool("CartPole-v1", build, num_actors=0, envs_per_actor=1, unroll_length=2) as pool:
        assert pool.collect().action.shape == (2, 1)
    assert seen == [(pool.observation_space, pool.action_space)]


def test_a_network_that_breaks_the_contract_starts_nothing_that_stays():
    wrong = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="Received"):
        make_pool(wrong)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("num_actors", -1, r"`num_actors` must be an integer of at least 0\. Received: num_actors=-1"),
        ("max_policy_lag", -1, r"Received: max_policy_lag=-1"),
        ("max_policy_lag", 65, r"must be at most 64 without `asynchronous`. Received: max_policy_lag=65"),
        ("info_keys", "is_success", r"`info_keys` must be a sequence of strings\. Received: info_keys='is_success'"),
        ("info_keys", ("return",), "`info_keys` must be without return and length.*Received: info_keys=.'return',."),
        ("env", "CartPol-v1", "CartPole-v1"),
        ("acting", "gpu", "`acting` must be one of .*Received: acting='gpu'"),
        ("device", "tpu", "`device` must be one of .*Received: device='tpu'"),
    ],
)
def test_bad_arguments_start_nothing(network, argument, value, message):
    before = children()
    with pytest.raises(ValueError, match=message):
        make_pool(network, **{argument: value})
    assert children() == before


@pytest.mark.parametrize("num_actors", [0, 1])
def test_weights_are_published_as_a_list_or_as_one_vector(network, num_actors):
    weights = changed(network, 0.3)
    vector = np.concatenate([weight.ravel() for weight in weights])
    batches = []
    for form in (weights, vector):
        with make_pool(network, num_actors=num_actors) as pool:
            pool.publish(form)
            batches.append(pool.collect().copy())
    assert set(batches[0].policy_version) == {1}
    np.testing.assert_array_equal(*(batch.behaviour_log_prob for batch in batches))
    np.testing.assert_array_equal(*(batch.action for batch in batches))


def test_publishing_other_weights_is_refused(network):
    with make_pool(network) as pool:
        with pytest.raises(ValueError, match="Received: 0 arrays"):
            pool.publish([])
        with pytest.raises(ValueError, match="finite"):
            pool.publish(changed(network, np.nan))
        with pytest.raises(ValueError, match=r"`weights` must have shape \(\d+,\)\. Received: shape=\(3,\)"):
            pool.publish(np.zeros(3, np.float32))
        with pytest.raises(ValueError, match=r"finite.*values of weights\[0\]"):
            pool.publish(np.full(network.count_params(), np.inf, np.float32))
        assert pool.version == 0
        assert set(pool.collect().policy_version) == {0}


@pytest.mark.parametrize(("num_actors", "error"), [(0, FloatingPointError), (1, ActorError)])
def test_a_network_that_gives_nan_is_an_error(num_actors, error):
    pool = ActorPool("CartPole-v1", num_actors=num_actors, envs_per_actor=2, unroll_length=4)
    pool.collect()
    pool.publish([np.full_like(weight, 3e38) for weight in pool.network.get_weights()])
    with pytest.raises(error, match=r"the network must give finite numbers. Received: NaN for the observation \["):
        pool.collect()


class Growing(al.Memory):
    """Divides its state by 0, which its output doesn't show."""

    def initial_state(self, rows):
        return keras.ops.zeros((rows, 2))

    def step(self, x, state):
        return x, (state + 1.0) / keras.ops.zeros_like(state)


def test_a_memory_that_is_not_finite_is_an_error():
    inputs = keras.Input((4,))
    hidden = Growing()(inputs)
    network = keras.Model(inputs, (keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)))
    pool = ActorPool("CartPole-v1", network, num_actors=0, envs_per_actor=2, unroll_length=4)
    with pytest.raises(FloatingPointError, match="must give finite numbers. Received: inf in the state of its memory"):
        pool.collect()


def test_what_our_own_checks_find_in_an_environment_is_one_line(network):
    pool = make_pool(network, NotANumberLater)
    with pytest.raises(ActorError, match=r"Actor \d failed: reward of environment 0 of env.*Received: nan$") as caught:
        [pool.collect() for _ in range(4)]
    assert "\n" not in str(caught.value)
    assert "NotANumberLater" in caught.value.traceback


def test_without_processes_an_exception_is_the_environment_s_own(network):
    pool = make_pool(network, BrokenLater, num_actors=0)
    with pytest.raises(ZeroDivisionError, match="a bad day"):
        pool.collect()
    with pytest.raises(RuntimeError, match="closed"):
        pool.collect()


def test_what_actors_print_is_shown_and_logged(network, capsys, tmp_path):
    with make_pool(
        network, TalkingEnv, num_actors=2, envs_per_actor=1, logs_dir=tmp_path / "a" / "b", unroll_length=1
    ) as pool:
        pool.collect()
    lines = capsys.readouterr().out.splitlines()
    expected = ["héllo", "to the other stream", "and without an end"]
    for actor in (0, 1):
        assert [line for line in lines if line.startswith(f"[actor {actor}]")] == [
            f"[actor {actor}] {line}" for line in expected
        ]
        assert (tmp_path / f"a/b/actor-{actor}.log").read_text() == "\n".join(expected)


def test_tensorflows_messages_while_it_loads_are_not_shown(capsys):
    with make_pool(None, UsesTensorFlow, num_actors=1) as pool:
        pool.collect()
    assert not capsys.readouterr().out


def test_an_actor_that_prints_a_lot_is_not_blocked(network, capsys):
    with make_pool(network, FloodingEnv) as pool:
        pool.collect()
    assert capsys.readouterr().out.count("x" * 50_000) > 0


def test_without_processes_what_is_printed_is_left_alone(network, capsys):
    with make_pool(network, TalkingEnv, num_actors=0):
        pass
    assert capsys.readouterr().out == "héllo\n" * ENVS


def test_an_actor_is_lean_and_sees_the_caller_s_arguments(network, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "1", "2", "3"])
    with make_pool(network, LeanEnv) as pool:
        heavy, arguments, _ = np.moveaxis(pool.collect().observation, -1, 0)
        (actor,) = pool.pids.values()
        assert "tensorflow" not in Path(f"/proc/{actor}/maps").read_text()
        assert resident_megabytes(actor) < 80
    assert "tensorflow" in sys.modules
    assert not heavy.any()
    assert (arguments == 4).all()


def test_a_large_factory_and_large_spaces_travel():
    ballast = np.arange(2_000_000)
    low = np.random.default_rng(0).uniform(-2, -1, (3600,)).astype(np.float32)

    class LargeEnv(gym.Env):
        observation_space = Box(low, -low)
        action_space = Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.full((3600,), ballast[-1] / ballast.size, np.float32), {}

        def step(self, action):
            return self.reset()[0], 0.0, False, False, {}

    with ActorPool(LargeEnv, num_actors=1, envs_per_actor=1, unroll_length=2) as pool:
        assert pool.observation_space == LargeEnv.observation_space
        np.testing.assert_allclose(pool.collect().observation, 1, atol=1e-5)


def test_close_is_idempotent_and_ends_what_comes_after(network):
    for num_actors in (0, 1):
        pool = make_pool(network, num_actors=num_actors)
        trajectory = pool.collect()
        pool.close()
        pool.close()
        with pytest.raises(RuntimeError, match="The pool is closed"):
            pool.collect()
        with pytest.raises(RuntimeError, match="The pool is closed"):
            pool.publish(network.get_weights())
        assert pool.version == 0
        assert trajectory.valid.any()
        del trajectory


def test_a_pool_that_is_forgotten_closes_itself(network):
    before = children()
    pool = make_pool(network)
    assert len(children() - before) == 2
    del pool
    gc.collect()
    assert children() == before


def shared_memory_mappings():
    """Those of arenas, which stay as long as any array on them does."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:actor_learner" in line]


def test_pools_in_turn_leave_no_memory(network):
    before, objects = shared_memory_mappings(), []
    for _ in range(6):
        with make_pool(network) as pool:
            pool.collect()
            assert len(shared_memory_mappings()) == len(before) + 1
        del pool
        gc.collect()
        objects.append(len(gc.get_objects()))
    assert shared_memory_mappings() == before
    assert objects[-1] - objects[2] < 3 * 100  # a pool and all that it has is more than 100


def test_a_pool_may_be_closed_by_another_thread_while_it_collects(network):
    pool = make_pool(network, functools.partial(SlowEnv, 1.0), num_actors=1, unroll_length=3600)
    thread = threading.Timer(0.5, pool.close)
    thread.start()
    with pytest.raises(RuntimeError, match="The pool is closed"):
        pool.collect()
    thread.join()


def test_closing_does_not_wait_for_the_end_of_an_unroll(network):
    pool = make_pool(network, functools.partial(SlowEnv, 0.1), unroll_length=36_000, max_policy_lag=1)
    pool.assign()
    pids = children()
    for pid in pool.pids.values():
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    pool.close()
    assert wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("num_actors", [0, 1])
@pytest.mark.parametrize("env", [ClosingEnv, NeverReset])
def test_environments_are_closed_those_that_fail_to_reset_too(network, tmp_path, env, num_actors):
    failure = pytest.raises((EnvError, ActorError), match="a bad day")
    with failure if env is NeverReset else contextlib.nullcontext():
        make_pool(network, functools.partial(env, str(tmp_path)), num_actors=num_actors).close()
    assert list(tmp_path.iterdir())


def test_environments_have_time_to_close_and_a_warning_names_those_that_have_not(network, tmp_path, caplog):
    patient = functools.partial(ClosingLate, str(tmp_path), GRACE_SECONDS + 0.5)
    make_pool(network, patient, envs_per_actor=1).close()
    assert list(tmp_path.iterdir())
    assert not caplog.records
    hanging = functools.partial(ClosingLate, str(tmp_path), 3600.0)
    make_pool(network, hanging, close_timeout=0.3).close()
    text = "Actor 0 in `ClosingLate` didn't close within close_timeout=0.3 s, so that it was killed"
    assert text in caplog.text


@pytest.mark.parametrize("num_actors", [0, 1])
def test_an_exception_of_close_is_a_warning_and_the_others_are_closed(network, tmp_path, caplog, capfd, num_actors):
    factory = functools.partial(ClosingLate, str(tmp_path))
    make_pool(network, lambda env_index: factory(-float(env_index == 1)), num_actors=num_actors).close()
    told = caplog.text + capfd.readouterr().out
    assert "`close` of env `" in told
    assert "in actor 0 raised ZeroDivisionError: a bad day" in told
    assert list(tmp_path.iterdir())


def test_a_fork_of_the_caller_does_not_end_its_actors(network):
    with make_pool(network) as pool:
        pool.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                pool.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert pool.collect().valid.all()


def test_environment_variables_and_search_path_reach_the_actors(network, tmp_path, monkeypatch):
    (tmp_path / "module_of_mine.py").write_text(
        "import os\nfrom tests.support.counting_env import CountingEnv\n"
        "class MyEnv(CountingEnv):\n    length = int(os.environ['LENGTH_OF_MINE'])\n"
        "    def __init__(self):\n        super().__init__(int(os.environ['LENGTH_OF_MINE']))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LENGTH_OF_MINE", "2")
    with make_pool(network, "module_of_mine:MyEnv") as pool:
        pool.collect()
        assert set(pool.episodes["length"]) == {2.0}


def test_running_out_of_descriptors_is_an_error_and_leaves_none(network):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(200) if number not in used]
    for spare in (4, 12, 20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            with pytest.raises((OSError, RuntimeError), match="Too many open files"):
                make_pool(network, num_actors=8)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_kernel_that_is_short_of_something_for_a_moment_is_asked_again(network, monkeypatch):
    refusals = iter([OSError(errno.EAGAIN, "Resource temporarily unavailable")])

    class Popen(subprocess.Popen):
        def __init__(self, command, **options):
            if "actor-1" in command and (refusal := next(refusals, None)):
                raise refusal
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with make_pool(network, num_actors=2) as actors:
        assert actors.collect().valid.shape == (ROWS, 2 * ENVS)
    assert next(refusals, None) is None


def test_a_child_process_cannot_use_its_parents_pool():
    with ActorPool("CartPole-v1", num_actors=0, envs_per_actor=1, unroll_length=2) as pool:
        pool._process += 1
        for use in (pool.collect, lambda: pool.publish(pool.network.get_weights())):
            with pytest.raises(RuntimeError, match="belongs to the process that made it, .*; make another one here"):
                use()
        pool._process -= 1
        pool.collect()
