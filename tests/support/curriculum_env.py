"""An environment whose difficulty can be set while it runs, and whose rewards are that difficulty."""

import os
import signal

import gymnasium as gym
import numpy as np


class Curriculum(gym.Env):
    """Episodes of 10 steps; the rewards of each are the difficulty of the moment."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, difficulty=0):
        self.difficulty, self.options, self.steps, self.dies = difficulty, None, 0, False

    def set_difficulty(self, difficulty):
        if difficulty < 0:
            raise ValueError("there is no such difficulty")
        self.difficulty = difficulty

    def set_options(self, options):
        self.options = options

    def expect_options(self, options):
        assert self.options == options, (self.options, options)

    def die_once(self, marker):
        """At the next step, unless the file is there already."""
        self.dies = not os.path.exists(marker)
        open(marker, "w").close()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        return np.zeros(1, np.float32), float(self.difficulty), self.steps == 10, False, {}
