"""Environments with composite observations and actions: leaves, autoreset modes, and messages that name the leaf."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings, strategies as st

from actor_learner.environments.autoreset import differing_environments
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.serial import SerialVectorEnv
from actor_learner.spaces import structure as spaces
from tests.support.random_spaces import OBSERVATION_SPACES
from tests.support.scripted_envs import MODES, Script, refusal, sync

ROBOT = Dict(
    camera=Tuple([Box(0, 255, (2, 3), np.uint8), Box(-9, 9, (2,), np.float64)]),
    goal=Discrete(500, start=2),
    switches=MultiBinary(2),
    tiles=MultiDiscrete([300, 400], start=[1, -2]),
)


class Robot(Script):
    """Each leaf of its observation says at which step of which episode it is; `spoil(value, count)` may change it."""

    def __init__(self, episodes, spoil=lambda value, count: value):
        super().__init__(episodes, ROBOT)
        self.spoil = spoil

    def observation(self) -> Any:
        step, episode = self.count, self.episode
        value = {
            "camera": (np.full((2, 3), step, np.uint8), np.array([step, episode], np.float64)),
            "goal": 2 + step,
            "switches": np.array([step % 2, episode % 2], np.int8),
            "tiles": np.array([1 + step, -2 + episode]),
        }
        return self.spoil(value, step)


def leaves_at(step, episode):
    """The leaves that a trajectory has at that step."""
    return (
        np.full((2, 3), step, np.uint8),
        np.array([step, episode], np.float32),
        np.int32(step),
        np.array([step % 2, episode % 2], np.int8),
        np.array([step, episode], np.int32),
    )


def assert_leaves(observation, row, expected):
    assert isinstance(observation, tuple)
    for leaf, own in zip(observation, expected, strict=True):
        assert leaf.dtype == own.dtype
        np.testing.assert_array_equal(leaf[row], own)


NOTHING = np.zeros(2, np.int64)


class TestLeaves:
    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    def test_each_mode_gives_the_leaves_of_each_episode(self, mode):
        scripts = [[(3, False, True), (2, True, False)], [(4, True, False), (1, False, True)]]
        makers = [functools.partial(Robot, script) for script in scripts]
        vector_env = SerialVectorEnv([make() for make in makers]) if mode == "serial" else sync(makers, mode)
        environments = Environments(vector_env)
        observation = environments.reset(0)
        at = [(0, 0), (0, 0)]
        cut_off = 0
        for _ in range(25):
            for row in range(2):
                assert_leaves(observation, row, leaves_at(*at[row]))
            kept = [leaf.copy() for leaf in observation]
            transition = environments.step(NOTHING)
            for leaf, own in zip(observation, kept, strict=True):  # what was acted on stays whole
                np.testing.assert_array_equal(leaf, own)
            assert (transition.final_observation is not None) == transition.truncated.any()
            for row, (step, episode) in enumerate(at):
                length, *_ = scripts[row][episode % 2]
                if not transition.valid[row]:
                    at[row] = (0, episode + 1)
                    continue
                ended = step + 1 == length
                assert ended == (transition.terminated[row] or transition.truncated[row])
                if transition.truncated[row]:
                    cut_off += 1
                    assert_leaves(transition.final_observation, row, leaves_at(step + 1, episode))
                at[row] = (0, episode + 1) if ended and mode is not AutoresetMode.NEXT_STEP else (step + 1, episode)
            observation = transition.observation
        assert cut_off >= 6

    @settings(deadline=None, max_examples=25)
    @given(space=OBSERVATION_SPACES, seed=st.integers(0, 99), mode=st.sampled_from([*MODES, None]))
    def test_any_space_comes_out_as_it_went_in(self, space, seed, mode):
        class Sampling(Script):
            def observation(self):
                self.last = space.sample()
                return self.last

        space.seed(seed)
        envs = [Sampling([(2, False, True)], space) for _ in range(2)]
        vector_env = SerialVectorEnv(envs) if mode is None else sync([lambda env=env: env for env in envs], mode)
        environments = Environments(vector_env)
        structure = spaces.observation_structure(space)
        observation = environments.reset(0)
        for _ in range(5):
            for row, env in enumerate(envs):
                expected = structure.flatten(env.last)
                for leaf, array, own in zip(structure.leaves, observation, expected, strict=True):
                    start = 0 if leaf.start is None else leaf.start
                    np.testing.assert_array_equal(array[row], (np.asarray(own) - start).astype(leaf.dtype))
            observation = environments.step(NOTHING).observation

    def test_a_batch_as_final_obs(self):
        """Some vector environments give the batch of last observations, nested as the space is."""
        environments = Environments(NestedArrays(AutoresetMode.SAME_STEP))
        environments.reset(0)
        vector_env = environments.vector_env
        vector_env.truncated[1] = True
        vector_env.infos = {"final_obs": {"a": np.array([1.0, 2.0]), "b": (np.array([[3, 4], [5, 6]]),)}}
        final = environments.step(NOTHING).final_observation
        assert final[0].tolist() == [0.0, 2.0]
        assert final[1].tolist() == [[0, 0], [5, 6]]

    def test_actions_reach_their_environments(self):
        received = []

        class Listening(Script):
            def step(self, action):
                received.append(action)
                return super().step(action)

        envs = [Listening([(9, True, False)]) for _ in range(2)]
        for env in envs:
            env.action_space = Dict(force=Box(-1, 1, (2,)), move=Tuple([Discrete(3), MultiDiscrete([2, 3])]))
        environments = Environments(SerialVectorEnv(envs))
        environments.reset(0)
        force, move, tiles = np.array([[0.0, 0.5], [1, -1]], np.float32), np.array([0, 2]), np.array([[0, 1], [1, 2]])
        environments.step({"force": force, "move": (move, tiles)})
        for row, action in enumerate(received):
            np.testing.assert_array_equal(action["force"], force[row])
            assert action["move"][0] == move[row]
            np.testing.assert_array_equal(action["move"][1], tiles[row])
        assert len(received) == 2


class NestedArrays(VectorEnv):
    """A native vector environment with observations {"a": [2], "b": ([2, 2],)}."""

    def __init__(self, mode=AutoresetMode.NEXT_STEP):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = 2
        self.single_observation_space = Dict(a=Box(-9, 9, ()), b=Tuple([Box(0, 9, (2,), np.uint8)]))
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.observation: Any = {"a": np.zeros(2), "b": (np.zeros((2, 2), np.uint8),)}
        self.truncated = np.zeros(2, bool)
        self.infos: dict[str, Any] = {}

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, actions):
        return self.observation, np.zeros(2), np.zeros(2, bool), self.truncated, self.infos


class TestRefused:
    def robots(self, spoil, length=5):
        return Environments(
            SerialVectorEnv([Robot([(length, False, True)]), Robot([(length, False, True)], spoil)]), name="Robot-v0"
        )

    @pytest.mark.parametrize("when", [0, 1, 3])
    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda value: {**value, "zoom": 1}, "with the further ['zoom']"),
            (lambda value: {key: part for key, part in value.items() if key != "goal"}, "without ['goal']"),
            (lambda value: {**value, "camera": value["camera"][:1]}, "`observation['camera']` must be a tuple of 2"),
            (lambda value: value["camera"], "`observation` must be a dict with the keys"),
            (
                lambda value: {**value, "camera": (0, value["camera"][1])},
                "`observation['camera'][0]` must have the shape",
            ),
            (lambda value: {**value, "camera": ({}, value["camera"][1])}, "`observation['camera'][0]` must have"),
            (lambda value: {**value, "tiles": np.zeros(5)}, "`observation['tiles']` must have the shape (2,)"),
            (lambda value: {**value, "tiles": ["one", "two"]}, "gave unusable values: no numbers, but <U3"),
        ],
    )
    def test_keys_shapes_and_types(self, spoil, words, when):
        message = refusal(self.robots(lambda value, count: spoil(value) if count == when else value), 4)
        assert words in message
        assert f"`{'step' if when else 'reset'}` of environment 1" in message

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            (
                "camera",
                (np.zeros((2, 3)), [0, np.nan]),
                "observation['camera'][1][1] of environment 1 of env `Robot-v0`",
            ),
            ("camera", (np.zeros((2, 3)), [0, np.inf]), "must be finite. Received: inf"),
            ("goal", 502, "observation['goal'] of environment 1"),
            ("goal", 1, "must be in Discrete(500, start=2). Received: 1"),
            ("tiles", np.array([1, 398]), "observation['tiles'][1] of environment 1"),
            ("tiles", np.array([0, 0]), "observation['tiles'][0] of environment 1"),
            ("tiles", np.array([301, 0]), "Received: 301"),
            ("switches", np.array([0, 2]), "observation['switches'][1] of environment 1"),
            ("switches", np.array([-1, 0]), "must be in MultiBinary(2). Received: -1"),
        ],
    )
    @pytest.mark.parametrize("when", [0, 3])
    def test_a_number_that_the_space_does_not_have(self, key, value, words, when):
        spoilt = self.robots(lambda observation, count: {**observation, key: value} if count == when else observation)
        message = refusal(spoilt, 4)
        assert words in message
        assert f"at step {when} of its episode (env step {when})" in message

    def test_the_last_observation_of_same_step(self):
        def spoil(value, count):
            return {**value, "goal": 1} if count == 3 else value

        makers = [functools.partial(Robot, [(3, False, True)]), functools.partial(Robot, [(3, False, True)], spoil)]
        message = refusal(Environments(sync(makers, AutoresetMode.SAME_STEP)), 3)
        assert "observation['goal'] of environment 1" in message

    @pytest.mark.parametrize("when", [0, 1, 2])
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"a": np.zeros(2)}, "without ['b']"),
            ({"a": np.zeros(2), "b": np.zeros((2, 2))}, "`observation['b']` must be a tuple of 1 entries"),
            ({"a": np.zeros((2, 1)), "b": (np.zeros((2, 2)),)}, "`observation['a']` must have the shape (2,)"),
            (np.zeros(2), "`observation` must be a dict"),
        ],
    )
    def test_batches_of_a_native_environment(self, when, wrong, words):
        environments = Environments(NestedArrays())
        calls = [functools.partial(environments.reset, 0), *[functools.partial(environments.step, NOTHING)] * 2]
        for call in calls[:when]:
            call()
        environments.vector_env.observation = wrong
        with pytest.raises(EnvError) as caught:
            calls[when]()
        assert words in str(caught.value)
        assert f"`{'step' if when else 'reset'}` of env `NestedArrays`" in str(caught.value)


class Bounded(gym.Env):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


class TestBounds:
    @pytest.mark.parametrize(
        ("observation", "action", "words"),
        [
            (lambda k: Box(-1, 1 + k, (2,)), lambda k: Discrete(2), "`observation` of environment 1"),
            (lambda k: Discrete(2), lambda k: Box(-1 - k, 1, (2,)), "`action` of environment 1"),
            (lambda k: Dict(b=Tuple([Box(0, 1 + k)])), lambda k: Discrete(2), "`observation['b'][0]` of environment 1"),
        ],
    )
    def test_environments_of_different_bounds(self, observation, action, words):
        makers = [functools.partial(Bounded, observation(k), action(0)) for k in (0, 1)]
        vector_env = SyncVectorEnv(makers, observation_mode="different", autoreset_mode=AutoresetMode.DISABLED)
        # Gymnasium lets only observations differ; other vector environments may do the same with actions.
        vector_env.action_space = gym.vector.utils.batch_differing_spaces([action(0), action(1)])
        with pytest.raises(EnvError) as caught:
            Environments(vector_env)
        assert words in str(caught.value)
        assert "must have the same bounds" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "spaces_of_two", [(Discrete(3), Discrete(4)), (MultiDiscrete([2, 3]), MultiDiscrete([2, 4]))]
    )
    def test_different_choices(self, spaces_of_two):
        batched = gym.vector.utils.batch_differing_spaces(list(spaces_of_two))
        assert differing_environments(batched, spaces_of_two[0], 2) == ("", 1)

    @settings(max_examples=30)
    @given(space=OBSERVATION_SPACES, num_envs=st.integers(1, 4))
    def test_a_batch_of_any_space_agrees(self, space, num_envs):
        assert differing_environments(batch_space(space, num_envs), space, num_envs) is None
