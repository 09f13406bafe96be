"""Goal environments, whose rewards are those of goals that change: the smallest tasks for hindsight.

Observations are {"observation", "achieved_goal", "desired_goal"}. The reward is 0 where the goal is achieved, else -1.
`compute_reward` says what it would have been for other goals. Copy either for your own environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

Array = np.ndarray[Any, Any]


class BitFlippingEnv(gym.Env[dict[str, Array], np.int64]):
    """Bits, of which an action flips one, until they are those of a goal (arXiv:1707.01495, section 3.1).

    Without hindsight it isn't learned beyond some 10 bits, because chance hardly ever achieves a goal of `2 ** bits`.
    An episode is cut off after `bits` steps. `info["is_success"]` says whether the goal has been achieved in it so far.

    Returns: `-bits` without a success. Half of the bits are wrong at first, so that about `1 - bits / 2` is the best if
    episodes stop there. Else each further action must flip a bit away or back, and `1 - 3 / 4 * bits` is the best.

    Args:
        bits: Number of bits, at least 1.
        stop_at_success: True: an episode terminates once the goal is achieved.
        render_mode: None; there is nothing to draw.

    Raises ValueError if one of these has another value.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, bits: int = 12, stop_at_success: bool = False, render_mode: str | None = None) -> None:
        if bits < 1:
            raise ValueError(f"`bits` must be at least 1. Received: bits={bits}")
        if render_mode is not None:
            raise ValueError(f"`render_mode` must be None: nothing is drawn. Received: render_mode={render_mode!r}")
        self.bits, self.stop_at_success = bits, stop_at_success
        state = Box(0.0, 1.0, (bits,), np.float32)
        self.observation_space = Dict({"observation": state, "achieved_goal": state, "desired_goal": state})
        self.action_space = Discrete(bits)
        self._state = self._goal = np.zeros(bits, np.float32)
        self._elapsed, self._succeeded = 0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self._elapsed, self._succeeded = 0, False
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._state[action] = 1.0 - self._state[action]
        self._elapsed += 1
        reward = float(self.compute_reward(self._state, self._goal, {}))
        self._succeeded |= reward == 0.0
        terminated = self.stop_at_success and reward == 0.0
        truncated = self._elapsed >= self.bits and not terminated
        return self._observation(), reward, terminated, truncated, {"is_success": self._succeeded}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Return 0 where all bits are equal, else -1: `[...]` of goals `[..., bits]`."""
        different: Array = (achieved_goal != desired_goal).any(axis=-1)
        return -different.astype(np.float32)

    def _observation(self) -> dict[str, Array]:
        bits = self._state
        return {"observation": bits.copy(), "achieved_goal": bits.copy(), "desired_goal": self._goal.copy()}


class PointReachEnv(gym.Env[dict[str, Array], Array]):
    """A point in a square of side 2 that moves by at most 0.2 a step along each axis, to a goal.

    A goal is achieved within 0.1. Episodes are cut off by a time limit: 25 steps for
    `actor_learner/PointReach-v0`. `info["is_success"]` says whether the goal is achieved now.

    Args:
        render_mode: None; there is nothing to draw. Raises ValueError for another value.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ValueError(f"`render_mode` must be None: nothing is drawn. Received: render_mode={render_mode!r}")
        place = Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._place = self._goal = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        return self._observation(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        moved = self._place + 0.2 * np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self._place = np.clip(moved, -1.0, 1.0).astype(np.float32)
        reward = float(self.compute_reward(self._place, self._goal, {}))
        return self._observation(), reward, False, False, {"is_success": reward == 0.0}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Return 0 within 0.1 of the goal, else -1: `[...]` of goals `[..., 2]`."""
        distance = np.linalg.norm(np.asarray(achieved_goal) - desired_goal, axis=-1)
        far: Array = np.asarray(distance > 0.1)
        return -far.astype(np.float32)

    def _observation(self) -> dict[str, Array]:
        place = self._place
        return {"observation": place.copy(), "achieved_goal": place.copy(), "desired_goal": self._goal.copy()}
