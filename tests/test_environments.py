"""Environments: the env argument, the three autoreset modes, episode statistics, and what is refused."""

from __future__ import annotations

import functools
import math
import pickle
import re
import subprocess
import sys
import threading
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from actor_learner.environments import EnvError, Environments, resolve_env
from actor_learner.vector_env import SerialVectorEnv, declared_autoreset_mode

MODES = list(AutoresetMode)


class Script(gym.Env):
    """Plays given episodes in turn: [(length, terminated, truncated), ...].

    Observation: [step of the episode, number of the episode]; reward: the step; info: {"score": 10 x episode + step}.
    """

    def __init__(self, episodes, observation_space=None):
        self.episodes = episodes
        self.observation_space = observation_space or Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self.observation(), {}

    def step(self, action):
        length, terminated, truncated = self.episodes[self.episode % len(self.episodes)]
        self.count += 1
        ended = self.count == length
        info = {"score": 10 * self.episode + self.count, "text": "no number", "is_success": True}
        return self.observation(), float(self.count), ended and terminated, ended and truncated, info

    def observation(self):
        return np.array([self.count, self.episode], np.float32)


SHARED = Script([(1, True, False)])


class Arrays(VectorEnv):
    """A native vector environment whose `step` returns what a test tells it to; `metadata` is the class's."""

    def __init__(self, num_envs=2, mode: Any = AutoresetMode.NEXT_STEP, observation_shape=(3,), infos=None):
        if mode is not None:
            self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = Box(-np.inf, np.inf, observation_shape, np.float32)
        self.single_action_space = Discrete(2)
        self.observation = np.zeros((num_envs, *observation_shape), np.float32)
        self.reward = np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.infos = infos or {}

    def reset(self, *, seed=None, options=None):
        return self.observation.copy(), {}

    def step(self, actions):
        return self.observation.copy(), self.reward.copy(), self.terminated.copy(), self.truncated.copy(), self.infos


class Row(NamedTuple):
    """One valid row of one environment."""

    observation: tuple[float, ...]
    reward: float
    terminated: bool
    truncated: bool
    last_observation: tuple[float, ...] | None


def sync(env_fns, mode):
    return SyncVectorEnv(env_fns, autoreset_mode=mode)


def play(environments, steps, choose=lambda observation: np.zeros(len(observation), np.int64), seed=0):
    """Valid rows and finished episodes (return, length, info) of each environment, over `steps` steps."""
    rows = [[] for _ in range(environments.num_envs)]
    episodes = [[] for _ in range(environments.num_envs)]
    observation = environments.reset(seed)
    for _ in range(steps):
        before = observation.copy()
        observation, reward, terminated, truncated, valid, final, ended = environments.step(choose(observation))
        assert not (terminated & truncated).any()
        assert (final is not None) == truncated.any()
        for index in np.flatnonzero(valid):
            last = tuple(final[index].tolist()) if truncated[index] else None
            row = Row(tuple(before[index].tolist()), *(x[index].item() for x in (reward, terminated, truncated)), last)
            rows[index].append(row)
        for index in np.flatnonzero(~valid):
            assert (reward[index], terminated[index], truncated[index]) == (0.0, False, False)
        if ended is not None:
            for place, index in enumerate(ended.indices):
                info = {key: values[place].item() for key, values in ended.info.items()}
                episodes[index].append((ended.returns[place].item(), ended.lengths[place].item(), info))
    return rows, episodes


def vector_step(environments, **changes):
    """One step of an `Arrays` environment after setting its arrays."""
    for name, value in changes.items():
        setattr(environments.vector_env, name, np.asarray(value) if name != "infos" else value)
    return environments.step(np.zeros(environments.num_envs, np.int64))


