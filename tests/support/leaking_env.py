"""An environment that leaks."""

from __future__ import annotations

import os
from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from tests.faults.failing_envs import actor_name


class LeakingEnv(gym.Env):
    """Keeps `megabytes` more at each reset, for as long as its process lives.

    steps: length of an episode. switch: a file; where given, it leaks only while that exists. actors: who leaks; all
    if there are none.
    """

    _kept: ClassVar[list[bytes]] = []
    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2)

    def __init__(self, megabytes=10, steps=16, switch=None, actors=()):
        self.megabytes, self.steps, self.switch = megabytes, steps, switch
        self.leaks = not actors or actor_name() in actors
        self.step_number = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        if self.leaks and (self.switch is None or os.path.exists(self.switch)):
            self._kept.append(b"x" * (self.megabytes * 1_000_000))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.step_number += 1
        return np.zeros(2, np.float32), 1.0, False, self.step_number == self.steps, {}
