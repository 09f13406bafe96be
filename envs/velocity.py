"""Environments whose observations lack the velocities: a policy needs memory to tell where things are going."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

Array = np.ndarray[Any, Any]

POSITIONS: dict[str, tuple[int, ...]] = {
    "CartPole-v1": (0, 2),  # the cart's place, the pole's angle
    "Pendulum-v1": (0, 1),  # cosine and sine of the angle
    "LunarLander-v3": (0, 1, 4, 6, 7),  # the lander's place, its angle, the legs' contacts
    "MountainCarContinuous-v0": (0,),  # the car's place
}
"""The entries of observations that aren't velocities, by id."""


class WithoutVelocity(gym.ObservationWrapper[Array, Any, Array]):
    """Keeps some entries of a vector observation. indices: Those that stay."""

    def __init__(self, env: gym.Env[Array, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        self._indices = list(indices)
        self.observation_space = Box(space.low[self._indices], space.high[self._indices], dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        return observation[self._indices]


def make(env_id: str, **kwargs: Any) -> gym.Env[Array, Any]:
    """Make an environment of `POSITIONS`, without its time limit, which the id of the new one has."""
    env = gym.make(env_id, max_episode_steps=-1, disable_env_checker=True, **kwargs)
    return WithoutVelocity(env, POSITIONS[env_id])
