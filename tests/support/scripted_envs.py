"""Environments that do what a test tells them to, and a way to play them.

Here, because actors import the module that an environment is in, and a test's would load TensorFlow into each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from actor_learner.environments.errors import EnvError

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


class Deterministic(gym.Env):
    """Counts steps; ends, alternately by termination and truncation, after a length that depends on the episode."""

    observation_space = Box(-100, 100, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self):
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observation(), {}

    def _observation(self):
        return np.array([self.episode, self.steps], np.float32)

    def step(self, action):
        self.steps += 1
        ended = self.steps == 3 + self.episode % 4
        even = self.episode % 2 == 0
        return self._observation(), float(self.steps), ended and even, ended and not even, {}


class UsesTensorFlow(Deterministic):
    def __init__(self):
        import tensorflow  # noqa: F401

        super().__init__()


class BreaksOnce(Deterministic):
    """Raises where the marker isn't there yet."""

    def __init__(self, marker):
        super().__init__()
        self.marker = marker

    def step(self, action):
        if self.episode == 2 and not self.marker.exists():
            self.marker.touch()
            raise OSError("the simulator is gone")
        return super().step(action)


class Arrays(VectorEnv):
    """A native vector environment whose `step` returns what a test tells it to; `metadata` is the class's."""

    def __init__(
        self, num_envs=2, mode: Any = AutoresetMode.NEXT_STEP, observation_shape=(3,), infos=None, reset_infos=None
    ):
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
        self.reset_infos = reset_infos or {}

    def reset(self, *, seed=None, options=None):
        return self.observation.copy(), self.reset_infos

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
    (observation,) = environments.reset(seed)
    for _ in range(steps):
        before = observation.copy()
        (observation,), reward, terminated, truncated, valid, final, ended, _ = environments.step(choose(observation))
        assert not (terminated & truncated).any()
        assert (final is not None) == truncated.any()
        for index in np.flatnonzero(valid):
            last = tuple(final[0][index].tolist()) if truncated[index] else None
            row = Row(tuple(before[index].tolist()), *(x[index].item() for x in (reward, terminated, truncated)), last)
            rows[index].append(row)
        for index in np.flatnonzero(~valid):
            assert (reward[index], terminated[index], truncated[index]) == (0.0, False, False)
        if ended is not None:
            for place, index in enumerate(ended.indices):
                info = {key: values[place].item() for key, values in ended.info.items()}
                episodes[index].append((ended.returns[place].item(), ended.lengths[place].item(), info))
    return rows, episodes


def reset_and_step(environments, steps):
    environments.reset(0)
    for _ in range(steps):
        environments.step(np.zeros(environments.num_envs, np.int64))


def refusal(environments, steps=0):
    """The message with which the reset, or one of so many steps, is refused: one line that says what was received."""
    try:
        reset_and_step(environments, steps)
    except EnvError as error:
        message = str(error)
    else:
        raise AssertionError("nothing was refused")
    assert "\n" not in message
    assert "Received: " in message
    return message


def vector_step(environments, **changes):
    """One step of an `Arrays` environment after setting its arrays."""
    for name, value in changes.items():
        setattr(environments.vector_env, name, np.asarray(value) if name != "infos" else value)
    return environments.step(np.zeros(environments.num_envs, np.int64))
