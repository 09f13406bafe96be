"""Action masks from environments: in observations and infos, in every autoreset mode, and what is refused."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings, strategies as st

from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.serial import SerialVectorEnv
from actor_learner.spaces.spaces import Spaces
from tests.support.scripted_envs import MODES, Arrays, Script, refusal, sync

ACTIONS = 4


def allowed(step, episode):
    """The mask of that observation: one action, another each time, is forbidden, and now and then all but one."""
    mask = np.arange(ACTIONS) != (step + episode) % ACTIONS
    return mask if (step + episode) % 3 else ~mask


class Masked(Script):
    """Gives masks in its infos, or in its observation; of the last one of an episode it allows nothing."""

    def __init__(self, episodes, *, leaf=False, form=lambda mask: mask.astype(np.int8), spoil=None, last_too=False):
        super().__init__(episodes)
        self.last_too = last_too  # whether the last observations allow something
        self.action_space = Discrete(ACTIONS)
        self.leaf, self.form, self.spoil = leaf, form, spoil
        if leaf:
            self.observation_space = Dict(action_mask=MultiBinary(ACTIONS), count=Box(-99, 99, (2,)))

    def mask(self):
        length, *_ = self.episodes[self.episode % len(self.episodes)]
        ended = self.count >= length and not self.last_too
        mask = np.zeros(ACTIONS, bool) if ended else allowed(self.count, self.episode)
        return self.form(mask) if self.spoil is None else self.spoil(self.form(mask), self.count)

    def observation(self):
        own = super().observation()
        return {"count": own, "action_mask": self.mask()} if self.leaf else own

    def info(self):
        mask = None if self.leaf else self.mask()
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, self.info()

    def step(self, action):
        *results, info = super().step(action)
        return (*results, {**info, **self.info()})


class Methodical(Masked):
    """Gives its masks by the method of sb3-contrib's environments."""

    def info(self):
        return {}

    def action_masks(self):
        return self.mask()


def counts(environments, observation):
    """(step, episode) of each environment, from its observation."""
    return observation[-1].astype(int).tolist()


def make(mode, scripts, kind=Masked, **kwargs):
    def maker(script):
        return lambda: gym.Wrapper(kind(script, **kwargs))

    makers = [maker(script) for script in scripts]
    if mode == "serial":
        return Environments(SerialVectorEnv([maker() for maker in makers]), name="Masked-v0")
    return Environments(sync(makers, mode), name="Masked-v0")


