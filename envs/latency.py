"""Latency: an easy game inside a simulator that waits, to measure the cost of slow and uneven simulators.

Each step sleeps without using a core, like a step that waits for a simulator in another process or on another machine.
`LatencyVectorEnv` waits once a step for all its environments and is slow or not as a whole: with one vector environment
per actor, whole actors are slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = np.ndarray[Any, Any]

CHOICES = 4
EPISODE_STEPS = 20


@dataclass(frozen=True)
class StepTime:
    """The duration of a step.

    Attributes:
        step_time: Mean in seconds, at least 0.
        tail: None for steps of equal length. A number above 1 is the exponent of a Pareto distribution with that mean;
            the smaller, the heavier its tail (up to 2, the variance is infinite).
        slow_fraction: The part of all seeds, from 0 to 1, that make an environment slow.
        slow_factor: The mean of slow environments, as a multiple of `step_time`, at least 1.

    Raises ValueError for a value out of its range.
    """

    step_time: float = 0.001
    tail: float | None = None
    slow_fraction: float = 0.0
    slow_factor: float = 100.0

    def __post_init__(self) -> None:
        if not 0 <= self.step_time < np.inf:
            raise ValueError(f"`step_time` must be at least 0. Received: step_time={self.step_time}")
        if self.tail is not None and not self.tail > 1:
            raise ValueError(f"`tail` must be above 1, or the mean is infinite. Received: tail={self.tail}")
        if not 0 <= self.slow_fraction <= 1:
            raise ValueError(f"`slow_fraction` must be from 0 to 1. Received: slow_fraction={self.slow_fraction}")
        if not 1 <= self.slow_factor < np.inf:
            raise ValueError(f"`slow_factor` must be at least 1. Received: slow_factor={self.slow_factor}")

    def is_slow(self, seed: int) -> bool:
        """Return True if `seed` makes an environment slow; search the seeds for a run with exactly one slow actor."""
        return bool(np.random.default_rng([seed, 0x510]).random() < self.slow_fraction)

    def draw(self, generator: np.random.Generator, slow: bool) -> float:
        """Return the seconds of one step."""
        mean = self.step_time * (self.slow_factor if slow else 1.0)
        if self.tail is None:
            return mean
        shortest = mean * (self.tail - 1) / self.tail
        return shortest * (1.0 + float(generator.pareto(self.tail)))


class LatencyEnv(gym.Env[Array, np.int64]):
    """Shows four numbers and asks for the index of the largest, twenty times; each step waits.

    Observation: float32 [4] in [-1, 1), new ones each step. Reward: 1 for the largest, else 0. The episode terminates
    after 20 steps. Returns: 20 at best, 5 at random.

    The seed of a reset makes the environment slow or not (`StepTime.is_slow`); without one it isn't. The observations
    depend only on the seed, not on the waiting.

    Args:
        render_mode: None; there is nothing to draw.
        step_time: The attributes of `StepTime`, by name.

    Raises ValueError for a value out of its range.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, **step_time: Any) -> None:
        _check_not_rendered(render_mode)
        self.step_time = StepTime(**step_time)
        self.observation_space = observation_space()
        self.action_space = Discrete(CHOICES)
        self.slow = False
        self._waits = np.random.default_rng()
        self._shown = np.zeros(CHOICES, dtype=np.float32)
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.slow = self.step_time.is_slow(seed)
            self._waits = self.np_random.spawn(1)[0]
        self._elapsed = 0
        self._shown = show(self.np_random)
        return self._shown.copy(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_time.draw(self._waits, self.slow))
        reward = float(action == self._shown.argmax())
        self._elapsed += 1
        self._shown = show(self.np_random)
        return self._shown.copy(), reward, self._elapsed == EPISODE_STEPS, False, {}


class LatencyVectorEnv(VectorEnv[Array, Array, Array]):
    """`num_envs` games in one simulator: a step waits once for all, and the seed makes all of them slow or none.

    Autoreset is DISABLED. The other arguments are those of `LatencyEnv`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **step_time: Any) -> None:
        _check_not_rendered(render_mode)
        if num_envs < 1:
            raise ValueError(f"`num_envs` must be at least 1. Received: num_envs={num_envs}")
        self.num_envs = num_envs
        self.step_time = StepTime(**step_time)
        self.single_observation_space = observation_space()
        self.single_action_space = Discrete(CHOICES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.slow = False
        self._waits = np.random.default_rng()
        self._shown = np.zeros((num_envs, CHOICES), dtype=np.float32)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.slow = self.step_time.is_slow(seed)
            self._waits = self.np_random.spawn(1)[0]
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        self._elapsed[mask] = 0
        self._shown[mask] = show(self.np_random, int(mask.sum()))
        return self._shown.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        time.sleep(self.step_time.draw(self._waits, self.slow))
        reward = (actions == self._shown.argmax(axis=1)).astype(np.float64)
        self._elapsed += 1
        self._shown = show(self.np_random, self.num_envs)
        terminated = self._elapsed == EPISODE_STEPS
        return self._shown.copy(), reward, terminated, np.zeros(self.num_envs, dtype=bool), {}


def observation_space() -> Box:
    """Return the space of four numbers in [-1, 1]."""
    return Box(-1.0, 1.0, (CHOICES,), np.float32)


def show(generator: np.random.Generator, *rows: int) -> Array:
    """Draw new numbers [*rows, 4] float32."""
    return generator.uniform(-1.0, 1.0, (*rows, CHOICES)).astype(np.float32)


def _check_not_rendered(render_mode: str | None) -> None:
    if render_mode is not None:
        raise ValueError(f"`render_mode` must be None: nothing is drawn. Received: render_mode={render_mode!r}")
