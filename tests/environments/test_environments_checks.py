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
from gymnasium.vector import AutoresetMode

from actor_learner.environments.calls import make_call
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError, describe_error
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.serial import SerialVectorEnv
from tests.support.scripted_envs import MODES, Arrays, Script, play, sync, vector_step


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

    def test_shapes_in_every_step(self):
        environments = Environments(Arrays())
        environments.reset(0)
        vector_step(environments)
        with pytest.raises(EnvError, match=r"`observation` must have the shape \(2, 3\). Received: shape=\(3,\)"):
            vector_step(environments, observation=np.zeros(3, np.float32))
        with pytest.raises(EnvError, match="`step` of env `Arrays` must return numbers as rewards. Received: array"):
            vector_step(environments, observation=np.zeros((2, 3), np.float32), reward=1.0)

    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("wrong", [0.0, np.zeros(1)])
    def test_shapes_of_one_environment_in_every_step(self, nested, wrong):
        class Shrinks(gym.Env):
            space = Box(-1, 1, (3,))
            observation_space = Dict(a=space) if nested else space
            action_space = Discrete(2)
            steps = 0

            def reset(self, *, seed=None, options=None):
                return self.seen(np.zeros(3)), {}

            def step(self, action):
                self.steps += 1
                return self.seen(np.zeros(3) if self.steps < 3 else wrong), 0.0, False, False, {}

            def seen(self, value):
                return {"a": value} if nested else value

        environments = Environments(SerialVectorEnv([Shrinks()]))
        environments.reset(0)
        for _ in range(2):
            environments.step(np.zeros(1, np.int64))
        with pytest.raises(EnvError, match=r"must have the shape \(3,\). Received: shape=\(1?,?\)"):
            environments.step(np.zeros(1, np.int64))

    def test_numbers_in_infos_that_nobody_asked_for_do_no_harm(self):
        class Talks(gym.Env):
            observation_space, action_space = Box(-1, 1, (3,)), Discrete(2)

            def reset(self, *, seed=None, options=None):
                return np.zeros(3), {"name": np.array(["left"])}

            def step(self, action):
                return np.zeros(3), 0.0, True, False, {"name": np.array(["left"]), "huge": 10**400, "is_success": True}

        environments = Environments(SerialVectorEnv([Talks()]))
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
        with pytest.raises(
            EnvError, match=rf"`{when}` of environment 1: `observation` must have the shape.*{received}"
        ):
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

    @pytest.mark.parametrize("later", [0, 3])
    @pytest.mark.parametrize(
        ("method", "changed", "message"),
        [
            ("step", {0: np.zeros(3)}, r"`observation` must have the shape \(2,\). Received: shape=\(3,\)"),
            ("step", {1: None}, "must return a number as reward. Received: reward=None"),
            ("step", {1: "3"}, "must return a number as reward. Received: reward='3'"),
            ("step", {1: np.zeros(2)}, r"must return a number as reward. Received: shape=\(2,\)"),
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

    def test_exit_in_other_methods(self):
        class Exits(Script):
            def reset(self, **kwargs):
                sys.exit("no simulator")

            def close(self):
                sys.exit(1)

            def set_level(self, level):
                sys.exit(2)

        environments = Environments(SerialVectorEnv([Exits([(5, True, False)])]), name="Exits-v0")
        for method, call in (
            ("reset", environments.reset),
            ("close", environments.close),
            ("set_level", lambda: environments.call(make_call("set_level", [1]))),
        ):
            with pytest.raises(EnvError, match=f"^`{method}` of env `Exits-v0` raised SystemExit: "):
                call()
        with pytest.raises(EnvError, match="^env `.*` can't be built: SystemExit: 5"):
            resolve_env(lambda: sys.exit(5), check_pickle=False).make(1)

    def test_what_a_vector_environment_returns_beside_observations(self):
        for reward, message in (
            (np.array([1.0, None]), r"^reward of environment 1 of env `Arrays`, .* must be finite. Received: None$"),
            (np.array(["1", "x"]), r"^`step` of env `Arrays` must return numbers as rewards. Received: array\(.*'x'\]"),
        ):
            environments = Environments(Arrays())
            environments.reset(0)
            with pytest.raises(EnvError, match=message):
                vector_step(environments, reward=reward)
        environments = Environments(Arrays())
        environments.reset(0)
        environments.vector_env.infos = None
        with pytest.raises(EnvError, match="`step` of env `Arrays` must return a dict as infos. Received: infos=None"):
            environments.step(np.zeros(2, np.int64))
        environments.vector_env.reset_infos = None
        with pytest.raises(EnvError, match="`reset` of env `Arrays` must return a dict as infos. Received: infos=None"):
            Environments(environments.vector_env).reset(0)

    @pytest.mark.parametrize("when", ["reset", "step"])
    def test_batch_shape(self, when):
        environments = Environments(Arrays())
        if when == "step":
            environments.reset(0)
        environments.vector_env.observation = np.zeros((2, 4), np.float32)
        call = functools.partial(environments.reset, 0) if when == "reset" else lambda: vector_step(environments)
        with pytest.raises(EnvError, match=rf"`{when}` of env.*must return a batch.*`observation`.*\(2, 3\).*\(2, 4\)"):
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
            (gym.spaces.Graph(Box(0, 1), None), r"`observation` must be Box.*; encode it as Boxes.*Received: Graph"),
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
        module = tmp_path / "breaking_env.py"
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
        environments = Environments(resolve_env("breaking_env:Broken").make(2))
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