class TestMasks:
    @settings(deadline=None, max_examples=30)
    @given(
        scripts=st.lists(
            st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3), min_size=1, max_size=3
        ),
        mode=st.sampled_from([*MODES, "serial"]),
        source=st.sampled_from([{}, {"leaf": True}, {"kind": Methodical}]),
    )
    def test_each_row_that_acts_has_the_mask_of_its_observation(self, scripts, mode, source):
        """The last observations allow nothing, so a mask of the old episode would be an error."""
        scripts = [[(length, cut, not cut) for length, cut in script] for script in scripts]
        environments = make(mode, scripts, **source)
        observation = environments.reset(0)
        assert environments.spaces.masked
        acts = np.ones(len(scripts), bool)
        for _ in range(15):
            mask = environments.action_mask
            assert (mask.dtype, mask.shape) == (bool, (len(scripts), ACTIONS))
            for row, (step, episode) in enumerate(counts(environments, observation)):
                expected = allowed(step, episode) if acts[row] else np.ones(ACTIONS, bool)
                np.testing.assert_array_equal(mask[row], expected)
            transition = environments.step(np.zeros(len(scripts), np.int64))
            observation = transition.observation
            ended = transition.terminated | transition.truncated
            acts = ~ended if mode is AutoresetMode.NEXT_STEP else np.ones(len(scripts), bool)

    @pytest.mark.parametrize("mode", [*MODES, "serial"])
    @pytest.mark.parametrize("source", [{}, {"leaf": True}, {"kind": Methodical}])
    def test_the_masks_of_last_observations(self, mode, source):
        """Where an episode was cut off, and the environment gives one; a method is called before actions alone."""
        scripts = [[(2, False, True), (3, False, True)], [(3, True, False)]]
        environments = make(mode, scripts, last_too=True, **source)
        observation = environments.reset(0)
        found = 0
        for _ in range(12):
            np.testing.assert_array_equal(environments.action_mask[1].any(), True)
            transition = environments.step(np.zeros(2, np.int64))
            if transition.truncated[0]:
                step, episode = counts(environments, transition.final_observation)[0]
                unknown = source == {"kind": Methodical}
                expected = np.zeros(ACTIONS, bool) if unknown else allowed(step, episode)
                np.testing.assert_array_equal(environments.final_mask[0], expected)
                shown = expected if mode is AutoresetMode.NEXT_STEP else environments.action_mask[0]
                np.testing.assert_array_equal(environments.shown_mask[0], shown)
                assert not environments.final_mask[1].any()
                found += 1
            else:
                assert environments.shown_mask is environments.action_mask
            observation = transition.observation
        assert found > 2
        assert len(observation[-1]) == 2

    @pytest.mark.parametrize(
        "final_info",
        [None, [{}], {"action_mask": np.ones((1, 9))}, {"action_mask": np.ones((2, 4)), "_action_mask": [True] * 3}],
    )
    def test_a_mask_of_last_observations_that_cannot_be_read_is_unknown(self, final_info):
        environments = make(AutoresetMode.SAME_STEP, [[(2, False, True)], [(5, False, True)]], last_too=True)
        environments.reset(0)
        step = environments.vector_env.step
        replaced = {"final_info": final_info}
        environments.vector_env.step = lambda action: (*(found := step(action))[:4], {**found[4], **replaced})
        for _ in range(2):
            transition = environments.step(np.zeros(2, np.int64))
        assert transition.truncated.tolist() == [True, False]
        assert not environments.final_mask.any()

    def test_a_mask_stays_when_the_environment_changes_its_array(self):
        class Reusing(Masked):
            def mask(self):
                self.array = getattr(self, "array", np.zeros(ACTIONS, np.int8))
                self.array[:] = allowed(self.count, self.episode)
                return self.array

        environments = Environments(SerialVectorEnv([Reusing([(9, True, False)])]))
        environments.reset(0)
        before = environments.action_mask
        kept = before.copy()
        environments.step(np.zeros(1, np.int64))
        np.testing.assert_array_equal(before, kept)
        assert not np.array_equal(before, environments.action_mask)

    def test_the_mask_stays_in_the_observation_and_is_that_of_the_last_reset(self):
        environments = make("serial", [[(5, True, False)]], leaf=True)
        environments.reset(0)
        environments.step(np.zeros(1, np.int64))
        mask, _ = environments.reset(0)
        assert mask.dtype == np.int8
        np.testing.assert_array_equal(mask, environments.action_mask)
        np.testing.assert_array_equal(mask[0], allowed(0, 1))


