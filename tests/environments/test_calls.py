"""Calls of environments' methods: what is refused, which method is found, when it takes effect, who makes it again."""

import functools
import json
import os
import signal
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

import actor_learner as al
from actor_learner.environments.calls import (
    MAX_CALLS_BYTES,
    CallError,
    Calls,
    decode,
    encode,
    make_call,
    methods,
    perform,
)
from actor_learner.environments.errors import EnvError
from actor_learner.environments.serial import SerialVectorEnv
from actor_learner.runs.checkpoints import RunState
from tests.support.curriculum_env import Curriculum


def small_network(observation_space, action_space):
    return al.default_network(observation_space, action_space, hidden_sizes=(4,))


def pool(num_actors, lag=0, **kwargs):
    return al.ActorPool(
        Curriculum,
        small_network,
        num_actors=num_actors,
        envs_per_actor=2,
        unroll_length=3,
        max_policy_lag=lag,
        **kwargs,
    )


@pytest.mark.parametrize("name", ["reset", "step", "close", "_private", "__init__", "a.b", "", 3, None])
def test_names_that_cannot_be_called_are_refused(name):
    with pytest.raises(ValueError, match=r"^`name` must be a public method other than .* Received: name="):
        make_call(name, ())


NESTED = functools.reduce(lambda nested, _: [nested], range(3000), [])


@pytest.mark.parametrize(
    ("value", "received"),
    [
        *((value, ".*") for value in (np.float32(1), {1: 2}, {"a", "b"}, b"bytes", float("nan"), object(), Curriculum)),
        (NESTED, "a value that is nested too deep"),
    ],
)
def test_arguments_that_are_not_json_are_refused(value, received):
    with pytest.raises(ValueError, match=rf"^The arguments of `set` must be JSON: .* Received: {received}$"):
        make_call("set", (value,))


def test_tuples_arrive_as_lists_the_first_time_already():
    call = make_call("set", ((1, 2), {"a": (None, True)}, 1.5, "é"))
    assert call.args == [[1, 2], {"a": [None, True]}, 1.5, "é"]
    assert decode(encode([call])) == [call]


def listed(calls):
    return [(call.name, *call.args) for call in calls]


def test_all_calls_are_made_and_of_those_that_set_the_same_the_last_is_repeated():
    calls = Calls()
    given = [
        *(("a", 1), ("b", "gravity", 2.0), ("a", 3), ("b", "length", 4.0), ("b", "gravity", 5.0)),
        *(("c", {"x": 1}), ("c", {"y": 2}), ("c", {"x": 3})),
    ]
    for name, *values in given:
        calls.add(make_call(name, values))
    assert listed(calls.since(0)) == given
    assert listed(calls.since(4)) == given[4:]
    assert calls.since(8) == ()
    assert listed(calls.repeated()) == [given[i] for i in (2, 3, 4, 6, 7)]
    assert listed(calls.since(1, 4)) == given[1:4]
    assert listed(calls.repeated(4)) == [given[i] for i in (1, 2, 3)]


def test_of_more_calls_than_fit_the_newest_are_repeated():
    calls = Calls()

    def fill():
        for low in range(700):
            calls.add(make_call("set_range", ("room", low, low + 1)))

    with pytest.warns(UserWarning, match="Only the newest calls of 'set_range' are repeated"):
        fill()
    assert listed(calls.repeated())[-1] == ("set_range", "room", 699, 700)
    assert listed(calls.since(698)) == [("set_range", "room", n, n + 1) for n in (698, 699)]
    assert len(encode(calls.since(0))) <= MAX_CALLS_BYTES


