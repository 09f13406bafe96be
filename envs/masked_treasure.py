"""Masked treasure: a board with 64 actions, of which at most four are legal. It needs its action masks.

An action names the square to go to, as in chess programs, so the legal ones change with every move. With masks the task
is easy: go to the neighbour nearest to the treasure. Without them nearly every step is wasted.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

Array = np.ndarray[Any, Any]
Observation = Array | dict[str, Array]

STEP_COST = 0.02
CELL = 16  # pixels
RENDER_FPS = 10


class MaskedTreasureEnv(gym.Env[Observation, np.int64]):
    """Walks from a random square of a `size` by `size` board to a treasure in one of its corners.

    Observation: float32 [2 * size**2], the player's square one-hot, then the treasure's. Action: the square to go to,
    `size * row + column`; the two to four that share an edge with the player's are legal, any other wastes a step.
    Reward: 1 on reaching the treasure, which terminates the episode, else -0.02. The registered environment truncates
    after 50 steps.

    Returns on the 8 by 8 board: 0.878 at best, -0.70 with random legal actions, -0.97 with any random actions.

    Args:
        size: Squares along each edge, at least 2.
        mask_in: The place of the mask of legal actions, int8 [size**2]. `"info"`: `info["action_mask"]` of `reset`
            and `step`. `"observation"`: the observation is a dict, with `"action_mask"` beside `"observation"`. None:
            there is no mask, for comparison.
        render_mode: `"rgb_array"` or None.

    Raises ValueError if one of these has another value.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": RENDER_FPS}  # noqa: RUF012

    def __init__(self, size: int = 8, mask_in: str | None = "info", render_mode: str | None = None) -> None:
        if size < 2:
            raise ValueError(f"`size` must be at least 2. Received: size={size}")
        if mask_in not in ("info", "observation", None):
            raise ValueError(f"`mask_in` must be 'info', 'observation' or None. Received: mask_in={mask_in!r}")
        self.size = size
        self.mask_in = mask_in
        self.render_mode = render_mode
        squares = size * size
        board = Box(0.0, 1.0, (2 * squares,), np.float32)
        self.observation_space: gym.Space[Any] = board
        if mask_in == "observation":
            self.observation_space = Dict({"observation": board, "action_mask": MultiBinary(squares)})
        self.action_space = Discrete(squares)
        self._legal = (distances(size) == 1).astype(np.int8)
        self._player, self._treasure = 0, squares - 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        last = self.size**2 - 1
        corners = (0, self.size - 1, last - self.size + 1, last)
        self._treasure = corners[self.np_random.integers(4)]
        # A uniform draw from the other squares, counted from the one after the treasure.
        self._player = int(self._treasure + 1 + self.np_random.integers(last)) % (last + 1)
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._legal[self._player, action]:
            self._player = int(action)
        found = self._player == self._treasure
        return self._observation(), 1.0 if found else -STEP_COST, found, False, {"is_success": found, **self._info()}

    def render(self) -> Array | None:
        """Return the board as [height, width, 3] uint8: treasure yellow, player white, legal squares grey."""
        if self.render_mode != "rgb_array":
            return None
        squares = np.zeros((self.size**2, 3), dtype=np.uint8)
        squares[self.action_mask == 1] = 64
        squares[self._treasure] = 255, 215, 0
        squares[self._player] = 255
        return squares.reshape(self.size, self.size, 3).repeat(CELL, axis=0).repeat(CELL, axis=1)

    @property
    def action_mask(self) -> Array:
        """The legal actions as ones, int8 [size**2]."""
        mask: Array = self._legal[self._player].copy()
        return mask

    def _observation(self) -> Observation:
        board = np.zeros((2, self.size**2), dtype=np.float32)
        board[[0, 1], [self._player, self._treasure]] = 1.0
        if self.mask_in == "observation":
            return {"observation": board.reshape(-1), "action_mask": self.action_mask}
        return board.reshape(-1)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_mask} if self.mask_in == "info" else {}


def distances(size: int) -> Array:
    """Return the steps between every two squares of a board, [size**2, size**2]."""
    row, column = np.divmod(np.arange(size * size), size)
    between: Array = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    return between