class TestForms:
    """The nests that Gymnasium's own merging and ours make of one environment's mask."""

    @pytest.mark.parametrize("mode", ["serial", AutoresetMode.NEXT_STEP])
    @pytest.mark.parametrize(
        ("space", "given"),
        [
            (MultiDiscrete([2, 2]), np.array([1, 0, 0, 1], np.int8)),
            (MultiDiscrete([2, 2]), (np.array([1, 0]), np.array([0, 1]))),
            (Tuple([Discrete(2), MultiDiscrete([2])]), (np.array([1, 0]), (np.array([0, 1]),))),
            (Dict(a=Discrete(2), b=Box(-1, 1), c=Discrete(2)), {"a": np.array([1, 0]), "c": np.array([0, 1])}),
            (Dict(a=Discrete(2), c=Dict(d=Discrete(2))), {"a": np.array([1, 0]), "c": {"d": np.array([0, 1])}}),
            (Discrete(4), [True, False, False, True]),
            (Discrete(4), np.array([1.0, 0.0, 0.0, 1.0])),
        ],
    )
    def test_every_form_of_one_mask(self, space, given, mode):
        class Formed(Masked):
            def __init__(self):
                super().__init__([(3, True, False)])
                self.action_space = space

            def mask(self):
                return given

        makers = [Formed, Formed]
        vector_env = SerialVectorEnv([Formed(), Formed()]) if mode == "serial" else sync(makers, mode)
        environments = Environments(vector_env)
        environments.reset(0)
        action = vector_env.action_space.sample()
        for _ in range(3):
            assert environments.action_mask.tolist() == [[True, False, False, True]] * 2
            environments.step(action)

    @pytest.mark.parametrize("mode", ["serial", AutoresetMode.DISABLED])
    def test_a_part_that_one_environment_leaves_out_is_allowed(self, mode):
        def maker(parts):
            env = Masked([(9, True, False)], form=lambda _: parts)
            env.action_space = Dict(a=Discrete(2), b=Discrete(2))
            return env

        one, other = {"a": np.array([1, 0]), "b": np.array([0, 1])}, {"b": np.array([1, 0])}
        envs = [maker(one), maker(other)]
        vector_env = SerialVectorEnv(envs) if mode == "serial" else sync([lambda env=env: env for env in envs], mode)
        environments = Environments(vector_env)
        environments.reset(0)
        assert environments.action_mask.tolist() == [[True, False, False, True], [True, True, True, False]]

    def test_a_nested_mask_leaf(self):
        class Nested(Script):
            def observation(self):
                return {"action_mask": {"a": np.array([1, 0]), "b": np.array([0, 1])}, "x": np.zeros(1, np.float32)}

        mask = Dict(a=MultiBinary(2), b=MultiBinary(2))
        env = Nested([(5, True, False)], Dict(action_mask=mask, x=Box(-1, 1, (1,))))
        env.action_space = Dict(b=Discrete(2), a=Discrete(2))
        environments = Environments(SerialVectorEnv([env]))
        environments.reset(0)
        expected = Spaces(None, env.action_space).masks.read({"a": [[1, 0]], "b": [[0, 1]]}, 1)
        np.testing.assert_array_equal(environments.action_mask, expected)

    def test_infos_of_a_native_environment_without_flags(self):
        environments = Environments(Arrays(infos={}, reset_infos={"action_mask": np.array([[1, 0], [0, 1]])}))
        environments.reset(0)
        assert environments.action_mask.tolist() == [[True, False], [False, True]]