def test_numbers_are_places_only_after_a_text_and_a_long_curriculum_keeps_its_last_call():
    calls = Calls()
    calls.add(make_call("set_mass", ("joint", 1, 0.5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for low in range(1500):
            calls.add(make_call("set_range", (low, low + 1)))
    calls.add(make_call("set_mass", ("joint", 2, 0.5)))
    calls.add(make_call("set_mass", ("joint", 1, 0.7)))
    expected = [("set_range", 1499, 1500), ("set_mass", "joint", 2, 0.5), ("set_mass", "joint", 1, 0.7)]
    assert listed(calls.repeated()) == expected


@pytest.mark.parametrize("num_actors", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_calls_come_before_the_first_reset_of_a_pool_that_goes_on_and_of_a_replaced_actor(num_actors):
    def levels(actors):
        return actors.collect().observation[1].reshape(-1).tolist()

    kwargs = {"num_actors": num_actors, "envs_per_actor": 2, "unroll_length": 3}
    with al.ActorPool(Levels, small_network, calls=[["set", ["a", 5]], ["set", ["b", 7]]], **kwargs) as actors:
        assert levels(actors) == [5.0, 7.0, 5.0, 7.0]
        assert actors.calls == [["set", ["a", 5]], ["set", ["b", 7]]]
        if num_actors:
            actors.call("set", "a", 6)
            actors.restart()
            while not actors.restart_count:
                levels(actors)
            assert levels(actors) == [6.0, 7.0, 6.0, 7.0]


class Levels(gym.Env):
    """Shows the levels that its episode began with; level b can't be set before a reset."""

    observation_space, action_space = gym.spaces.Box(0, 9, (2,), np.float32), gym.spaces.Discrete(2)
    level, begun, b = 0, False, 0

    def set(self, name, value):
        assert name == "a" or self.begun
        setattr(self, {"a": "level"}.get(name, name), value)

    def reset(self, *, seed=None, options=None):
        self.begun, self.shown = True, self.level
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, False, False, {}

    def _seen(self):
        return np.float32([self.shown, self.b])


def test_what_is_too_large_together_is_refused_and_changes_nothing():
    calls = Calls()
    calls.add(make_call("a", ("x" * (MAX_CALLS_BYTES - 100),)))
    with pytest.raises(ValueError, match=rf"at most {MAX_CALLS_BYTES} bytes as JSON; .* Received: \d+ bytes with 'b'$"):
        calls.add(make_call("b", ("y" * 200,)))
    assert [call.name for call in calls.repeated()] == ["a"]
    calls.add(make_call("a", ("y" * 200,)))
    calls.add(make_call("b", ("y" * 200,)))


class Own(VectorEnv):
    """Steps many at once, with a method of its own."""

    def __init__(self):
        self.value = 0

    def set_value(self, value):
        self.value = value


class Calling(Own):
    """Passes calls on, as Gymnasium's AsyncVectorEnv does."""

    def call(self, name, *args):
        self.value = (name, *args)


class Outer(gym.Wrapper):
    def set_options(self, options):
        self.unwrapped.set_options(["through the wrapper", options])


def call(vector_env, name, *args):
    perform(vector_env, make_call(name, args), "the test's environment")


@pytest.mark.parametrize("kind", [SerialVectorEnv, lambda envs: SyncVectorEnv([lambda env=env: env for env in envs])])
def test_every_sub_environment_is_called_through_its_wrappers(kind):
    envs = [Outer(gym.wrappers.TimeLimit(Curriculum(), 5)) for _ in range(3)]
    vector_env = VectorWrapper(kind(envs))
    call(vector_env, "set_difficulty", 4)
    call(vector_env, "set_options", {"a": 1})
    assert [env.unwrapped.difficulty for env in envs] == [4, 4, 4]
    assert [env.unwrapped.options for env in envs] == [["through the wrapper", {"a": 1}]] * 3


def test_a_vector_environment_has_methods_of_its_own_or_passes_calls_on():
    for env, name, expected in ((Own(), "set_value", 3), (Calling(), "set_value", 3), (Calling(), "x", ("x", 3))):
        call(VectorWrapper(env), name, 3)
        assert env.value == expected


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("set_dificulty", [3], r"the environment must have a method of that name. Received: call\('set_dificulty'\)"),
        ("difficulty", [], r"must have a method of that name. Received: call\('difficulty'\)"),
        ("set_difficulty", [], r"`set_difficulty` of the environment: missing a required argument: 'difficulty'"),
        ("set_difficulty", [1, 2], r"too many positional arguments. Received: call\('set_difficulty', 1, 2\)"),
    ],
)
def test_a_method_that_is_not_there_is_named(name, args, message):
    with pytest.raises(CallError, match=message):
        methods(SerialVectorEnv([Curriculum()]), make_call(name, args), "the environment")


def test_a_method_that_raises_is_an_environments_error():
    with pytest.raises(EnvError, match=r"`set_difficulty` of the test's environment raised ValueError: there is no"):
        call(SerialVectorEnv([Curriculum()]), "set_difficulty", -1)


@pytest.mark.parametrize(("num_actors", "lag"), [(0, 0), (0, 1), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_call_takes_effect_with_the_next_batch_that_is_handed_out(num_actors, lag):
    """Called after batch j was collected: batch j + 1 at lag 0; at lag 1 that one is being filled already."""
    with pool(num_actors, lag) as actors:
        rewards = []
        actors.call("set_difficulty", 1)
        actors.call("set_options", (1, 2))
        for number in range(5):
            rewards.append(actors.collect().reward.copy())
            actors.publish(actors.network.get_weights())
            actors.call("expect_options", [1, 2])
            actors.call("set_difficulty", 10 + number)
    assert all((reward == reward[0, 0]).all() for reward in rewards)
    expected = [1] * (1 + lag) + list(range(10, 14 - lag))
    assert [reward[0, 0] for reward in rewards] == expected


@pytest.mark.slow
def test_a_replaced_actor_fills_the_columns_of_before_a_call_as_its_predecessor_would_have():
    with pool(2, lag=1) as actors:
        rewards = []
        for number in range(10):
            rewards.append(actors.collect().reward.copy())
            actors.call("set_difficulty", 10 + number)
            if number in (2, 5):
                os.kill(actors.pids[0], signal.SIGKILL)
            actors.publish(actors.network.get_weights())
        assert actors.restart_count == 2
    assert [set(reward.ravel()) for reward in rewards] == [{0}, {0}, *({number} for number in range(10, 18))]


@pytest.mark.slow
def test_actors_that_run_freely_are_called_before_they_go_on():
    with pool(2, lag=3) as actors:
        last = 0.0
        for number in range(1, 30):
            actors.call("set_difficulty", number)
            reward = actors.collect().reward
            actors.publish(actors.network.get_weights())
            columns = reward[0]
            assert (reward[:, columns == columns.max()] <= number).all()
            last = max(last, columns.max())
    assert last > 20


NOT_THERE = r"env `\w+` in actor . must have a method of that name. Received: call\('no'\)$"


def test_in_this_process_an_unknown_method_is_told_at_once_and_left_out_of_what_is_repeated():
    with pool(0) as actors:
        with pytest.raises(EnvError, match=f"^{NOT_THERE}"):
            actors.call("no")
        actors.repeat([["no", []], ["set_difficulty", [5]]])
        with pytest.warns(UserWarning, match=f"left out: {NOT_THERE}"):
            assert (actors.collect().reward == 5).all()


@pytest.mark.slow
def test_an_actor_that_replaces_another_one_makes_all_calls_and_an_unknown_method_ends_the_pool(tmp_path):
    with pool(2) as actors:
        actors.call("set_options", {"level": "sand"})
        actors.call("set_difficulty", 7)
        assert (actors.collect().reward == 7).all()
        actors.call("expect_options", {"level": "sand"})
        actors.call("die_once", str(tmp_path / "died"))
        assert (actors.collect().reward == 7).all()
        assert actors.restart_count >= 1
        assert (actors.collect().reward == 7).all()
        assert [name for name, _ in actors.calls] == ["set_options", "set_difficulty", "expect_options", "die_once"]
        restarts = actors.restart_count
        actors.call("no")
        with pytest.raises(EnvError, match=f"^{NOT_THERE}"):
            actors.collect()
        assert actors.restart_count == restarts


@pytest.mark.parametrize("calls", [[["step", []]], [["set", "abc"]], [3], [["set", [1], 2]], [[1, []]], {"a": 1}])
def test_a_checkpoint_that_holds_what_is_no_call_is_damaged(tmp_path, calls):
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "calls": calls}))
    with pytest.raises(ValueError, match="The folder is damaged: run.json holds no state of a run"):
        RunState.read(tmp_path)
