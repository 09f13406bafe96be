"""Environments: the three autoreset modes, what breaks them, episode statistics."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from hypothesis import given, settings, strategies as st

from actor_learner.environments.autoreset import declared_autoreset_mode
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.self_play import SelfPlayVectorEnv
from actor_learner.environments.serial import SerialVectorEnv
from tests.support.processes import patience
from tests.support.scripted_envs import MODES, Arrays, Deterministic, Row, Script, play, sync, vector_step


class TestAutoresetModes:
    @pytest.mark.filterwarnings("ignore:.*episodes has text, absent of `info_keys`")
    @settings(deadline=None, max_examples=30)
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
        mode=st.sampled_from([*MODES, "serial"]),
    )
    def test_any_episodes_come_out_as_scripted(self, scripts, mode):
        env_fns = [functools.partial(Script, [(n, bool(t), bool(c)) for n, t, c in script]) for script in scripts]
        vector_env = SerialVectorEnv([make() for make in env_fns]) if mode == "serial" else sync(env_fns, mode)
        environments = Environments(vector_env, info_keys=("score", "text", "absent"))
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
            resets = number if mode is AutoresetMode.NEXT_STEP else 0
            assert len(own_rows) in (30 - resets, 31 - resets)

    def test_the_observation_acted_on_survives_the_step(self):
        environments = Environments(resolve_env("CartPole-v1", vectorization="sync").make(2))
        (first,) = environments.reset(3)
        kept = first.copy()
        (second,) = environments.step(np.zeros(2, np.int64)).observation
        np.testing.assert_array_equal(first, kept)
        assert not np.array_equal(first, second)


class TestMisbehaviour:
    @pytest.mark.parametrize(
        ("argument", "message"),
        [
            (None, r"declares no autoreset mode.*autoreset_mode.*'next_step', 'same_step' or 'disa"),
            ("later", r"must be 'next_step'.*Received: autoreset_mode='later'"),
        ],
    )
    def test_a_mode_that_is_missing_or_unknown(self, argument, message):
        with pytest.raises(ValueError, match=message):
            Environments(Arrays(mode=None), autoreset_mode=argument)

    def test_argument_against_sync_vector_env(self):
        vector_env = sync([functools.partial(Script, [(2, True, False)])], AutoresetMode.DISABLED)
        with pytest.raises(EnvError, match=r"has the autoreset mode DISABLED. Received: autoreset_mode='same_step'"):
            Environments(vector_env, autoreset_mode="same_step")

    @pytest.mark.parametrize("mode", ["NextStep", "next_step", AutoresetMode.NEXT_STEP])
    def test_spellings_of_a_declared_mode(self, mode):
        assert Environments(Arrays(mode=mode)).autoreset_mode is AutoresetMode.NEXT_STEP

    def test_the_mode_of_the_argument_of_the_class_and_through_a_wrapper(self):
        assert Environments(Arrays(mode=None), autoreset_mode="same_step").autoreset_mode is AutoresetMode.SAME_STEP
        assert Environments(CartPoleVectorEnv(2)).autoreset_mode is AutoresetMode.NEXT_STEP
        wrapped = gym.wrappers.vector.ClipReward(Arrays(mode=AutoresetMode.DISABLED), -1, 1)
        assert declared_autoreset_mode(wrapped) is AutoresetMode.DISABLED

    def test_an_atari_environment_in_the_process_gives_nobody_its_mode(self):
        pytest.importorskip("ale_py", reason="needs ale_py")
        atari = resolve_env("ALE/Pong-v5", {"autoreset_mode": "SameStep"}).make(1)
        assert Environments(atari).autoreset_mode is AutoresetMode.SAME_STEP
        gym.make_vec("ALE/Pong-v5", num_envs=1)
        try:
            assert "autoreset_mode" in Arrays(mode=None).metadata  # what every other VectorEnv inherits
            factory = resolve_env(lambda num_envs: Arrays(num_envs, mode=None), check_pickle=False)
            with pytest.raises(EnvError, match="declares no autoreset mode"):
                Environments(factory.make(2))
            with pytest.raises(EnvError, match="declares no autoreset mode"):
                Environments(Arrays(mode=None))
            assert VectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP  # put back
        finally:
            VectorEnv.metadata.pop("autoreset_mode")

    @pytest.mark.parametrize(
        ("mode", "message"),
        [
            ("disabled", r"CartPoleVectorEnv.*ignored `options\['reset_mask'\]`.*DISABLED"),
            ("same_step", r"gave no `infos\['final_obs'\]`.*put the last observations there.*autoreset_mode=SAME_STEP"),
        ],
    )
    def test_an_environment_that_does_not_keep_its_mode(self, mode, message):
        with pytest.warns(UserWarning, match=f"declares the autoreset mode NEXT_STEP.*autoreset_mode='{mode}'"):
            environments = Environments(CartPoleVectorEnv(4), autoreset_mode=mode)
        with pytest.raises(EnvError, match=message):
            play(environments, 60)

    def test_last_observations_and_infos_of_older_versions_are_named(self):
        old = {"final_observation": np.zeros((2, 3)), "final_info": np.array([{"laps": 2}, None])}
        environments = Environments(Arrays(mode=AutoresetMode.SAME_STEP, infos=old))
        environments.reset(0)
        with (
            pytest.warns(UserWarning, match=r"`infos\['final_info'\]` must be a dict of arrays.*Received: ndarray"),
            pytest.raises(EnvError, match=r"but `infos\['final_observation'\]`, its name before Gymnasium 1\.0"),
        ):
            vector_step(environments, terminated=[True, False])

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


class Nested(Script):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, {**info, "reward": {"root": info["score"], "text": "no number"}})


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

    def test_a_vector_record_that_goes_on_where_a_limit_ended_the_episode_is_not_believed(self):
        class Limit(VectorWrapper):
            """Cuts off after the third step, which the record inside doesn't see."""

            steps = 0

            def step(self, actions):
                observation, reward, terminated, truncated, infos = self.env.step(actions)
                self.steps += 1
                return observation, reward, terminated, truncated | (self.steps == 3), infos

        vector_env = Arrays(1)
        environments = Environments(Limit(gym.wrappers.vector.RecordEpisodeStatistics(vector_env)))
        environments.reset(0)
        lengths = []
        for step in range(1, 9):
            vector_env.terminated[:] = step == 8
            if (episodes := environments.step(np.zeros(1, int)).episodes) is not None:
                lengths += episodes.lengths.tolist()
        assert lengths == [3, 4]  # not 8: the fourth step only resets

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

    @pytest.mark.parametrize("ending", [(True, False), (False, True)])
    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    def test_an_end_by_a_wrapper_outside_of_the_recorder_is_an_episode(self, mode, ending):
        class Early(gym.Wrapper):
            """Ends an episode after its second step."""

            def step(self, action):
                observation, reward, terminated, truncated, info = self.env.step(action)
                early = observation[0] == 2
                return (
                    observation,
                    reward,
                    terminated or (early and ending[0]),
                    truncated or (early and ending[1]),
                    info,
                )

        def make():
            return Early(gym.wrappers.RecordEpisodeStatistics(Script([(1, True, False), (5, True, False)])))

        vector_env = SerialVectorEnv([make(), make()]) if mode == "serial" else sync([make, make], mode)
        _, played = play(Environments(vector_env, info_keys=("score",)), 13)
        for episodes in played:
            expected = [(1.0, 1.0, {"score": 1.0}), (3.0, 2.0, {"score": 12.0}), (1.0, 1.0, {"score": 21.0})]
            assert episodes[:3] == expected

    def test_a_key_that_one_episode_lacks_is_nan(self):
        class Silent(Script):
            def step(self, action):
                *rest, _ = super().step(action)
                return (*rest, {})

        environments = Environments(SerialVectorEnv([Script([(1, True, False)]), Silent([(1, True, False)])]))
        environments.reset(0)
        success, missing = environments.step(np.zeros(2, np.int64)).episodes.info["is_success"]
        assert success == 1.0
        assert math.isnan(missing)

    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    def test_a_key_may_be_nested(self, mode):
        make = functools.partial(Nested, [(2, True, False), (1, False, True)])
        vector_env = SerialVectorEnv([make()]) if mode == "serial" else sync([make], mode)
        _, (episodes,) = play(Environments(vector_env, info_keys=("reward/root", "reward/no", "score/root")), 9)
        assert [info for *_, info in episodes[:2]] == [{"reward/root": 2.0}, {"reward/root": 11.0}]

    def test_keys_that_never_appear_are_named_once_with_those_that_do(self, recwarn):
        environments = Environments(
            SerialVectorEnv([Nested([(1, True, False)])]), info_keys=("score", "laps"), name="E"
        )
        play(environments, 19)
        assert not recwarn
        play(environments, 60)
        environments.warn_of_missing_info()
        (warning,) = recwarn
        assert str(warning.message) == (
            "env `E`: the last `info` of none of 20 episodes has laps of `info_keys`; its numbers are is_success, "
            "reward/root, score"
        )

    def test_keys_that_no_episode_of_a_short_run_had_are_named_at_its_end(self):
        environments = Environments(SerialVectorEnv([Nested([(1, True, False)])]), info_keys=("laps",))
        play(environments, 5)
        with pytest.warns(UserWarning, match="none of 5 episodes has laps"):
            environments.close()

    @pytest.mark.parametrize(("actor", "hint"), [(0, ""), (None, ", or evaluate with `max_episode_steps`")])
    def test_an_episode_without_end_is_named_once(self, actor, hint, monkeypatch, recwarn):
        monkeypatch.setattr("actor_learner.environments.environments.ENDLESS_STEPS", 7)
        envs = [Script([(6, True, False)]), Script([(4, True, False), (30, True, False)])]
        environments = Environments(SerialVectorEnv(envs), actor=actor)
        play(environments, 10)
        assert not recwarn
        play(environments, 30)
        (warning,) = recwarn
        assert re.search(f"an episode hasn't ended after 7 steps, .*: add a TimeLimit{hint}$", str(warning.message))

    def test_a_game_without_end_is_no_case_for_a_limit_of_single_environments(self, monkeypatch):
        monkeypatch.setattr("actor_learner.environments.environments.ENDLESS_STEPS", 3)
        vector_env = SelfPlayVectorEnv.__new__(SelfPlayVectorEnv)
        environments = Environments(SerialVectorEnv([Script([(30, True, False)])]))
        environments.reset(0)
        environments.vector_env, environments._step = vector_env, 5
        with pytest.warns(UserWarning, match="no return before: let the game end by itself, as by its `max_cycles`"):
            environments._warn_of_endless()

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

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_key_may_be_a_number_of_one_environment_and_a_dict_of_another(self, order):
        crashes = [{"crash": 1.5}, {"crash": {"speed": 2.5, "at": {"x": 3.5}}}]
        envs = [Told(crashes[index]) for index in order]
        environments = Environments(SerialVectorEnv(envs), info_keys=("crash", "crash/speed", "crash/at/x"))
        environments.reset(0)
        info = environments.step(np.zeros(2, np.int64)).episodes.info
        expected = {"crash": [1.5, None], "crash/speed": [None, 2.5], "crash/at/x": [None, 3.5]}
        found = {key: [None if math.isnan(value) else value for value in info[key]] for key in info}
        assert found == {key: [values[index] for index in order] for key, values in expected.items()}

    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    @pytest.mark.parametrize("info", [{"score": 2.0, "_score": 0.0}, {"_score": 0.0, "score": 2.0}])
    def test_an_info_may_have_a_name_that_is_that_of_a_flag(self, mode, info):
        vector_env = SerialVectorEnv([Told(info)]) if mode == "serial" else sync([lambda: Told(info)], mode)
        _, (episodes,) = play(Environments(vector_env, info_keys=("score",)), 1)
        assert episodes == [(1.0, 1.0, {"score": 2.0})]

    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    def test_an_info_may_have_the_name_of_the_flag_of_absent_agents(self, mode):
        info = {"absent": 1.0}
        vector_env = SerialVectorEnv([Told(info)]) if mode == "serial" else sync([lambda: Told(info)], mode)
        (rows,), (episodes,) = play(Environments(vector_env, info_keys=("absent",)), 6)
        steps = 3 if mode is AutoresetMode.NEXT_STEP else 6
        assert len(rows) == steps
        assert episodes == [(1.0, 1.0, {"absent": 1.0})] * steps