class TestRefused:
    @pytest.mark.parametrize("mode", ["serial", *MODES])
    @pytest.mark.parametrize("when", [0, 2])
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            (np.zeros(ACTIONS, np.int8), "must allow at least one action. Received: none allowed in environment 1"),
            (np.full(ACTIONS, 2, np.int8), "must hold booleans, or 0 and 1. Received: dtype=int8, 2"),
            (None, "must come with every observation, from every environment, or never. Received: none"),
        ],
    )
    def test_masks_of_one_environment(self, mode, wrong, words, when):
        spoilt = functools.partial(Masked, spoil=lambda mask, count: wrong if count == when else mask)
        makers = [functools.partial(kind, [(5, True, False)]) for kind in (Masked, spoilt)]
        vector_env = SerialVectorEnv([maker() for maker in makers]) if mode == "serial" else sync(makers, mode)
        message = refusal(Environments(vector_env, name="Masked-v0"), 3)
        assert words in message
        assert f"environment 1 of env `Masked-v0`, at step {when} of its episode (env step {when})" in message
        assert "`info['action_mask']`" in message

    def test_masks_of_a_method_are_read_and_checked(self):
        arrays = Arrays(infos={}, reset_infos={})
        arrays.action_masks = lambda: np.array([[1, 0], [0, 1]])
        environments = Environments(arrays)
        environments.reset(0)
        assert environments.action_mask.tolist() == [[True, False], [False, True]]

        spoilt = make("serial", [[(5, True, False)]], Methodical, spoil=lambda mask, count: mask * (count != 1))
        assert "`action_masks()` must allow at least one action. Received: none allowed in env" in refusal(spoilt, 1)
        raising = make("serial", [[(5, True, False)]], Methodical, form=lambda mask: mask / "x")
        with pytest.raises(EnvError, match="^`action_masks` of the environments raised"):
            raising.reset(0)

    @pytest.mark.parametrize(
        ("name", "value", "what"),
        [
            ("action_masks", property(lambda env: env.mask()), "an attribute"),
            ("action_masks", lambda env, observation: env.mask(), "a method with arguments"),
            ("action_mask", lambda env: env.mask(), "an attribute"),
        ],
    )
    def test_masks_that_are_not_read_are_named(self, name, value, what):
        kind = type("Other", (Masked,), {"info": lambda env: {}, name: value})
        environments = make("serial", [[(5, True, False)]], kind)
        with pytest.warns(UserWarning, match=rf"^Action masks aren't used: .*Received: {what}, {name}$"):
            environments.reset(0)
        assert environments.action_mask is None

    def test_a_later_choice(self):
        env = Masked([(5, True, False)], form=lambda _: np.array([1, 1, 0, 0]))
        env.action_space = MultiDiscrete([2, 2])
        assert "at least one action for choice 1." in refusal(Environments(SerialVectorEnv([env])))

    LATE = "`info['action_mask']` must be present from the first reset on, or never. Received: a mask of"

    @pytest.mark.parametrize("mode", ["serial", *MODES])
    @pytest.mark.parametrize(
        ("given", "steps", "words"),
        [
            (lambda count: count != 2, 3, "must come with every observation"),
            (lambda count: count > 0, 1, LATE),
            (lambda count: count == 2, 2, LATE),  # within an episode
            (lambda count: count == 3, 3, LATE),  # with the step that ends it
        ],
    )
    def test_masks_that_are_gone_or_there_later(self, mode, given, steps, words):
        scripts = [[(3, True, False)], [(9, True, False)]]
        environments = make(mode, scripts, spoil=lambda mask, count: mask if given(count) else None)
        message = refusal(environments, steps)
        assert words in message
        assert "of env `Masked-v0`, at step " in message

    @pytest.mark.parametrize("first", [False, True])
    def test_masks_that_only_the_first_or_only_a_later_reset_gives(self, first):
        def spoil(mask, count):
            self.resets += count == 0
            later = count == 0 and self.resets > 2
            return mask if later != first else None

        self.resets = 0
        message = refusal(make("serial", [[(2, True, False)], [(9, True, False)]], spoil=spoil), 2)
        assert f"{'none' if first else 'or never. Received: a mask'} of environment 0 of env `Masked-v0`" in message

    @pytest.mark.parametrize("leaf", [True, False])
    @pytest.mark.parametrize("space", [Box(-1, 1, (2,)), MultiBinary(ACTIONS)])
    def test_an_action_space_without_choices(self, space, leaf):
        env = Masked([(5, True, False)], leaf=leaf)
        env.action_space = space
        with pytest.raises(EnvError, match="needs an action space with a Discrete or MultiDiscrete choice. Received: "):
            Environments(SerialVectorEnv([env])).reset(0)

    def test_a_method_whose_actions_a_wrapper_changes(self):
        class Fewer(gym.ActionWrapper):
            def __init__(self, env):
                super().__init__(env)
                self.action_space = Discrete(2)

        class Unmasked(Fewer):
            action_masks = None

        def environments(wrapper):
            return Environments(sync([lambda: wrapper(Methodical([(5, True, False)]))], AutoresetMode.NEXT_STEP))

        with pytest.raises(EnvError, match=r"`action_masks` of Methodical is for its own .* changed to Discrete\(2\)"):
            environments(Fewer)
        assert not environments(Unmasked).spaces.masked

    def test_a_mask_leaf_of_another_size(self):
        env = Masked([(5, True, False)], leaf=True)
        env.action_space = Discrete(7)
        with pytest.raises(EnvError, match=r"`Masked`: `observation\['action_mask'\]` must have 7 entries"):
            Environments(SerialVectorEnv([env]))
