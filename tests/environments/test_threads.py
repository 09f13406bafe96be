"""`vectorization="threads"`: nothing here measures time; a barrier shows that the environments are called at once."""

from __future__ import annotations

import gc
import threading
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from actor_learner.environments import threads
from actor_learner.environments.calls import make_call
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from tests.support.processes import patience
from tests.support.scripted_envs import play

NUM_ENVS = 3
ACTIONS = np.zeros(NUM_ENVS, np.int64)


class Walk(gym.Env):
    """A random walk with masks, whose episodes end in both ways."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.array([self.place], np.float32), {"action_mask": np.ones(2, np.int8)}

    def step(self, action):
        self.place += self.np_random.normal() + action
        ended = self.np_random.random(2) < 0.1
        info = {"action_mask": np.array([1, self.place < 0], np.int8), "place": self.place}
        return np.array([self.place], np.float32), self.place, *ended.tolist(), info


class Meeting(Walk):
    """Its environments go on only where all are in the same call. `seen`: the threads of each one's calls."""

    barrier = threading.Barrier(NUM_ENVS, timeout=patience(30))

    def __init__(self, seen):
        self.seen = seen[len(seen)]
        self.note()

    def note(self, *_):
        self.seen.add(threading.current_thread())

    def seed_all(self, seed):
        self.note()

    def reset(self, **kwargs):
        self.note()
        self.barrier.wait()
        return super().reset(**kwargs)

    def step(self, action):
        self.note()
        self.barrier.wait()
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info

    def close(self):
        self.note()
        self.barrier.wait()


def make(env, num_envs=NUM_ENVS, vectorization="threads", **kwargs):
    return Environments(resolve_env(env, kwargs, vectorization, check_pickle=False).make(num_envs), name="Walk")


def test_the_bytes_are_those_of_sync():
    played = [
        play(make(Walk, vectorization=vectorization), 100, lambda observation: (observation[:, 0] > 0).astype(int))
        for vectorization in ("sync", "threads")
    ]
    assert played[0] == played[1]
    assert any(row.last_observation for own in played[0][0] for row in own)


def test_each_environment_lives_in_a_thread_of_its_own_and_all_are_called_at_once():
    seen = defaultdict(set)
    environments = make(Meeting, seen=seen)
    environments.reset(0)
    for _ in range(3):
        environments.step(ACTIONS)
    environments.call(make_call("note", [1]))
    with pytest.raises(EnvError, match="`seed_all` of env `Walk`: missing a required argument: 'seed'"):
        environments.check_call(make_call("seed_all", []))
    environments.close()
    (own,) = zip(*seen.values(), strict=True)
    assert len(set(own)) == NUM_ENVS
    assert threading.main_thread() not in own
    for thread in own:
        thread.join(patience(30))
        assert not thread.is_alive()


def test_the_threads_end_with_the_vector_environment():
    before = set(threading.enumerate())
    environments = make(Walk)
    started = set(threading.enumerate()) - before
    assert len(started) == NUM_ENVS
    del environments
    gc.collect()
    for thread in started:
        thread.join(patience(30))
        assert not thread.is_alive()


def test_one_environment_has_no_thread():
    assert not isinstance(make(Walk, num_envs=1).vector_env, threads.ThreadedVectorEnv)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, r"`step` of environment 1 must return \(observation, reward.* Received: a int \(env `Walk`\)"),
        ((np.zeros(1), None, False, False, {}), "`step` of environment 1 must return a number as reward"),
        ((np.full(1, np.nan), 0.0, False, False, {}), "of environment 1 of env `Walk`, at step 1"),
    ],
)
def test_an_error_names_the_environment(result, message):
    environments = make(Walk)
    environments.reset(0)
    environments.vector_env.envs[1].unwrapped.step = lambda action: result
    with pytest.raises(EnvError, match=message):
        environments.step(ACTIONS)


def test_an_exception_arrives_although_another_environment_hangs_and_so_does_the_end(monkeypatch):
    monkeypatch.setattr(threads, "_CLOSE_SECONDS", 0.01)
    environments, go_on = make(Walk), threading.Event()
    environments.reset(0)

    def fail(action):
        raise ConnectionResetError("the simulator is gone")

    first, _, last = environments.vector_env.envs
    first.unwrapped.step, last.unwrapped.step = fail, lambda action: go_on.wait()
    try:
        with pytest.raises(ConnectionResetError, match="the simulator is gone"):
            environments.step(ACTIONS)
        with pytest.warns(UserWarning, match="in which a call hangs. Received: environment 2"):
            environments.close()
    finally:
        go_on.set()


def test_an_environment_can_say_that_it_is_not_thread_safe():
    def unsafe():
        env = Walk()
        env.metadata = {"thread_safe": False}
        return env

    with pytest.raises(
        EnvError, match="says in `metadata\\['thread_safe'\\]` that .* Received: vectorization='threads'"
    ):
        make(unsafe)
    assert make(unsafe, vectorization="sync").num_envs == NUM_ENVS