class TestAutoresetModes:
    def test_same_cartpole_episodes_in_the_three_modes(self):
        def choose(observation):  # half of them balance, so that some episodes end at the time limit
            good = (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)
            return np.where(np.arange(len(good)) % 2, good, 1)

        make = functools.partial(gym.make, "CartPole-v1", max_episode_steps=25)
        played = {mode: play(Environments(sync([make] * 4, mode)), 300, choose) for mode in MODES}
        serial = play(Environments(SerialVectorEnv([make() for _ in range(4)])), 300, choose)
        reference_rows, reference_episodes = played[AutoresetMode.DISABLED]
        assert serial == (reference_rows, reference_episodes)
        ends = [row for rows in reference_rows for row in rows if row.terminated or row.truncated]
        assert any(row.terminated for row in ends)
        assert any(row.truncated for row in ends)
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            for index, (rows, episodes) in enumerate(zip(*played[mode], strict=True)):
                assert len(rows) > 200
                assert rows == reference_rows[index][: len(rows)]
                assert episodes == reference_episodes[index][: len(episodes)]
                assert len(episodes) >= 6

    @settings(deadline=None, max_examples=60)
    @given(
        scripts=st.lists(
            st.lists(
                st.tuples(st.integers(1, 5), *[st.sampled_from([(1, 0), (0, 1), (1, 1)])]).map(lambda e: (e[0], *e[1])),
                min_size=1,
                max_size=4,
            ),
            min_size=1,
            max_size=3,
        ),
        mode=st.sampled_from(MODES),
    )
    def test_any_episodes_come_out_as_scripted(self, scripts, mode):
        env_fns = [functools.partial(Script, [(n, bool(t), bool(c)) for n, t, c in script]) for script in scripts]
        environments = Environments(sync(env_fns, mode), info_keys=("score", "text", "absent"))
        rows, episodes = play(environments, 30)
        for script, own_rows, own_episodes in zip(scripts, rows, episodes, strict=True):
            expected_rows, expected_episodes = [], []
            number = 0
            while len(expected_rows) < len(own_rows):
                length, terminated, truncated = script[number % len(script)]
                for step in range(length):
                    ended = step + 1 == length
                    cut = bool(ended and truncated and not terminated)
                    last = (float(length), float(number)) if cut else None
                    expected_rows.append(
                        Row((float(step), float(number)), step + 1.0, bool(ended and terminated), cut, last)
                    )
                expected_episodes.append((length * (length + 1) / 2, length, {"score": 10.0 * number + length}))
                number += 1
            assert own_rows == expected_rows[: len(own_rows)]
            assert own_episodes == expected_episodes[: len(own_episodes)]
            assert len(own_episodes) >= number - 1
            assert len(own_rows) >= 15

    def test_next_step_has_rows_that_only_reset(self):
        environments = Environments(sync([functools.partial(Script, [(2, True, False)])], AutoresetMode.NEXT_STEP))
        environments.reset(0)
        valid = [environments.step(np.zeros(1, np.int64)).valid.item() for _ in range(6)]
        assert valid == [True, True, False, True, True, False]

    def test_the_observation_acted_on_survives_the_step(self):
        environments = Environments(resolve_env("CartPole-v1", vectorization="sync").make(2))
        first = environments.reset(3)
        kept = first.copy()
        second = environments.step(np.zeros(2, np.int64)).observation
        np.testing.assert_array_equal(first, kept)
        assert not np.array_equal(first, second)

    def test_reset_starts_all_statistics_anew(self):
        environments = Environments(sync([functools.partial(Script, [(3, True, False)])], AutoresetMode.DISABLED))
        environments.reset(0)
        environments.step(np.zeros(1, np.int64))
        environments.reset(0)
        ended = [environments.step(np.zeros(1, np.int64)).episodes for _ in range(3)]
        assert ended[:2] == [None, None]
        assert (ended[2].returns.item(), ended[2].lengths.item()) == (6.0, 3.0)

    def test_a_seed_repeats_the_episodes_and_environments_differ(self):
        def observations(seed):
            return Environments(resolve_env("CartPole-v1", vectorization="sync").make(3)).reset(seed).copy()

        np.testing.assert_array_equal(observations(2**40 + 5), observations(2**40 + 5))
        assert not np.array_equal(observations(1), observations(2))
        assert len(np.unique(observations(1), axis=0)) == 3


