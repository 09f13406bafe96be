"""What vector environments written in NumPy share: masked resets, a generator per environment, the time limit.

A subclass holds the state of all its environments as one array with a row per quantity, and says how a state starts,
how it goes on and how it is seen. Everything that Gymnasium does around an environment stands here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = np.ndarray[Any, Any]
Seeds = int | Sequence[int | None] | None

NO_LIMIT = np.iinfo(np.int64).max


class NumpyVectorEnv(VectorEnv[Array, Array, Array]):
    """`num_envs` environments stepped together, equal to as many single ones of Gymnasium's under a `TimeLimit`.

    Autoreset is DISABLED: an environment that ended has to be started anew by `reset(options={"reset_mask": mask})`,
    while the others go on. Each environment draws from a generator of its own, seeded as `SyncVectorEnv` seeds it, so
    that its episodes don't depend on its neighbours.

    Attributes:
        single: One of Gymnasium's environments, which spaces and physical constants are read from.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(
        self,
        single: gym.Env[Any, Any],
        num_envs: int,
        max_episode_steps: int | None,
        render_mode: str | None,
        *,
        state_size: int,
    ) -> None:
        """Allocates `num_envs` states of `state_size` float64 numbers.

        Raises:
            ValueError: `num_envs` or `max_episode_steps` is below 1, or a `render_mode` is given.
        """
        _check_at_least_one("num_envs", num_envs)
        if max_episode_steps is not None:
            _check_at_least_one("max_episode_steps", max_episode_steps)
        if render_mode is not None:
            raise ValueError(
                "Environments stepped together draw no pictures; make a single one with `gymnasium.make`. "
                f"Received: render_mode={render_mode!r}"
            )
        self.single = single
        self.num_envs = num_envs
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._limit = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._state = np.zeros((state_size, num_envs))
        self._observation = np.zeros(self.observation_space.shape or (), dtype=np.float32)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.ones(num_envs, dtype=bool)  # none has been started yet

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts every environment, or those of `options["reset_mask"]`, a bool array [num_envs].

        Args:
            seed: Environment i gets `seed + i`, or entry i of a list; None goes on with the generators that there are.
            options: `reset_mask`, and the bounds that Gymnasium's own environment takes.

        Raises:
            ValueError: a mask that is no bool array [num_envs], or another number of seeds than environments.
        """
        options = options or {}
        rows = self._rows(options.get("reset_mask"))
        self._seed(seed, rows)
        low, high = self._bounds(options)
        unit = np.empty((len(rows), len(low)))
        for row, out in zip(rows.tolist(), unit, strict=True):
            self._generators[row].random(out=out)
        # What `Generator.uniform` does, but for all rows at once: it costs several times `random`.
        self._state[:, rows] = self._start((low + (high - low) * unit).T)
        self._elapsed[rows] = 0
        self._ended[rows] = False
        self._see(rows)
        return self._observation.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Steps every environment.

        Raises:
            ValueError: `actions` has another shape than the action space.
            ResetNeeded: an episode has ended or not begun, and its environment was not reset.
        """
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(
                f"`actions` must have shape {self.action_space.shape}. Received: actions.shape={actions.shape}"
            )
        if self._ended.any():
            raise ResetNeeded(
                "Environments that have ended or not begun must be reset before the next step. "
                f"Received: {self._ended.sum()} such, the first of them number {self._ended.argmax()}"
            )
        reward, terminated = self._advance(actions)
        self._see(slice(None))
        self._elapsed += 1
        truncated = self._elapsed >= self._limit
        self._ended = terminated | truncated
        return self._observation.copy(), reward, terminated, truncated, {}

    @abstractmethod
    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        """Lower and upper bounds [draws] of the uniform numbers that a state starts from."""

    def _start(self, drawn: Array) -> Array:
        """First states [state_size, b] from uniform numbers [draws, b]; by default just these."""
        return drawn

    @abstractmethod
    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Moves `self._state` one step on; returns rewards [num_envs] float64 and terminations [num_envs] bool."""

    @abstractmethod
    def _observe(self, state: Array) -> Array | tuple[Array, ...]:
        """The observation's columns, [b] each, from states [state_size, b]."""

    def _see(self, rows: Array | slice) -> None:
        """Writes the observations of these rows; they are kept, because a masked reset returns all of them."""
        for column, values in enumerate(self._observe(self._state[:, rows])):
            self._observation[rows, column] = values

    def _rows(self, mask: Any) -> Array:
        if mask is None:
            return np.arange(self.num_envs)
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(
                f"`options['reset_mask']` must be a bool array of shape ({self.num_envs},). "
                f"Received: dtype={mask.dtype}, shape={mask.shape}"
            )
        return np.flatnonzero(mask)

    def _seed(self, seed: Seeds, rows: Array) -> None:
        if isinstance(seed, (int, np.integer)):
            seed = range(int(seed), int(seed) + self.num_envs)
        if seed is not None and len(seed) != self.num_envs:
            raise ValueError(f"`seed` must hold {self.num_envs} seeds. Received: {len(seed)} of them")
        for row in rows.tolist():
            own = None if seed is None else seed[row]
            if own is not None or self._generators[row] is None:
                self._generators[row], _ = seeding.np_random(own)


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
