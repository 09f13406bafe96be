"""Memory: a cue at the first step and a question about it at the last, which only a policy with memory can answer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

Array = np.ndarray[Any, Any]


class MemoryEnv(gym.Env[Array, np.int64]):
    """Shows one of `cues` cues, then nothing for `delay` steps, then asks which it was.

    Observation: float32 [cues + 1], the cue one-hot at the first step, 1 in the last entry at the question, else 0.
    Action: a cue; only the answer to the question counts, and no action changes the observations, so the environment
    can't serve as a memory. Reward: 1 for the right answer, else 0. The episode terminates there, after `delay + 2`
    steps, with `info["is_success"]`.

    Returns: 1 at best. Without memory `1 / cues`, like a random policy: the answer can't depend on the cue. A stack of
    `delay + 2` observations is memory enough.

    Args:
        cues: Number of cues, at least 2.
        delay: Steps between cue and question, at least 0; more are harder.
        render_mode: None; there is nothing to draw.

    Raises ValueError if one of these has another value.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, cues: int = 4, delay: int = 8, render_mode: str | None = None) -> None:
        if cues < 2:
            raise ValueError(f"`cues` must be at least 2. Received: cues={cues}")
        if delay < 0:
            raise ValueError(f"`delay` must be at least 0. Received: delay={delay}")
        if render_mode is not None:
            raise ValueError(f"`render_mode` must be None: nothing is drawn. Received: render_mode={render_mode!r}")
        self.cues = cues
        self.delay = delay
        self.observation_space = Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = Discrete(cues)
        self._cue, self._elapsed = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._elapsed = 0
        return self._show(self._cue), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._elapsed += 1
        if self._elapsed <= self.delay:
            return self._show(), 0.0, False, False, {}
        if self._elapsed == self.delay + 1:
            return self._show(self.cues), 0.0, False, False, {}
        right = bool(action == self._cue)
        return self._show(), float(right), True, False, {"is_success": right}

    def _show(self, entry: int | None = None) -> Array:
        observation = np.zeros(self.cues + 1, dtype=np.float32)
        if entry is not None:
            observation[entry] = 1.0
        return observation
