"""Environments for actors of a cluster: stacked frames, masks in a Dict, and one that does what a file says."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

SIZE, FRAMES = 12, 4


class FramesEnv(gym.Env):
    """Shows the last four of random frames; the first axis counts them. Episodes end after a drawn number of steps."""

    observation_space = Box(0, 255, (FRAMES, SIZE, SIZE), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 9))
        self.stack = np.repeat(self._frame(), FRAMES, axis=0)
        return self.stack.copy(), {}

    def step(self, action):
        self.left -= 1
        self.stack = np.concatenate([self.stack[1:], self._frame()])
        return self.stack.copy(), float(action), self.left == 0, False, {}

    def _frame(self):
        return self.np_random.integers(0, 256, (1, SIZE, SIZE), np.uint8)


class MaskedDictEnv(gym.Env):
    """A Dict observation and a mask in `info`; episodes are cut off."""

    observation_space = Dict({"position": Box(-1, 1, (3,), np.float32), "kind": Discrete(4)})
    action_space = Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), self._info()

    def step(self, action):
        self.steps += 1
        assert self.mask[action]
        return self._observation(), float(action), False, self.steps == 7, self._info()

    def _observation(self):
        position = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"position": position, "kind": int(self.np_random.integers(4))}

    def _info(self):
        self.mask = self.np_random.random(5) < 0.5
        self.mask[self.np_random.integers(5)] = True
        return {"action_mask": self.mask.copy()}


class ObedientEnv(gym.Env):
    """Does at its next step what the file says: "raise", "exit" or "print"; its observation counts steps."""

    observation_space = Box(0, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, file):
        self.file, self.level = Path(file), 0

    def set_level(self, level):
        self.level = level

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and (order := self._take_order()):
            if order == "raise":
                raise ValueError("as the file says")
            if order == "exit":
                os._exit(3)
            print("hello from", os.getpid())
            print("\n".join(["\U0001f600" * 60_000] * 40))  # far more than a message holds
        return np.full(1, self.steps, np.float32), float(self.level), self.steps == 10, False, {}

    def _take_order(self):
        """Returns the order, which only one environment takes."""
        try:
            own = self.file.rename(self.file.with_suffix(f".{os.getpid()}-{id(self)}"))
        except FileNotFoundError:
            return ""
        return own.read_text()


def needs_a_package():
    import no_such_simulator

    return no_such_simulator.make()