class TestMisbehaviour:
    def test_no_mode_names_the_three(self):
        with pytest.raises(
            EnvError, match=r"names no autoreset mode.*autoreset_mode.*'next_step', 'same_step' or 'disa"
        ):
            Environments(Arrays(mode=None))

    def test_no_mode_but_the_argument(self):
        assert Environments(Arrays(mode=None), autoreset_mode="same_step").autoreset_mode is AutoresetMode.SAME_STEP

    def test_unknown_mode(self):
        with pytest.raises(ValueError, match=r"must be 'next_step'.*Received: autoreset_mode='later'"):
            Environments(Arrays(mode=None), autoreset_mode="later")

    @pytest.mark.parametrize("mode", ["NextStep", "next_step", AutoresetMode.NEXT_STEP])
    def test_spellings_of_a_declared_mode(self, mode):
        assert Environments(Arrays(mode=mode)).autoreset_mode is AutoresetMode.NEXT_STEP

    def test_mode_of_the_class(self):
        assert Environments(CartPoleVectorEnv(2)).autoreset_mode is AutoresetMode.NEXT_STEP

    def test_mode_through_a_wrapper(self):
        wrapped = gym.wrappers.vector.ClipReward(Arrays(mode=AutoresetMode.DISABLED), -1, 1)
        assert declared_autoreset_mode(wrapped) is AutoresetMode.DISABLED

    def test_argument_against_sync_vector_env(self):
        vector_env = sync([functools.partial(Script, [(2, True, False)])], AutoresetMode.DISABLED)
        with pytest.raises(EnvError, match=r"runs in autoreset mode DISABLED. Received: autoreset_mode='same_step'"):
            Environments(vector_env, autoreset_mode="same_step")

    def test_an_atari_environment_in_the_process_gives_nobody_its_mode(self):
        pytest.importorskip("ale_py")
        atari = resolve_env("ALE/Pong-v5", {"autoreset_mode": "SameStep"}).make(1)
        assert Environments(atari).autoreset_mode is AutoresetMode.SAME_STEP
        gym.make_vec("ALE/Pong-v5", num_envs=1)
        try:
            assert "autoreset_mode" in Arrays(mode=None).metadata  # what every other VectorEnv inherits
            factory = resolve_env(lambda num_envs: Arrays(num_envs, mode=None), check_pickle=False)
            with pytest.raises(EnvError, match="names no autoreset mode"):
                Environments(factory.make(2))
            with pytest.raises(EnvError, match="names no autoreset mode"):
                Environments(Arrays(mode=None))
            assert VectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP  # put back
        finally:
            VectorEnv.metadata.pop("autoreset_mode")

    def test_disabled_that_ignores_the_mask(self):
        environments = Environments(CartPoleVectorEnv(4), autoreset_mode="disabled")
        environments.reset(0)
        with pytest.raises(EnvError, match=r"CartPoleVectorEnv.*ignored `options\['reset_mask'\]`.*DISABLED"):
            play(environments, 60)

    def test_same_step_without_final_obs(self):
        environments = Environments(CartPoleVectorEnv(4), autoreset_mode="same_step")
        environments.reset(0)
        with pytest.raises(EnvError, match=r"gave no `infos\['final_obs'\]`.*autoreset_mode=SAME_STEP"):
            play(environments, 60)

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_another_mode_that_behaves_as_same_step(self, mode):
        environments = Environments(Arrays(mode=mode, infos={"final_obs": np.zeros((2, 3))}))
        environments.reset(0)
        with pytest.raises(EnvError, match=r"gave `infos\['final_obs'\]`.*as SAME_STEP does"):
            vector_step(environments, terminated=[True, False])

    @pytest.mark.parametrize("changes", [{"reward": [1.0, 0.0]}, {"terminated": [True, False]}])
    def test_next_step_whose_reset_row_is_a_step(self, changes):
        environments = Environments(Arrays())
        environments.reset(0)
        vector_step(environments, terminated=[True, False])
        with pytest.raises(EnvError, match=r"in the step after an end.*autoreset_mode=NEXT_STEP"):
            vector_step(environments, **{"terminated": [False, False], **changes})


class TestStatistics:
    class Doubled(gym.RewardWrapper):
        def reward(self, reward):
            return 2 * reward

    @pytest.mark.parametrize("mode", MODES)
    def test_a_wrappers_own_episode_is_preferred(self, mode):
        def make():
            return self.Doubled(gym.wrappers.RecordEpisodeStatistics(Script([(3, True, False), (2, False, True)])))

        _, (episodes,) = play(Environments(sync([make], mode)), 12)
        assert [episode[:2] for episode in episodes[:3]] == [(6.0, 3.0), (3.0, 2.0), (6.0, 3.0)]
        _, (serial,) = play(Environments(SerialVectorEnv([make()])), 12)
        assert serial[:3] == episodes[:3]

    @pytest.mark.parametrize("mode", MODES)
    def test_the_vector_wrappers_own_episode(self, mode):
        env_fns = [functools.partial(Script, [(3, True, False)]), functools.partial(Script, [(4, True, False)])]
        recorded = gym.wrappers.vector.RecordEpisodeStatistics(sync(env_fns, mode))
        doubled = gym.wrappers.vector.TransformReward(recorded, lambda reward: 2 * reward)
        _, (three, four) = play(Environments(doubled), 20)
        # Where the wrapper counts wrongly (every masked reset zeroes all of its sums) ours are reported.
        factor = {AutoresetMode.NEXT_STEP: 1.0, AutoresetMode.DISABLED: 2.0}.get(mode, three[0][0] / 6.0)
        assert factor in (1.0, 2.0)
        assert {episode[:2] for episode in three} == {(6.0 * factor, 3.0)}
        assert {episode[:2] for episode in four} == {(10.0 * factor, 4.0)}

    def test_an_end_without_record_inside_a_recorder_is_no_episode(self):
        class LostLife(gym.Wrapper):
            """Ends every second step, and resets the game only when it is over."""

            def reset(self, **kwargs):
                if getattr(self, "over", True):
                    self.last, _ = self.env.reset(**kwargs)
                self.over, self.steps = False, 0
                return self.last, {}

            def step(self, action):
                self.last, reward, self.over, truncated, info = self.env.step(action)
                self.steps += 1
                return self.last, reward, self.over or self.steps == 2, truncated, info

        env = LostLife(gym.wrappers.RecordEpisodeStatistics(Script([(5, True, False)])))
        rows, (episodes,) = play(Environments(SerialVectorEnv([env])), 10)
        assert sum(row.terminated for row in rows[0]) == 6
        assert [episode[:2] for episode in episodes] == [(15.0, 5.0), (15.0, 5.0)]

    @pytest.mark.parametrize("mode", MODES)
    def test_info_keys_of_the_last_step(self, mode):
        environments = Environments(sync([functools.partial(Script, [(3, True, False)])], mode))
        _, (episodes,) = play(environments, 12)
        assert [episode[2] for episode in episodes] == [{"is_success": 1.0}] * len(episodes)

    def test_a_key_that_one_episode_lacks_is_nan(self):
        class Silent(Script):
            def step(self, action):
                *rest, _ = super().step(action)
                return (*rest, {})

        envs = [Script([(1, True, False)]), Silent([(1, True, False)])]
        environments = Environments(SerialVectorEnv(envs))
        environments.reset(0)
        episodes = environments.step(np.zeros(2, np.int64)).episodes
        assert episodes.info["is_success"][0] == 1.0
        assert math.isnan(episodes.info["is_success"][1])

    def test_infos_of_odd_shapes_and_types_are_no_trouble(self):
        class Odd(Script):
            def step(self, action):
                *rest, info = super().step(action)
                odd = {"path": np.zeros(self.episode + 2), "score": 1 if self.episode == 0 else 0.5, "none": None}
                return (*rest, {**info, **odd, "size one": np.array([3.0])})

        envs = [Odd([(1, True, False)]), Odd([(1, True, False)])]
        envs[1].episode = 0
        environments = Environments(SerialVectorEnv(envs), info_keys=("score", "size one", "none", "path"))
        environments.reset(0)
        info = environments.step(np.zeros(2, np.int64)).episodes.info
        assert {key: values.tolist() for key, values in info.items()} == {"score": [1.0, 0.5], "size one": [3.0, 3.0]}


