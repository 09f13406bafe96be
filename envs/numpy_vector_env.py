"""The base of vector environments in NumPy: masked resets, a generator per environment, the time limit.

The state of all environments is one array with a row per quantity. A subclass defines how it starts, advances and is
observed.
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
    """`num_envs` environments stepped together, equal to as many of Gymnasium's single ones under a `TimeLimit`.

    Autoreset is DISABLED: `reset(options={"reset_mask": mask})` restarts environments that ended while the others go
    on. Each environment has its own generator, seeded like `SyncVectorEnv`'s, so its episodes don't depend on others.

    Attributes:
        single: One of Gymnasium's environments, the source of spaces and physical constants.
        single_class: Its class, which `options` go to.
        state_size: Quantities of a state, all float64.

    Raises ValueError if `num_envs` or `max_episode_steps` is below 1, or a `render_mode` is given.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    single_class: type[gym.Env[Any, Any]]
    state_size: int

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if render_mode is not None:
            raise ValueError(
                "Environments stepped together draw no pictures; make a single one with `gymnasium.make`. "
                f"Received: render_mode={render_mode!r}"
            )
        self.single = single = self.single_class(**options)
        self.num_envs = num_envs
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._limit = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._state = np.zeros((self.state_size, num_envs))
        self._observation = np.zeros(self.observation_space.shape or (), dtype=np.float32)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.ones(num_envs, dtype=bool)  # until the first reset

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start every environment, or those of `options["reset_mask"]`, a bool array [num_envs].

        Args:
            seed: Environment i gets `seed + i`, or entry i of a list; None keeps the current generators.
            options: `reset_mask`, and the bounds of Gymnasium's own environment.

        Raises ValueError for a mask that is no bool array [num_envs], or another number of seeds than environments.
        """
        options = options or {}
        rows = self._rows(options.get("reset_mask"))
        self._seed(seed, rows)
        low, high = self._bounds(options)
        unit = np.empty((len(rows), len(low)))
        for row, out in zip(rows.tolist(), unit, strict=True):
            self._generators[row].random(out=out)
        # As in `Generator.uniform`, which costs several times `random`, but for all rows at once.
        self._state[:, rows] = self._start((low + (high - low) * unit).T)
        self._elapsed[rows] = 0
        self._ended[rows] = False
        self._see(rows)
        return self._observation.copy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step every environment.

        Raises ValueError if `actions` has another shape than the action space, ResetNeeded if an environment was not
        reset after its end, or at the start.
        """
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(
                f"`actions` must have shape {self.action_space.shape}. Received: actions.shape={actions.shape}"
            )
        if self._ended.any():
            raise ResetNeeded(
                "Environments that have ended or not begun must be reset before the next step. "
                f"Received: {self._ended.sum()} of them, the first with number {self._ended.argmax()}"
            )
        reward, terminated = self._advance(actions)
        self._see(slice(None))
        self._elapsed += 1
        truncated = self._elapsed >= self._limit
        self._ended = terminated | truncated
        return self._observation.copy(), reward, terminated, truncated, {}

    @abstractmethod
    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        """Return the bounds [draws] of the uniform numbers for a first state."""

    def _start(self, drawn: Array) -> Array:
        """Return first states [state_size, b] for uniform numbers [draws, b]; by default the numbers."""
        return drawn

    @abstractmethod
    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Advance `self._state` by a step; return rewards [num_envs] float64 and terminations [num_envs] bool."""

    def _observe(self, state: Array) -> Array | tuple[Array, ...]:
        """Return the observation's columns, [b] each, for states [state_size, b]; by default the states."""
        return state

    def _see(self, rows: Array | slice) -> None:
        """Write the observations of these rows; a masked reset returns those of all rows."""
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
            raise ValueError(f"`seed` must hold {self.num_envs} seeds. Received: {len(seed)} seeds")
        for row in rows.tolist():
            own = None if seed is None else seed[row]
            if own is not None or self._generators[row] is None:
                self._generators[row], _ = seeding.np_random(own)
