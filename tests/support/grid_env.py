"""Grids of codes as environments give them: one-hot planes of bytes, or a picture beside a vector."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

SHAPES = {"planes": (4, 4, 16), "beside a vector": (16, 16, 3)}
SPACES = {
    "planes": Box(0, 1, SHAPES["planes"], np.uint8),
    "beside a vector": Dict(camera=Box(0, 255, SHAPES["beside a vector"], np.uint8), joints=Box(-1, 1, (2,))),
}


class GridEnv(gym.Env):
    """One square, in another place at each step, holds a code of its own; naming its quarter of the grid earns 1."""

    def __init__(self, kind, length=10):
        self._kind, self._length = kind, length
        self.observation_space, self.action_space = SPACES[kind], Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(action == self._quarter)
        self._steps += 1
        return self._observe(), reward, False, self._steps == self._length, {}

    def _observe(self):
        height, width, depth = SHAPES[self._kind]
        row, column = (int(self.np_random.integers(size)) for size in (height, width))
        self._quarter = 2 * (2 * row >= height) + (2 * column >= width)
        if self._kind == "planes":
            codes = self.np_random.integers(depth - 1, size=(height, width))
            codes[row, column] = depth - 1
            return (codes[..., None] == np.arange(depth)).astype(np.uint8)
        grid = self.np_random.integers(3, size=(height, width, depth)).astype(np.uint8)
        grid[row, column, 0] = 255
        return {"camera": grid, "joints": np.zeros(2, np.float32)}
