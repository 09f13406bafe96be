"""Catch: a ball falls, a paddle has to be under it. The smallest task from pixels.

From "Recurrent Models of Visual Attention" (arXiv:1406.6247), as in bsuite, with images large enough for the usual
convolutional networks. Copy it for your own environment: `CatchEnv` is plain Gymnasium, and `CatchVectorEnv` steps many
at once in NumPy, with the autoreset mode that costs no step.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = np.ndarray[Any, Any]

ROWS, COLUMNS, CELL = 12, 12, 5  # 60 by 60 pixels
BALL, PADDLE = 255, 128
RENDER_FPS = 10


def observation_space() -> Box:
    """Return the space of a grey image [60, 60, 1] uint8."""
    return Box(0, 255, (ROWS * CELL, COLUMNS * CELL, 1), np.uint8)


def draw(ball_row: Array, ball_column: Array, paddle: Array) -> Array:
    """Draw images [b, 60, 60, 1] uint8 of b boards; ball and paddle are cell numbers, [b] each."""
    boards = np.zeros((len(paddle), ROWS, COLUMNS), dtype=np.uint8)
    every = np.arange(len(paddle))
    boards[every, ROWS - 1, paddle] = PADDLE
    boards[every, ball_row, ball_column] = BALL
    return boards.repeat(CELL, axis=1).repeat(CELL, axis=2)[..., None]


class CatchEnv(gym.Env[Array, np.int64]):
    """A ball starts in a random column of the top row and falls one row a step.

    Action: 0 left, 1 stay, 2 right. Reward: 0 until the ball reaches the bottom row, then +1 if the paddle is under it,
    else -1. The episode terminates there, after 11 steps, with `info["is_success"]`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": RENDER_FPS}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = observation_space()
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._ball_row, self._ball_column, self._paddle = 0, 0, COLUMNS // 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball_row, self._paddle = 0, COLUMNS // 2
        self._ball_column = int(self.np_random.integers(COLUMNS))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), COLUMNS - 1)
        self._ball_row += 1
        if self._ball_row < ROWS - 1:
            return self._observation(), 0.0, False, False, {}
        caught = self._ball_column == self._paddle
        return self._observation(), 1.0 if caught else -1.0, True, False, {"is_success": caught}

    def render(self) -> Array | None:
        return self._observation().repeat(3, axis=-1) if self.render_mode == "rgb_array" else None

    def _observation(self) -> Array:
        board = (np.array([value]) for value in (self._ball_row, self._ball_column, self._paddle))
        image: Array = draw(*board)[0]
        return image


class CatchVectorEnv(VectorEnv[Array, Array, Array]):
    """`num_envs` games of Catch stepped together.

    Autoreset is DISABLED: `reset(options={"reset_mask": mask})` must restart ended games before the next step.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, render_mode: str | None = None) -> None:
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = observation_space()
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ball_row = np.zeros(num_envs, dtype=np.int64)
        self._ball_column = np.zeros(num_envs, dtype=np.int64)
        self._paddle = np.zeros(num_envs, dtype=np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start every game, or those of `options["reset_mask"]`, a bool array [num_envs]."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        self._ball_row[mask] = 0
        self._ball_column[mask] = self.np_random.integers(COLUMNS, size=int(mask.sum()))
        self._paddle[mask] = COLUMNS // 2
        return draw(self._ball_row, self._ball_column, self._paddle), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self._paddle = np.clip(self._paddle + actions - 1, 0, COLUMNS - 1)
        self._ball_row = self._ball_row + 1
        terminated = self._ball_row == ROWS - 1
        caught = terminated & (self._ball_column == self._paddle)
        reward = np.where(terminated, np.where(caught, 1.0, -1.0), 0.0)
        infos = {"is_success": caught, "_is_success": terminated} if terminated.any() else {}
        observation = draw(self._ball_row, self._ball_column, self._paddle)
        return observation, reward, terminated, np.zeros(self.num_envs, dtype=bool), infos