class TestChecks:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_observation(self, mode, value):
        environments = Environments(Arrays(mode=mode), actor=3, name="Arrays-v0")
        environments.reset(0)
        vector_step(environments)
        with pytest.raises(
            EnvError,
            match=r"observation\[2\] of environment 1 of env `Arrays-v0` in actor 3.*step 2 of its.*env step 2",
        ):
            vector_step(environments, observation=[[0, 0, 0], [0, 0, value]])

    def test_reward(self):
        environments = Environments(Arrays())
        environments.reset(0)
        with pytest.raises(EnvError, match=r"^reward of environment 1 of env `Arrays`.*step 1 .*Received: nan"):
            vector_step(environments, reward=[0, math.nan])

    def test_first_observation(self):
        vector_env = Arrays()
        vector_env.observation[1, 0] = math.nan
        with pytest.raises(EnvError, match=r"observation\[0\] of environment 1.*at step 0"):
            Environments(vector_env).reset(0)

    def test_final_observation_of_same_step(self):
        final = np.array([None, np.array([0, math.nan, 0], np.float32)], dtype=object)
        environments = Environments(Arrays(mode=AutoresetMode.SAME_STEP, infos={"final_obs": final}))
        environments.reset(0)
        with pytest.raises(EnvError, match=r"observation\[1\] of environment 1"):
            vector_step(environments, truncated=[False, True])

    def test_large_values_are_finite(self):
        environments = Environments(Arrays())
        environments.reset(0)
        transition = vector_step(environments, observation=np.full((2, 3), 3e38), reward=[3e38, -3e38])
        assert transition.observation[0, 0] == np.float32(3e38)

    @pytest.mark.parametrize(
        ("space", "raw", "expected", "dtype"),
        [
            (Box(-1, 1, (2,), np.float64), np.array([0.5, 9.0]), [0.5, 9.0], np.float32),  # out of bounds passes
            (Box(-1, 1, (2,), np.float32), np.array([0.1, 0.2], np.float64), np.float32([0.1, 0.2]), np.float32),
            (Box(0, 255, (2,), np.uint8), np.array([7, 250], np.int64), [7, 250], np.uint8),
            (Box(0, 255, (2,), np.int64), [3, 2**40], [3, 2**40], np.int64),
            (Box(-1, 1, (), np.float32), 0.25, 0.25, np.float32),
            (Discrete(5, start=3), 7, 4, np.int32),
            (Discrete(5), np.int64(4), 4, np.int32),
        ],
    )
    @pytest.mark.parametrize("mode", MODES)
    def test_dtypes(self, mode, space, raw, expected, dtype):
        class Fixed(Script):
            def observation(self):
                return raw

        def transitions(vector_env):
            environments = Environments(vector_env)
            yield environments.reset(0)
            yield environments.step(np.zeros(1, np.int64)).observation
            last = environments.step(np.zeros(1, np.int64))
            yield last.observation
            yield last.final_observation

        fixed = functools.partial(Fixed, [(2, False, True)], space)
        vector_envs = [SerialVectorEnv([fixed()])]
        if np.can_cast(np.asarray(raw).dtype, space.dtype, "same_kind"):  # Gymnasium's own casts no further
            vector_envs.append(sync([fixed], mode))
        for vector_env in vector_envs:
            for observation in transitions(vector_env):
                assert observation.dtype == dtype
                np.testing.assert_array_equal(observation, np.array(expected, dtype)[None])

    @pytest.mark.parametrize("when", ["reset", "step"])
    @pytest.mark.parametrize(
        ("wrong", "received"),
        [(np.zeros(3), r"shape=\(3,\)"), (0.0, r"shape=\(\)"), ({"a": 0}, "a dict"), ((0, 1), "a tuple")],
    )
    def test_shape_or_structure(self, when, wrong, received):
        class Wrong(Script):
            def observation(self):
                return wrong if (self.count > 0) == (when == "step") else super().observation()

        envs = [Script([(5, True, False)]), Wrong([(5, True, False)])]
        environments = Environments(SerialVectorEnv(envs), name="Wrong-v0")
        with pytest.raises(EnvError, match=rf"`{when}` of environment 1 must return an observation of.*{received}"):
            play(environments, 1)

    @pytest.mark.parametrize(
        ("method", "result", "message"),
        [
            ("reset", np.zeros(2), r"must return \(observation, info\). Received: a ndarray"),
            ("step", (np.zeros(2), 1.0, False, {}), r"must return \(observation, reward, .*Received: a tuple of 4"),
            ("step", None, "must return.*Received: a NoneType"),
            (
                "step",
                (np.zeros(2), np.ones(1), False, False, {}),
                r"must return a number as reward. Received: shape=\(1,\)",
            ),
        ],
    )
    def test_another_number_of_results(self, method, result, message):
        env = Script([(5, True, False)])
        setattr(env, method, lambda *_, **__: result)
        environments = Environments(SerialVectorEnv([env]), name="Old-v0")
        with pytest.raises(EnvError, match=f"`{method}` of environment 0 {message}"):
            play(environments, 1)

    @pytest.mark.parametrize("when", ["reset", "step"])
    def test_batch_shape(self, when):
        environments = Environments(Arrays())
        if when == "step":
            environments.reset(0)
        environments.vector_env.observation = np.zeros((2, 4), np.float32)
        call = functools.partial(environments.reset, 0) if when == "reset" else lambda: vector_step(environments)
        with pytest.raises(EnvError, match=rf"`{when}` of env.*must return observations of shape \(2, 3\).*\(2, 4\)"):
            call()

    def test_reward_shape(self):
        environments = Environments(Arrays())
        environments.reset(0)
        with pytest.raises(EnvError, match=r"must return rewards of shape \(2,\). Received: shape=\(2, 1\)"):
            vector_step(environments, reward=np.zeros((2, 1)))

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (Dict({"a": Box(0, 1), "b": gym.spaces.Text(5)}), r"`Script`: `observation\['b'\]` must be.*Text"),
            (gym.spaces.MultiBinary(3), "`observation` must be Box or Discrete"),
        ],
    )
    def test_unsupported_observation_space(self, space, message):
        with pytest.raises(EnvError, match=message):
            Environments(SerialVectorEnv([Script([(2, True, False)], space)]))

    def test_unsupported_action_space(self):
        env = Script([(2, True, False)])
        env.action_space = Box(np.array([0.0, -np.inf], np.float32), np.array([1.0, 1.0], np.float32))
        with pytest.raises(EnvError, match=r"both bounds finite or both infinite.*action\[1\]"):
            Environments(SerialVectorEnv([env]))

    def test_reset_that_raises_names_the_users_line(self, tmp_path, monkeypatch):
        module = tmp_path / "users_env.py"
        module.write_text(
            "import gymnasium as gym\nfrom gymnasium.spaces import Box, Discrete\n\n"
            "class Broken(gym.Env):\n"
            "    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)\n"
            "    def reset(self, seed=None, options=None):\n"
            "        super().reset(seed=seed)\n"
            "        self.load()\n"
            "    def load(self):\n"
            "        raise FileNotFoundError('no\\nmap')\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        environments = Environments(resolve_env("users_env:Broken").make(2))
        with pytest.raises(EnvError) as caught:
            environments.reset(0)
        assert str(caught.value) == (
            f"`reset` of env `Broken` raised FileNotFoundError: no map ({module}, line 10, in load)"
        )

    @pytest.mark.parametrize(
        ("wrapper", "flag"),
        [
            (gym.wrappers.NormalizeObservation, "normalize_observation"),
            (gym.wrappers.NormalizeReward, "normalize_reward"),
        ],
    )
    def test_gymnasiums_normalization_warns_once(self, wrapper, flag):
        vector_env = SerialVectorEnv([wrapper(Script([(2, True, False)])) for _ in range(2)])
        with pytest.warns(UserWarning, match=rf"{wrapper.__name__}.*`{flag}=True`") as caught:
            Environments(vector_env, actor=0)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Environments(vector_env, actor=1)

    def test_gymnasiums_vector_normalization(self):
        env_fns = [functools.partial(Script, [(n, True, False)]) for n in (2, 3)]
        normalized = gym.wrappers.vector.NormalizeObservation(sync(env_fns, AutoresetMode.NEXT_STEP))
        with pytest.warns(UserWarning, match="`normalize_observation=True`"):
            Environments(normalized)


class TestResolve:
    def refused(self, env, *args, **kwargs):
        with pytest.raises(ValueError) as caught:
            resolve_env(env, *args, **kwargs)
        message = str(caught.value)
        assert "\n" not in message
        assert "Received: " in message
        return message

    @pytest.mark.parametrize(
        ("env", "match"),
        [
            ("CartPol-v1", "CartPole-v1"),
            ("cartpole-v1", "CartPole-v1"),
            ("CartPole-v7", "CartPole-v1"),
            ("LunarLander-v2", "LunarLander-v3"),
            ("actor_learner/Cath-v0", "actor_learner/Catch-v0"),
            ("gymnasium:CartPol-v1", "gymnasium:CartPole-v1"),
        ],
    )
    def test_unknown_id_has_a_close_match(self, env, match):
        assert f"did you mean `{match}`? Received: env={env!r}" in self.refused(env)

    def test_unknown_id_without_a_close_match(self):
        assert "write `module:Id-v0`" in self.refused("Quux/Frobnicate-v0")

    @pytest.mark.parametrize(
        ("package", "env", "extra"),
        [
            ("Box2D", "LunarLander-v3", "box2d"),
            ("mujoco", "HalfCheetah-v5", "mujoco"),
            ("ale_py", "ALE/Pong-v5", "atari"),
        ],
    )
    def test_missing_package_names_the_extra(self, package, env, extra, monkeypatch):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)  # Python's own mark for "can't be imported"
        message = self.refused(env)
        assert f"needs the package `{package}`" in message
        assert f'pip install "actor-learner[{extra}]"' in message

    def test_missing_namespace_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ale_py", None)
        for env_id in [env_id for env_id in gym.registry if env_id.startswith("ALE/")]:
            monkeypatch.delitem(gym.registry, env_id)
        assert 'pip install "actor-learner[atari]"' in self.refused("ALE/Pong-v5")

    def test_registered_by_a_package_that_is_gone(self, monkeypatch):
        spec = gym.envs.registration.EnvSpec("Gone-v0", "gone_package.envs:Gone")
        monkeypatch.setitem(gym.registry, "Gone-v0", spec)
        assert "needs the package `gone_package`, which is not installed" in self.refused("Gone-v0")

    def test_envpool(self):
        assert "not supported yet" in self.refused("envpool:Pong-v5")

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ("no_such_module:make", "`no_such_module` can't be imported"),
            ("gymnasium.no_such:make", "`gymnasium.no_such` can't be imported"),
            ("users_env:mak", "`users_env` has no attribute `mak`.*did you mean `users_env:make`"),
            ("users_env:nothing_like_it", "`users_env` has no attribute `nothing_like_it`.*write `module:Id-v0`"),
            ("users_env:number", "must be a callable.*number=3"),
            (
                "raises_env:make",
                r"`raises_env` can't be imported: ZeroDivisionError.*raises_env.py, line 1, in <module>",
            ),
            ("imports_env:make", "`imports_env` can't be imported: ModuleNotFoundError: No module named 'no_such_dep'"),
            ("broken_env:make", r"`broken_env` can't be imported: SyntaxError.*broken_env.py, line 1"),
        ],
    )
    def test_module_and_factory(self, env, words, tmp_path, monkeypatch):
        (tmp_path / "users_env.py").write_text("number = 3\ndef make():\n    return number\n")
        (tmp_path / "raises_env.py").write_text("1 / 0\n")
        (tmp_path / "imports_env.py").write_text("import no_such_dep\n")
        (tmp_path / "broken_env.py").write_text("def make(:\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("users_env", "raises_env", "imports_env", "broken_env"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        message = self.refused(env)
        assert re.search(words, message), message

    def test_module_of_the_working_directory(self, tmp_path, monkeypatch):
        (tmp_path / "env_right_here.py").write_text(
            "import gymnasium as gym\ndef make():\n    return gym.make('CartPole-v1')\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
        factory = resolve_env("env_right_here:make", check_pickle=False)
        assert factory.name == "env_right_here:make"
        assert sys.path[-1] == str(tmp_path)  # at the end: it shadows nothing
        assert factory.make(2).num_envs == 2

    def test_module_that_registers_an_id(self, tmp_path, monkeypatch):
        (tmp_path / "registers_env.py").write_text(
            "import gymnasium as gym\n"
            "gym.register('Registered-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        try:
            assert resolve_env("registers_env:Registered-v0").make(1).single_action_space == Discrete(2)
        finally:
            gym.registry.pop("Registered-v0", None)

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            (7, "must be a Gymnasium id, 'module:factory' or a callable. Received: builtins.int"),
            (Arrays(), "must be a callable that builds the environment. Received: a ready one"),
            (Script([]), "must be a callable that builds the environment. Received: a ready one"),
        ],
    )
    def test_what_is_no_env_argument(self, env, words):
        assert words in self.refused(env)

    def test_vectorization(self):
        assert "'auto' or 'sync'. Received: vectorization='async'" in self.refused("CartPole-v1", None, "async")
        assert "needs single environments" in self.refused(lambda num_envs: Arrays(num_envs), None, "sync")

    def test_env_kwargs_that_the_callable_does_not_take(self):
        message = self.refused(Script, {"episode": 3})
        assert "`Script(episodes, observation_space=None)` can't be called" in message
        assert "Received: env_kwargs={'episode': 3}" in message

    def test_without_a_version_the_newest(self):
        assert resolve_env("CartPole").name == "CartPole-v1"

    def test_ids_that_ale_registers_without_a_namespace(self):
        pytest.importorskip("ale_py")
        assert resolve_env("PongNoFrameskip-v4").name == "PongNoFrameskip-v4"

    def test_nothing_is_built(self):
        def build():
            raise AssertionError("built in the caller")

        assert resolve_env(build, check_pickle=False).name.endswith("build")


class TestPickling:
    def unpicklable(self, env, env_kwargs=None):
        with pytest.raises(EnvError) as caught:
            resolve_env(env, env_kwargs)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_a_closure_names_the_variable(self):
        lock = threading.Lock()

        def make():
            return lock and Script([(1, True, False)])

        message = self.unpicklable(make)
        assert "because its variable `lock` can't be pickled" in message
        assert "_thread.lock" in message

    def test_an_argument(self):
        lock = threading.Lock()
        assert "`env_kwargs['episodes']` can't be pickled" in self.unpicklable(Script, {"episodes": [lock]})
        assert "argument 0 of the partial can't be pickled" in self.unpicklable(functools.partial(Script, [lock]))

    def test_an_attribute(self):
        class Maker:
            def __init__(self):
                self.lock = threading.Lock()

            def __call__(self):
                return Script([(1, True, False)])

        assert "its attribute `lock` can't be pickled" in self.unpicklable(Maker())

    def test_a_callable_that_stays_may_hold_anything(self):
        lock = threading.Lock()
        factory = resolve_env(lambda: lock and Script([(1, True, False)]), check_pickle=False)
        assert factory.make(2).num_envs == 2

    def test_what_only_the_caller_registered_reaches_another_process(self, tmp_path):
        """The entry point stands in `__main__`, as a string, and the other process knows nothing of either."""
        script = tmp_path / "script.py"
        script.write_text(
            "import sys\nimport gymnasium as gym\nfrom gymnasium.spaces import Box, Discrete\n"
            "from actor_learner.environments import resolve_env\n"
            "class Here(gym.Env):\n"
            "    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)\n"
            "    def __init__(self, size=0):\n        self.size = size\n"
            "    def reset(self, seed=None, options=None):\n        return self.observation_space.low + 0.5, {}\n"
            "gym.register('Here-v0', '__main__:Here', kwargs={'size': 3}, max_episode_steps=9)\n"
            "open(sys.argv[1], 'wb').write(resolve_env('Here-v0').dumps())\n"
        )
        payload = tmp_path / "payload"
        subprocess.run([sys.executable, script, payload], check=True, timeout=60)
        load = (
            "import pickle, sys\nfrom actor_learner.environments import Environments\n"
            "factory = pickle.load(open(sys.argv[1], 'rb'))\nvector_env = factory.make(2)\n"
            "print(Environments(vector_env).reset(0).tolist(), vector_env.envs[0].unwrapped.size, factory.name)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", load, payload], check=True, timeout=60, capture_output=True, text=True
        )
        assert done.stdout.strip() == "[[0.5], [0.5]] 3 Here-v0"

    def test_a_wrapper_registered_in_main(self, monkeypatch):
        wrapper = gym.envs.registration.WrapperSpec("W", "__main__:W", {})
        spec = gym.envs.registration.EnvSpec("Wrapped-v0", "gymnasium:Env", additional_wrappers=(wrapper,))
        monkeypatch.setitem(gym.registry, "Wrapped-v0", spec)
        with pytest.raises(EnvError, match="put wrappers inside a callable env"):
            resolve_env("Wrapped-v0")


