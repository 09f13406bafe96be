"""Environments that cost nothing and show frames of noise; actors import it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv


class NoiseFrames(VectorEnv[Any, Any, Any]):
    """Returns the same frames of noise, `[num_envs, 84, 84, 4]` bytes, at each step. No episode ends."""

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = Box(0, 255, (84, 84, 4), np.uint8), Discrete(6)
        self._frames = np.random.default_rng(0).integers(0, 256, (num_envs, 84, 84, 4), np.uint8)
        self._reward, self._flags = np.zeros(num_envs), np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._frames, {}

    def step(self, actions: Any) -> Any:
        return self._frames, self._reward, self._flags, self._flags, {}