class Told(Script):
    """Ends each episode at its first step, with the info that it was told."""

    def __init__(self, info):
        super().__init__([(1, True, False)])
        self.info = info

    def step(self, action):
        return (*super().step(action)[:-1], self.info)


class Sampling(Script):
    """Observes draws of its own spaces."""

    def observation(self):
        return np.array([self.action_space.sample(), self.observation_space.sample()[0]], np.float32)


class Sampled(gym.Wrapper):
    """Rewards draws of a space of its own."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = Discrete(1000)

    def step(self, action):
        observation, _, *rest = self.env.step(action)
        return observation, float(self.action_space.sample()), *rest


class SamplingOfItsClass(Deterministic):
    """Observes draws of spaces that all its environments have in common."""

    def _observation(self):
        return np.array([self.action_space.sample(), self.observation_space.sample()[0]], np.float32)


@pytest.mark.parametrize("make", [lambda: Sampled(Sampling([(3, True, False)])), SamplingOfItsClass])
@pytest.mark.parametrize("build", [SerialVectorEnv, lambda envs: sync([lambda env=env: env for env in envs], MODES[0])])
def test_spaces_are_seeded_and_each_environment_has_a_seed_of_its_own(build, make):
    def rows(count, seed):
        return play(Environments(build([make() for _ in range(count)])), 9, seed=seed)[0]

    first, second = rows(2, seed=4)
    assert [first, second] == rows(2, seed=4)
    assert [second] == rows(1, seed=5)  # whichever actor has it
    assert [row[:2] for row in first] != [row[:2] for row in second]


@pytest.mark.parametrize("name", ["action_space", "single_action_space"])
def test_spaces_of_a_vector_environment_are_seeded(name):
    drawn = []
    for seed in (4, 4, 5):
        vector_env = CartPoleVectorEnv(2)
        Environments(vector_env).reset(seed)
        drawn.append([np.sum(getattr(vector_env, name).sample()) for _ in range(40)])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_an_actors_imports_leave_tensorflow_unloaded():
    code = (
        "import sys, actor_learner.environments.environments, actor_learner.evaluate\n"
        "print([name for name in ('tensorflow', 'keras', 'jax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=patience(60), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
