"""Environments: what is refused, and how the message names it."""

from __future__ import annotations

import functools
import math
import re
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from actor_learner.environments.calls import make_call
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import ApiError, EnvError, describe_error
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.serial import SerialVectorEnv
from tests.support.scripted_envs import MODES, Arrays, Script, play, reset_and_step, sync, vector_step

TABLE = np.arange(99, dtype=np.float32)


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

    def test_numbers_in_infos_that_nobody_asked_for_do_no_harm(self):
        class Talks(Script):
            def reset(self, **kwargs):
                return super().reset(**kwargs)[0], {"name": np.array(["left"])}

            def step(self, action):
                *results, info = super().step(action)
                return (*results, {**info, "name": np.array(["left"]), "huge": 10**400})

        environments = Environments(SerialVectorEnv([Talks([(1, True, False)])]))
        environments.reset(0)
        assert environments.step(np.zeros(1, np.int64)).episodes.info["is_success"].tolist() == [1.0]

    def test_an_absent_row_in_mid_episode(self):
        environments = Environments(Arrays(mode=AutoresetMode.SAME_STEP))
        environments.reset(0)
        with pytest.raises(EnvError, match="The episode of environment 1 .* must be terminated .* Received: neither"):
            vector_step(environments, infos={"absent": np.array([False, True])})

    def test_an_exception_without_a_readable_text(self):
        class Mute(RuntimeError):
            def __str__(self):
                raise UnicodeError

        assert describe_error(Mute()).startswith("Mute: (its text can't be read: UnicodeError)")

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
        assert transition.observation[0][0, 0] == np.float32(3e38)

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
            for (observation,) in transitions(vector_env):
                assert observation.dtype == dtype
                np.testing.assert_array_equal(observation, np.array(expected, dtype)[None])

    @pytest.mark.parametrize("when", [0, 1, 3])
    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize(
        ("wrong", "received"),
        [
            (np.zeros(3), r"shape=\(3,\)"),
            (np.zeros(1), r"shape=\(1,\)"),
            (0.0, r"shape=\(\)"),
            ({"a": 0}, "a dict"),
            ((0, 1, 2), r"(a tuple|shape=\(3,\))"),
        ],
    )
    def test_shape_or_structure(self, when, wrong, received, nested):
        class Wrong(Script):
            def observation(self):
                seen = wrong if self.count == when else super().observation()
                return {"part": seen} if nested else seen

        space = Box(-np.inf, np.inf, (2,))
        env = Wrong([(5, True, False)], Dict(part=space) if nested else space)
        environments = Environments(SerialVectorEnv([env]), name="Wrong-v0")
        where = f"`{'step' if when else 'reset'}` of environment 0"
        with pytest.raises(EnvError, match=rf"{where}: `observation.*` must have the shape.*{received}"):
            reset_and_step(environments, 3)

    @pytest.mark.parametrize(
        ("method", "result", "message"),
        [
            ("reset", np.zeros(2), r"must return \(observation, info\). Received: a ndarray"),
            ("step", (np.zeros(2), 1.0, False, {}), r"must return \(observation, reward, .*Received: a tuple of 4"),
            ("step", None, "must return.*Received: a NoneType"),
        ],
    )
    def test_another_number_of_results(self, method, result, message, monkeypatch):
        monkeypatch.setattr(Script, method, lambda *_, **__: result)
        with pytest.raises(EnvError, match=f"`{method}` of environment 0 {message}"):
            play(Environments(SerialVectorEnv([Script([(5, True, False)])])), 1)

    def test_a_reset_without_seed_and_options(self):
        class Old(Script):
            def reset(self):
                return super().reset()

        environments = Environments(SerialVectorEnv([TimeLimit(Old([(5, True, False)]), 9)]))
        rule = r"must take seed and options, as `reset\(self, \*, seed=None, options=None\)` does. Received: reset\(\)"
        with pytest.raises(ApiError, match=rf"^`reset` of Old, environment 0, {rule} \(env `Old`\)$"):
            environments.reset(0)

    @pytest.mark.parametrize(
        "returned", [np.array, np.asarray, np.zeros_like, lambda numbers: TABLE[int(numbers[0]) :][:2]]
    )
    def test_stacks_keep_the_arrays_that_they_are_given(self, returned):
        """np.asarray: the same array at each step. np.zeros_like: others, with the same numbers. TABLE: its views."""

        class Reuses(Script):
            numbers = np.zeros(2, np.float32)

            def step(self, action):
                _, *rest = super().step(action)
                self.numbers += 1
                return returned(self.numbers), *rest

            def reset(self, **kwargs):
                self.numbers = np.zeros(2, np.float32)
                return returned(self.numbers), super().reset(**kwargs)[1]

        environments = Environments(SerialVectorEnv([FrameStackObservation(Reuses([(5, True, False)]), 3)]))
        if returned is not np.asarray:
            play(environments, 6)
            return
        rule = "`step` of environment 0 below FrameStackObservation must return a new array, which that keeps."
        with pytest.raises(ApiError, match=rule):
            play(environments, 6)

    @pytest.mark.parametrize("later", [0, 3])
    @pytest.mark.parametrize(
        ("method", "changed", "message"),
        [
            ("step", {0: np.zeros(3)}, r"`observation` must have the shape \(2,\). Received: shape=\(3,\)"),
            ("step", {1: None}, "must return a number as reward. Received: reward=None"),
            ("step", {1: "3"}, "must return a number as reward. Received: reward='3'"),
            ("step", {1: np.zeros(1)}, r"must return a number as reward. Received: shape=\(1,\)"),
            ("step", {4: None}, "must return a dict as info. Received: info=None"),
            ("reset", {0: np.zeros(3)}, r"`observation` must have the shape \(2,\). Received: shape=\(3,\)"),
            ("reset", {1: None}, "must return a dict as info. Received: info=None"),
        ],
    )
    def test_a_part_of_the_result_at_once_or_in_mid_run(self, method, changed, message, later):
        class Wrong(Script):
            calls = 0

            def change(self, result):
                self.calls += 1
                parts = result if self.calls <= later else [changed.get(i, part) for i, part in enumerate(result)]
                return tuple(parts)

            def reset(self, **kwargs):
                result = super().reset(**kwargs)
                return self.change(result) if method == "reset" else result

            def step(self, action):
                result = super().step(action)
                return self.change(result) if method == "step" else result

        environments = Environments(SerialVectorEnv([Script([(2, True, False)]), Wrong([(2, True, False)])]), actor=3)
        with pytest.raises(EnvError) as caught:
            play(environments, 9)
        assert isinstance(caught.value, ApiError) == (later == 0)
        assert re.fullmatch(rf"`{method}` of environment 1:? {message} \(env `Script` in actor 3\)", str(caught.value))

    @pytest.mark.parametrize("mode", MODES)
    def test_exit_is_an_exception_like_others(self, mode):
        class Exits(Script):
            def step(self, action):
                sys.exit(4) if self.count == 3 else None
                return super().step(action)

        exits = functools.partial(Exits, [(5, True, False)])
        vector_env = SerialVectorEnv([exits()]) if mode is AutoresetMode.DISABLED else sync([exits], mode)
        environments = Environments(vector_env, name="Exits-v0", actor=1)
        with pytest.raises(
            EnvError, match=r"^`step` of env `Exits-v0` in actor 1 raised SystemExit: 4 \(.*, in step\)$"
        ):
            play(environments, 9)

    def test_exit_in_other_methods(self, monkeypatch, caplog):
        environments = Environments(SerialVectorEnv([Script([(5, True, False)])]), name="Exits-v0")
        for method, call in (
            ("reset", environments.reset),
            ("set_level", lambda: environments.call(make_call("set_level", []))),
        ):
            monkeypatch.setattr(Script, method, lambda env, **_: sys.exit("no simulator"), raising=False)
            with pytest.raises(EnvError, match=f"^`{method}` of env `Exits-v0` raised SystemExit: "):
                call()
        monkeypatch.setattr(Script, "close", lambda env: sys.exit("no simulator"), raising=False)
        environments.close()
        assert "`close` of env `Exits-v0` raised SystemExit: no simulator" in caplog.text
        with pytest.raises(EnvError, match="^env `.*` can't be built: SystemExit: 5"):
            resolve_env(lambda: sys.exit(5), check_pickle=False).make(1)

    @pytest.mark.parametrize("later", [0, 2])
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"observation": np.zeros(3)}, r"`observation` must have the shape \(2, 3\). Received: shape=\(3,\)$"),
            ({"observation": np.zeros((2, 4))}, r"must return a batch.*`observation`.*\(2, 3\).*\(2, 4\)"),
            ({"reward": np.zeros((2, 1))}, "must return (rewards of shape|numbers as rewards).* Received: "),
            ({"reward": 1.0}, "must return (rewards of shape|numbers as rewards).* Received: "),
            ({"reward": np.array(["1", "x"])}, r"must return numbers as rewards. Received: array\(.*'x'\]"),
            ({"reward": np.array([1.0, None])}, "^reward of environment 1 .* must be finite. Received: None"),
            ({"reward": np.array([0, math.nan])}, "^reward of environment 1 .*step .* must be finite. Received: nan"),
        ],
    )
    def test_what_a_vector_environment_returns_at_once_or_later(self, changes, message, later):
        environments = Environments(Arrays())
        environments.reset(0)
        for _ in range(later):
            vector_step(environments)
        with pytest.raises(EnvError, match=message) as caught:
            vector_step(environments, **changes)
        assert "env `Arrays`" in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("infos", None, "must return a dict as infos. Received: infos=None"),
            ("observation", np.zeros((2, 4), np.float32), r"must return a batch.*`observation`.*\(2, 3\).*\(2, 4\)"),
            ("reset_infos", None, "must return a dict as infos. Received: infos=None"),
        ],
    )
    def test_what_a_vector_environment_returns_at_its_reset_and_first_step(self, name, value, message):
        environments = Environments(Arrays())
        if name == "infos":
            environments.reset(0)
        setattr(environments.vector_env, name, value)
        method = "step" if name == "infos" else "reset"
        with pytest.raises(EnvError, match=f"`{method}` of env `Arrays` {message}"):
            environments.step(np.zeros(2, np.int64)) if name == "infos" else environments.reset(0)

    @pytest.mark.parametrize(
        ("name", "space", "message"),
        [
            ("observation", Dict({"a": Box(0, 1), "b": gym.spaces.Text(5)}), r"`Script`: `observation\['b'\]` must be"),
            (
                "observation",
                Dict({"a": Box(0, 1), "b": gym.spaces.Text(5), "c": Box(0, 1)}),
                r"drop it: --wrappers gymnasium.wrappers:FilterObservation "
                r"""--wrapper-kwargs '{"FilterObservation": {"filter_keys": \["a", "c"\]}}'. Received: Text""",
            ),
            ("observation", Dict(b=gym.spaces.Text(9)), r"`observation\['b'\]` .*MultiDiscrete in a Gymnasium wrapper"),
            ("action", Box(np.array([0.0, -np.inf]), np.ones(2)), r"both bounds finite or both infinite.*action\[1\]"),
        ],
    )
    def test_unsupported_spaces(self, name, space, message):
        env = Script([(2, True, False)])
        setattr(env, f"{name}_space", space)
        with pytest.raises(EnvError, match=message):
            Environments(SerialVectorEnv([env]))

    def test_reset_that_raises_names_the_users_line(self):
        class Broken(Script):
            def reset(self, **kwargs):
                return self.load()

            def load(self):
                raise FileNotFoundError("no\nmap")

        environments = Environments(SerialVectorEnv([Broken([])]))
        place = rf"\({re.escape(__file__)}, line \d+, in load\)"
        with pytest.raises(EnvError, match=f"^`reset` of env `Broken` raised FileNotFoundError: no map {place}$"):
            environments.reset(0)

    @pytest.mark.parametrize(
        ("wrapper", "flag"),
        [
            (gym.wrappers.NormalizeObservation, "normalize_observation"),
            (gym.wrappers.NormalizeReward, "normalize_reward"),
            (gym.wrappers.vector.NormalizeObservation, "normalize_observation"),
        ],
    )
    def test_gymnasiums_normalization_warns_once(self, wrapper, flag):
        if issubclass(wrapper, VectorEnv):
            vector_env = wrapper(sync([functools.partial(Script, [(2, True, False)])], AutoresetMode.NEXT_STEP))
        else:
            vector_env = SerialVectorEnv([wrapper(Script([(2, True, False)])) for _ in range(2)])
        with pytest.warns(UserWarning, match=rf"{wrapper.__name__}.*`{flag}=True`") as caught:
            Environments(vector_env, actor=0)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Environments(vector_env, actor=1)
