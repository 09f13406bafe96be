"""Stacks of four frames of 84 x 84 pixels that cost nothing to make, and a network for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

STACK, SIZE, KINDS = 4, 84, 16


class Frames(VectorEnv):  # type: ignore[type-arg]
    """Shows frames out of a few, in turn: as stacks that move on by a frame, or (`stacked=False`) all new."""

    def __init__(self, num_envs: int, stacked: bool = True) -> None:
        self.num_envs, self._stacked, self._step = num_envs, stacked, 0
        self.single_observation_space = Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
        self.single_action_space = Discrete(6)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        frames = np.random.default_rng(0).integers(0, 256, (KINDS + STACK, SIZE, SIZE), np.uint8)
        self._observations = [np.repeat(frames[None, first : first + STACK], num_envs, 0) for first in range(KINDS)]

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observations[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._step += 1 if self._stacked else 5
        no = np.zeros(self.num_envs, bool)
        return self._observations[self._step % KINDS], np.zeros(self.num_envs), no, no, {}


def make(num_envs: int, stacked: bool = True) -> Frames:
    return Frames(num_envs, stacked)


def tiny(observation_space: Any, action_space: Any) -> Any:
    """Return a network that costs next to nothing: it looks at one pixel of each frame."""
    import keras

    image = keras.Input(observation_space.shape, dtype="uint8")
    h = keras.layers.Rescaling(1 / 255)(image[:, :, 0, 0])
    return keras.Model(image, (keras.layers.Dense(int(action_space.n))(h), keras.layers.Dense(1)(h)))
