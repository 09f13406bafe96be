"""EnvPool's environments: where it is installed, that they behave as Gymnasium's; where it isn't, what is said."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import types

import gymnasium as gym
import numpy as np
import pytest

from actor_learner.environments.atari import LifeLoss
from actor_learner.environments.environments import Environments
from actor_learner.environments.envpool import EnvPoolSource, find_envpool
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from tests.support.scripted_envs import play

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="needs envpool")


def environments_of(env, num_envs=3, seed=5, **env_kwargs):
    factory = pickle.loads(resolve_env(env, env_kwargs).dumps())
    return Environments(factory.make(num_envs, seed), name=factory.name)


class TestAbsent:
    def test_what_to_install_and_where_it_exists(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "envpool", None)
        with pytest.raises(EnvError) as caught:
            resolve_env("envpool:CartPole-v1")
        message = str(caught.value)
        assert "`envpool:CartPole-v1` needs the package `envpool`" in message
        assert 'pip install "envpool>=1.2" (wheels for Python 3.11 to 3.14 on Linux' in message
        assert message.endswith("Received: env='envpool:CartPole-v1'")
        assert "\n" not in message

    def test_a_broken_installation_says_why(self, monkeypatch):
        broken = types.ModuleType("envpool")
        broken.list_all_envs = lambda: (_ for _ in ()).throw(ImportError("libQt5Core.so.5:\nno such file"))
        monkeypatch.setitem(sys.modules, "envpool", broken)
        with pytest.raises(EnvError, match=r"needs the package `envpool` \(libQt5Core.so.5: no such file\)"):
            find_envpool("envpool:CoinRun-v0")


class TestSource:
    def test_it_is_sent_by_its_id(self):
        source = pickle.loads(pickle.dumps(EnvPoolSource("CartPole-v1")))
        assert source == EnvPoolSource("CartPole-v1")

    @pytest.mark.parametrize("option", ["batch_size", "env_type"])
    def test_what_the_actors_set(self, option):
        with pytest.raises(EnvError, match=rf"The actors set EnvPool's `{option}`. Received: env_kwargs="):
            EnvPoolSource("CartPole-v1")(2, **{option: 4})


@needs_envpool
class TestResolve:
    def test_an_unknown_id(self):
        with pytest.raises(EnvError, match=r"EnvPool has no `CartPol-v1`; did you mean `envpool:CartPole-v") as caught:
            resolve_env("envpool:CartPol-v1")
        assert "\n" not in str(caught.value)
        with pytest.raises(EnvError, match="`envpool.list_all_envs\\(\\)` lists the ids. Received: env='envpool:Quux'"):
            resolve_env("envpool:Quux")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("CartPole-v1", {"wings": 2}), "env `envpool:CartPole-v1` can't be built: TypeError.*wings"),
            (("CartPole-v1", {}, "sync"), "vectorization='sync' needs single environments"),
            (("CartPole-v1", {"max_num_players": 2}), "is for several players, which is not supported"),
        ],
    )
    def test_what_it_cannot_build(self, arguments, message):
        env_id, *rest = arguments
        with pytest.raises(EnvError, match=message):
            resolve_env(f"envpool:{env_id}", *rest).make(2, 0)


@needs_envpool
class TestCartPole:
    def test_each_step_is_gymnasiums(self):
        """Gymnasium's own environment, put into each state, gives the same next one and the same end."""
        environments = environments_of("envpool:CartPole-v1")
        reference = gym.make("CartPole-v1").unwrapped
        random = np.random.default_rng(0)
        (before,) = environments.reset(0)
        before, ends = before.copy(), 0
        for _ in range(120):
            action = random.integers(0, 2, 3)
            transition = environments.step(action)
            for row in np.flatnonzero(transition.valid):
                reference.reset(seed=0)
                reference.state = before[row].astype(np.float64)
                observation, _, terminated, *_ = reference.step(int(action[row]))
                np.testing.assert_allclose(transition.observation[0][row], observation, atol=1e-4)
                assert terminated == transition.terminated[row]
                assert transition.reward[row] == 1.0
                ends += terminated
            before = transition.observation[0].copy()
        assert ends >= 6

    def test_a_time_limit_cuts_off(self):
        rows, episodes = play(environments_of("envpool:CartPole-v1", max_episode_steps=7), 17)
        assert all(own == [(7.0, 7.0, {}), (7.0, 7.0, {})] for own in episodes)
        for own in rows:
            assert len(own) == 15  # and two that only reset
            ends = [row for row in own if row.truncated]
            assert len(ends) == 2
            assert not any(row.terminated for row in own)
            assert all(row.last_observation is not None for row in ends)
            assert np.abs(own[7].observation).max() <= 0.05  # a new episode

    def test_seeds(self):
        def first(build_seed, reset_seed):
            return environments_of("envpool:CartPole-v1", seed=build_seed).reset(reset_seed)[0].copy()

        np.testing.assert_array_equal(first(5, 5), first(5, 5))
        np.testing.assert_array_equal(first(5, 9), first(9, 9))
        np.testing.assert_array_equal(first(None, 9), first(9, 9))
        assert not np.array_equal(first(5, 5), first(9, 9))
        assert len(np.unique(first(5, 5), axis=0)) == 3
        assert not np.array_equal(first(None, None), first(None, None))

    def test_closing_lets_the_pool_go(self):
        environments = environments_of("envpool:CartPole-v1")
        environments.reset(0)
        environments.close()
        with pytest.raises(AttributeError):
            environments.step(np.zeros(3, np.int64))


@needs_envpool
class TestOthers:
    def test_dicts_with_masks(self):
        """A snake that never leaves the field hardly dies; one that moves anywhere does again and again."""
        environments = environments_of("envpool:Snake-v1")
        ends = {}
        for masked in (True, False):
            random = np.random.default_rng(0)
            observation = environments.reset(0)
            assert environments.spaces.masked
            assert len(observation) == len(environments.observation_space.spaces)
            ends[masked] = 0
            for _ in range(100):
                allowed = environments.action_mask if masked else np.ones((3, 4), bool)
                transition = environments.step(np.array([random.choice(np.flatnonzero(row)) for row in allowed]))
                ends[masked] += int(transition.terminated.sum())
        assert ends[False] > 5 > ends[True]


@needs_envpool
class TestAtari:
    @pytest.mark.slow
    def test_lost_lives(self):
        environments = environments_of("envpool:Breakout-v5", episodic_life=True, repeat_action_probability=0.25)
        assert isinstance(environments.vector_env, LifeLoss)
        assert environments.reset(5)[0].shape == (3, 4, 84, 84)
        random, losses, games = np.random.default_rng(1), 0, 0
        for _ in range(60):
            transition = environments.step(random.integers(0, 4, 3))
            losses += int(transition.terminated.sum())
            games += 0 if transition.episodes is None else len(transition.episodes.indices)
        assert losses >= 2
        assert games == 0