class TestMake:
    def test_native_vector_environment(self):
        factory = resolve_env("CartPole-v1", {"max_episode_steps": 7})
        vector_env = pickle.loads(factory.dumps()).make(5)
        assert isinstance(vector_env, CartPoleVectorEnv)
        rows, episodes = play(Environments(vector_env), 17)
        # Pushed always left it falls after 9 steps or so: the time limit comes first, and a reset row after it.
        assert all(own == [(7.0, 7.0, {}), (7.0, 7.0, {})] for own in episodes)
        assert all(len(own) == 15 for own in rows)

    def test_sync(self):
        factory = resolve_env("CartPole-v1", {"max_episode_steps": 7}, "sync")
        vector_env = pickle.loads(factory.dumps()).make(2)
        assert isinstance(vector_env, SyncVectorEnv)
        assert Environments(vector_env).autoreset_mode is AutoresetMode.DISABLED
        assert "PassiveEnvChecker" not in str(vector_env.envs[0])
        _, episodes = play(Environments(vector_env), 15)
        assert all(own == [(7.0, 7.0, {}), (7.0, 7.0, {})] for own in episodes)

    def test_env_class_and_env_factory(self):
        for env in (Script, lambda **kwargs: gym.wrappers.TimeLimit(Script(**kwargs), 50)):
            vector_env = resolve_env(env, {"episodes": [(2, True, False)]}, check_pickle=False).make(3)
            _, episodes = play(Environments(vector_env), 4)
            assert [len(own) for own in episodes] == [2, 2, 2]

    def test_vector_factory_gets_num_envs_and_seed(self):
        received = []

        def make(num_envs, seed, size=1):
            received.append((num_envs, seed, size))
            return Arrays(num_envs)

        assert resolve_env(make, {"size": 4}, check_pickle=False).make(3, 17).num_envs == 3
        assert received == [(3, 17, 4)]

    def test_vector_class_without_a_seed(self):
        assert resolve_env(CartPoleVectorEnv).make(3, 17).num_envs == 3

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            (lambda: 3, r"must return a gymnasium.Env. Received: builtins.int"),
            (lambda: Arrays(), r"needs a parameter named `num_envs`. Received:.*Arrays"),
            (lambda num_envs: Script([]), r"has a parameter `num_envs` and must return a gymnasium VectorEnv"),
            (lambda num_envs: Arrays(num_envs + 1), r"VectorEnv of 2 environments. Received: num_envs=3"),
            (lambda: SHARED, r"must build a new environment at each call"),
            (lambda: 1 / 0, r"can't be built: ZeroDivisionError: division by zero \(.*test_environments.py, line \d+"),
        ],
    )
    def test_what_comes_back_is_wrong(self, env, message):
        with pytest.raises(EnvError, match=message):
            resolve_env(env, check_pickle=False).make(2)

    def test_kwargs_that_the_id_does_not_take(self):
        with pytest.raises(EnvError, match=r"env `Acrobot-v1` can't be built: TypeError.*wings"):
            resolve_env("Acrobot-v1", {"wings": 2}).make(1)

    @pytest.mark.parametrize("env", ["LunarLander-v3", "HalfCheetah-v5"])
    def test_physics(self, env):
        pytest.importorskip({"LunarLander-v3": "Box2D", "HalfCheetah-v5": "mujoco"}[env])
        vector_env = resolve_env(env, {"max_episode_steps": 30}).make(2)
        environments = Environments(vector_env)
        vector_env.action_space.seed(0)
        rows, episodes = play(environments, 60, lambda _: vector_env.action_space.sample())
        assert [own[0][1] for own in episodes] == [30.0, 30.0]
        for own_rows, own_episodes in zip(rows, episodes, strict=True):
            first = own_rows[: int(own_episodes[0][1])]
            assert own_episodes[0][0] == pytest.approx(sum(row.reward for row in first), rel=1e-5)
            assert first[-1].truncated

    def test_mujoco_leaves_no_log_file_and_warns_once(self, tmp_path):
        pytest.importorskip("mujoco")
        code = (
            "import mujoco\nfrom actor_learner.environments import resolve_env\n"
            "resolve_env('HalfCheetah-v5').make(3)\n"
            "for _ in range(3):\n    mujoco.get_mju_user_warning()('unstable')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.stderr == "MuJoCo: unstable\n"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_atari_native(self, mode):
        pytest.importorskip("ale_py")
        factory = resolve_env("ALE/Breakout-v5", {"max_num_frames_per_episode": 80, "autoreset_mode": mode})
        vector_env = factory.make(2)
        environments = Environments(vector_env)
        observation = environments.reset(0)
        assert (observation.shape, observation.dtype) == ((2, 4, 84, 84), np.uint8)
        ends = 0
        for _ in range(60):
            transition = environments.step(np.ones(2, np.int64))
            ends += int(transition.truncated.sum())
        assert ends >= 4
        assert factory.source.kwargs == gym.spec("ALE/Breakout-v5").kwargs  # our defaults stay out of the spec


def test_env_kwargs_that_are_no_dict():
    with pytest.raises(EnvError, match=r"`env_kwargs` must be a dict with names as keys. Received: env_kwargs=\[1\]"):
        resolve_env("CartPole-v1", [1])


def test_an_actors_imports_leave_tensorflow_unloaded():
    code = (
        "import sys, actor_learner.environments, actor_learner.evaluate\n"
        "print([name for name in ('tensorflow', 'keras', 'jax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
