"""ALE's native vector environment: raw rewards, options, whole games in reports, lost lives terminal for learning."""

from __future__ import annotations

from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from actor_learner import ActorPool
from actor_learner.environments.atari import LifeLoss
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.serial import SerialVectorEnv
from tests.support.processes import patience
from tests.support.scripted_envs import Arrays, Script

ALE = [pytest.mark.slow, pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale_py")]
THOROUGH = pytest.mark.thorough
MODES = ["NextStep", pytest.param("SameStep", marks=THOROUGH)]
PLAIN = {"repeat_action_probability": 0.0, "noop_max": 1, "use_fire_reset": False}


def make(game="Breakout", num_envs=2, **env_kwargs):
    return resolve_env(f"ALE/{game}-v5", env_kwargs).make(num_envs)


def emulator(environments):
    """The keyword arguments that reached ALE."""
    return environments.vector_env.unwrapped.spec.kwargs


def play(environments, steps, seed=0):
    """Transitions of random actions, and the finished episodes as (environment, return, length)."""
    random = np.random.default_rng(seed)
    environments.reset(seed + 7)
    transitions, episodes = [], []
    for _ in range(steps):
        transition = environments.step(random.integers(0, 4, environments.num_envs))
        transitions.append(transition._replace(reward=transition.reward.copy()))
        if transition.episodes is not None:
            rows, returns, lengths, _ = transition.episodes
            episodes += zip(rows.tolist(), returns.tolist(), lengths.tolist(), strict=True)
    return transitions, episodes


def raw_game(actions, frames_before):
    """Return and length (in actions of four frames) of the game that ALE's plain environment plays with these."""
    env = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    env.reset(seed=0)
    for _ in range(frames_before):
        env.step(0)
    total = 0.0
    for length, action in enumerate(actions, start=1):
        for _ in range(4):
            _, reward, over, _, _ = env.step(action)
            total += reward
            if over:
                return total, length
    raise AssertionError("the game did not end")


class TestOptions:
    pytestmark = ALE

    def test_rewards_are_raw_and_frames_are_stacked_first(self):
        environments = Environments(make())
        (observation,) = environments.reset(0)
        assert (observation.shape, observation.dtype) == ((2, 4, 84, 84), np.uint8)
        assert emulator(environments)["reward_clipping"] is False
        assert emulator(environments)["num_threads"] == 1
        assert emulator(environments)["repeat_action_probability"] == 0.25  # what the id says
        assert "num_threads" not in gym.spec("ALE/Breakout-v5").kwargs  # our defaults stay out of the spec


class TestEpisodes:
    pytestmark = ALE

    @pytest.mark.parametrize(
        ("mode", "lives"),
        [
            ("SameStep", {"episodic_life": True}),
            pytest.param("NextStep", {"life_loss_info": True}, marks=THOROUGH),
            pytest.param("NextStep", {}, marks=THOROUGH),
        ],
    )
    def test_reports_are_of_whole_games_whatever_a_lost_life_means(self, mode, lives):
        vector_env = make(autoreset_mode=mode, **PLAIN, **lives)
        frames_before = int(vector_env.reset(seed=0)[1]["episode_frame_number"][0])
        environments = Environments(vector_env)
        random = np.random.default_rng(1)
        environments.reset(0)
        actions, episodes, losses = [[], []], [], 0
        while len(episodes) < 2:
            chosen = random.integers(0, 4, 2)
            transition = environments.step(chosen)
            for row in np.flatnonzero(transition.valid):
                actions[row].append(chosen[row])
            losses += int(transition.terminated.sum())
            if transition.episodes is not None:
                rows, returns, lengths, _ = transition.episodes
                for row, total, length in zip(rows.tolist(), returns.tolist(), lengths.tolist(), strict=True):
                    played, actions[row] = actions[row], []
                    episodes.append((total, length))
                    assert (total, length) == raw_game(played, frames_before)
        assert losses == len(episodes) or (lives and losses >= 4 * len(episodes))

    def test_single_environments_say_it_too(self):
        """The same games with the same actions as without: only `terminated` differs, at the lost lives."""
        kwargs = {"repeat_action_probability": 0.0, "obs_type": "ram"}
        (plain, games), (split, games_again) = (
            play(Environments(resolve_env("ALE/Breakout-v5", {**kwargs, **lives}, "sync").make(2)), 400)
            for lives in ({}, {"episodic_life": True})
        )
        assert games == games_again
        assert len(games) >= 2
        ends, losses = (sum(int(one.terminated.sum()) for one in played) for played in (plain, split))
        assert ends == len(games)
        assert losses >= 4 * len(games)

    @pytest.mark.parametrize("mode", MODES)
    def test_frames_after_a_reset_are_of_the_new_game(self, mode):
        environments = Environments(make(autoreset_mode=mode, max_num_frames_per_episode=30, **PLAIN))
        (first,) = environments.reset(3)
        first = first.copy()
        fresh = []
        for _ in range(32):
            transition = environments.step(np.ones(2, np.int64))
            (observation,) = transition.observation
            if transition.truncated.any():
                assert transition.truncated.all()
                assert not np.array_equal(transition.final_observation[0], first)
                if mode == "NextStep":
                    (observation,) = environments.step(np.ones(2, np.int64)).observation
                fresh.append(observation.copy())
        assert len(fresh) >= 2
        for observation in fresh:
            # Without noise each game begins alike, with a stack of which only the newest frame is there.
            np.testing.assert_array_equal(observation, first)
            assert not observation[:, :3].any()
            assert observation[:, 3].any()


class Lives(Arrays):
    """Tells the lives that a test sets."""

    def reset(self, *, seed=None, options=None):
        self.infos = {"lives": np.array([3, 3])}
        return self.observation.copy(), self.infos


class TestLifeLoss:
    def environments(self, mode=AutoresetMode.NEXT_STEP):
        environments = Environments(LifeLoss(Lives(mode=mode)), name="Lives-v0")
        environments.reset(0)
        return environments

    def step(self, environments, lives, reward=(1.0, 1.0), *, terminated=(0, 0), truncated=(0, 0), **infos):
        env = environments.vector_env.env
        env.reward, env.terminated, env.truncated = np.array(reward), np.array(terminated) > 0, np.array(truncated) > 0
        env.infos = {"lives": np.array(lives), **infos}
        return environments.step(np.zeros(2, np.int64))

    def test_a_life(self):
        environments = self.environments()
        assert not self.step(environments, [3, 3]).terminated.any()
        transition = self.step(environments, [3, 2])
        assert transition.terminated.tolist() == [False, True]
        assert transition.valid.all()
        assert transition.episodes is None
        transition = self.step(environments, [3, 2])
        assert transition.valid.all()
        assert not transition.terminated.any()
        ended = self.step(environments, [3, 1], terminated=(False, True)).episodes
        assert (ended.indices.tolist(), ended.returns.tolist(), ended.lengths.tolist()) == ([1], [4.0], [4.0])

    def test_no_life_for_some_frames_before_the_end(self):
        environments = self.environments()
        assert not self.step(environments, [3, 0]).terminated.any()
        assert self.step(environments, [3, 0], terminated=(False, True)).terminated.tolist() == [False, True]

    def test_a_new_game_with_fewer_lives_has_lost_none(self):
        environments = self.environments()
        self.step(environments, [9, 9])
        self.step(environments, [9, 9], truncated=(True, False))
        transition = self.step(environments, [3, 9], reward=(0.0, 1.0))
        assert not transition.terminated.any()
        assert transition.valid.tolist() == [False, True]

    def test_a_life_lost_in_the_step_that_is_cut_off(self):
        environments = self.environments()
        transition = self.step(environments, [2, 3], truncated=(True, False))
        assert transition.truncated.tolist() == [True, False]
        assert not transition.terminated.any()
        assert transition.episodes.indices.tolist() == [0]

    def test_one_row_ends_while_another_loses_a_life(self):
        environments = self.environments(AutoresetMode.SAME_STEP)
        final = np.zeros((2, 3), np.float32)
        transition = self.step(environments, [3, 2], terminated=(True, False), final_obs=final)
        assert transition.terminated.tolist() == [True, True]
        assert transition.episodes.indices.tolist() == [0]
        assert self.step(environments, [3, 2]).valid.all()

    def test_an_environment_without_lives(self):
        environments = Environments(LifeLoss(Arrays()))
        with pytest.raises(EnvError, match=r"needs `lives` in every info. Received: \[\].*env `Arrays`"):
            environments.reset(0)

    @pytest.mark.parametrize("cut_off", [False, True])
    def test_single_environments_may_say_it_themselves(self, cut_off):
        """Also in the step that a time limit cuts off."""

        class Lives(Script):
            def step(self, action):
                observation, reward, terminated, truncated, info = super().step(action)
                lost = self.count == 2 or (cut_off and self.count == 5)
                return observation, reward, terminated or lost, truncated, {**info, "life_lost": lost}

        environments = Environments(SerialVectorEnv([Lives([(5, not cut_off, cut_off)])]))
        environments.reset(0)
        terminated, episodes = [], []
        for _ in range(5):
            transition = environments.step(np.zeros(1, np.int64))
            terminated.append(bool(transition.terminated[0]))
            episodes.append(transition.episodes)
        assert terminated == [False, True, False, False, True]
        assert episodes[:4] == [None] * 4
        assert episodes[4].lengths.tolist() == [5.0]


@ALE[0]
@ALE[1]
def test_an_actor_ends_without_a_word(tmp_path):
    """ALE's bindings report what outlives the interpreter, pages of it."""
    small = {"img_height": 36, "img_width": 36}
    with ActorPool(
        "ALE/Pong-v5", env_kwargs=small, num_actors=1, envs_per_actor=1, unroll_length=2, logs_dir=tmp_path
    ) as pool:
        pool.collect(timeout=patience(60))
    assert "leak" not in (tmp_path / "actor-0.log").read_text()
