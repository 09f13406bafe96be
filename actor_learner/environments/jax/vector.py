"""An environment in JAX as a Gymnasium vector environment: for evaluation, videos, and actors in processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode

from actor_learner.environments.autoreset import AnyVectorEnv, declare
from actor_learner.environments.jax.checks import check_env
from actor_learner.spaces.jax_env import JaxEnv
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY

_FPS = 30  # of an environment that names no number


FEW_ENDED_DIVISOR = 16
"""Few environments have ended if they are no more than one in so many."""


def reset_ended(reset: Callable[[Any], Any], done: Any, before: Any, *, expensive: bool, on_gpu: bool = False) -> Any:
    """Return `before`, with new episodes where `done [N]`.

    Args:
        reset: returns what `before` has for new episodes in these rows, an index `[K]` or a slice.
        done: `[N]`.
        before: states and observations, whose leaves begin with the axis `[N]`.
        expensive: True computes few resets where few environments ended. A cheap reset is computed for all of them.
        on_gpu: True computes cheap resets even where none ended: a GPU waits for the host to learn whether one did.
    """
    count = len(done)
    few = -(-count // FEW_ENDED_DIVISOR)

    def of_all() -> Any:
        return choose(done, reset(slice(None)), before)

    def of_few() -> Any:
        (rows,) = jnp.nonzero(done, size=few, fill_value=count)
        return replace_rows(count, before, rows, reset(jnp.minimum(rows, count - 1)))

    if not expensive:
        return of_all() if on_gpu else jax.lax.cond(done.any(), of_all, lambda: before)
    if few == count:
        return jax.lax.cond(done.any(), of_few, lambda: before)
    ended = done.sum()
    branch = (ended > 0).astype(jnp.int32) + (ended > few)
    return jax.lax.switch(branch, (lambda: before, of_few, of_all))


def choose(flags: Any, yes: Any, no: Any) -> Any:
    """Return the leaves of `yes` where `flags [N]`, those of `no` elsewhere. Keys of JAX may be among them.

    Leaves without the axis `[N]` keep the value of `no`: MuJoCo Warp has buffers that all environments share.
    """

    def where(yes: Any, no: Any) -> Any:
        if jnp.issubdtype(yes.dtype, jax.dtypes.prng_key):
            return _of_key_data(where, yes, no)
        if yes.shape[:1] != flags.shape:
            return no
        return jnp.where(flags.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)

    return jax.tree.map(where, yes, no)


def replace_rows(count: int, old: Any, rows: Any, new: Any) -> Any:
    """Return the leaves `[count, ...]` of `old` with `new [K, ...]` at `rows [K]`, but for rows that don't exist.

    Keys and leaves without the axis are treated as by `choose`.
    """

    def put(old: Any, new: Any) -> Any:
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            return _of_key_data(put, old, new)
        if old.shape[:1] != (count,) or new.shape[:1] != rows.shape:
            return old
        return old.at[rows].set(new, mode="drop")

    return jax.tree.map(put, old, new)


def _of_key_data(function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Return the keys whose numbers the function returns for those of two arrays of keys."""
    found = function(jax.random.key_data(one), jax.random.key_data(other))
    return jax.random.wrap_key_data(found, impl=jax.random.key_impl(one))


class JaxVectorEnv(AnyVectorEnv):
    """Steps on the CPU, and resets in the step of an end (SAME_STEP), with the last observations in `final_obs`."""

    def __init__(self, env: JaxEnv, num_envs: int, seed: int | None = None, render_mode: str | None = None) -> None:
        self._env = env
        facts = check_env(env, Spaces(env.observation_space, env.action_space))
        self.render_mode = render_mode if hasattr(env, "render") else None
        self.metadata = {"render_fps": _FPS, **getattr(env, "metadata", {}), "render_modes": ["rgb_array"]}
        declare(self, num_envs, AutoresetMode.SAME_STEP, env.observation_space, env.action_space)
        self._cpu = jax.devices("cpu")[0]
        self._begin, self._expensive_resets = jax.vmap(env.reset), facts.expensive_resets
        self._reset_all, self._step_all = jax.jit(self._reset), jax.jit(self._step)
        self._masks = jax.jit(jax.vmap(getattr(env, MASK_KEY))) if hasattr(env, MASK_KEY) else None
        self._state: Any = None
        self._key: Any = None
        self._seed = seed

    def _reset(self, key: Any) -> Any:
        return self._begin(jax.random.split(key, self.num_envs))

    def _step(self, key: Any, state: Any, action: Any) -> Any:
        key, of_step, of_reset = jax.random.split(key, 3)
        stepped = jax.vmap(self._env.step)(jax.random.split(of_step, self.num_envs), state, action)
        done = (stepped.terminated != 0) | (stepped.truncated != 0)
        before = stepped.state, stepped.observation

        def begin(rows: Any) -> Any:
            return self._begin(jax.random.split(of_reset, self.num_envs)[rows])

        after = reset_ended(begin, done, before, expensive=self._expensive_resets)
        mask = None if self._masks is None else self._masks(stepped.state)
        return key, *after, stepped._replace(state=None), mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, with numbers drawn from `seed`."""
        if seed is None and self._key is None:
            seed = self._seed
        with jax.default_device(self._cpu):
            if seed is not None or self._key is None:
                number = np.random.SeedSequence(seed).generate_state(1)[0]
                self._key = jax.random.key(int(number))
            self._key, own = jax.random.split(self._key)
            self._state, observation = self._reset_all(own)
        return jax.tree.map(np.asarray, observation), self._infos()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with jax.default_device(self._cpu):
            of_jax = jax.tree.map(jnp.asarray, actions)
            self._key, self._state, observation, stepped, mask = self._step_all(self._key, self._state, of_jax)
        terminated = np.asarray(stepped.terminated) != 0
        truncated = (np.asarray(stepped.truncated) != 0) & ~terminated
        infos, done = self._infos(), terminated | truncated
        if done.any():
            last = jax.tree.map(np.asarray, stepped.observation)
            final = np.full(self.num_envs, None, object)
            for row in np.flatnonzero(done).tolist():
                final[row] = jax.tree.map(lambda leaf, row=row: leaf[row], last)
            values = stepped.info if mask is None else {**stepped.info, MASK_KEY: mask}
            arrays = {name: np.asarray(value) for name, value in values.items()}
            flags = {f"_{name}": done for name in arrays}
            infos |= {"final_obs": final, "_final_obs": done, "final_info": {**arrays, **flags}, "_final_info": done}
        return jax.tree.map(np.asarray, observation), np.asarray(stepped.reward), terminated, truncated, infos

    def _infos(self) -> dict[str, Any]:
        if self._masks is None:
            return {}
        with jax.default_device(self._cpu):
            return {MASK_KEY: np.asarray(self._masks(self._state))}

    def render(self) -> Any:
        """Return a picture `[height, width, 3]` of each environment."""
        render = getattr(self._env, "render")  # noqa: B009
        return tuple(
            render(jax.tree.map(lambda leaf, row=row: _row(leaf, row), self._state)) for row in range(self.num_envs)
        )


def _row(leaf: Any, row: int) -> Any:
    """Return an environment's part of a leaf, as NumPy has it; keys stay JAX's."""
    return leaf[row] if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf[row])
