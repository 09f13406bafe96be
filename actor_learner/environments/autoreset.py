"""The properties of a vector environment: its wrappers, its autoreset mode, and bounds that differ in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from actor_learner.spaces.structure import children

AnyVectorEnv = VectorEnv[Any, Any, Any]
MAX_SEED = 2**31  # seeds are below it: the limit of simulators in C
_MODES = {mode.value.lower(): mode for mode in AutoresetMode}


def declare(env: AnyVectorEnv, num_envs: int, mode: AutoresetMode, observation: Any, action: Any) -> None:
    """Set the number, the autoreset mode and the spaces of a vector environment, given those of one environment."""
    env.num_envs = num_envs
    env.metadata = {**env.metadata, "autoreset_mode": mode}
    env.single_observation_space, env.single_action_space = observation, action
    env.observation_space, env.action_space = batch_space(observation, num_envs), batch_space(action, num_envs)


def layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers from the outside in, the environment itself, then the same of each sub-environment."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env
    if isinstance(env, SyncVectorEnv):
        for child in env.envs:
            yield from layers(child)


def parse_autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """Return `"next_step"`, `"same_step"` or `"disabled"`, or Gymnasium's spellings, as an `AutoresetMode`."""
    if isinstance(mode, AutoresetMode):
        return mode
    try:
        return _MODES[mode.lower().replace("_", "")]
    except (KeyError, AttributeError):
        raise ValueError(
            f"`autoreset_mode` must be 'next_step', 'same_step' or 'disabled'. Received: autoreset_mode={mode!r}"
        ) from None


def declared_autoreset_mode(vector_env: AnyVectorEnv) -> AutoresetMode | None:
    """Return the mode that a VectorEnv declares on its instance or class, or None.

    `VectorEnv.metadata` doesn't count: `AtariVectorEnv` writes its mode there, and all other classes inherit it.
    """
    for layer in layers(vector_env):
        if not isinstance(layer, VectorEnv):
            break
        instance = vars(layer)
        sources = [instance, instance.get("metadata"), instance.get("_metadata")]
        sources += [vars(kind).get("metadata") for kind in type(layer).__mro__ if kind is not VectorEnv]
        for source in sources:
            mode = source.get("autoreset_mode") if isinstance(source, dict) else None
            if isinstance(mode, (str, AutoresetMode)):
                return parse_autoreset_mode(mode)
    return None


def differing_environments(batched: gym.Space[Any], single: gym.Space[Any], num_envs: int) -> tuple[str, int] | None:
    """Return leaf (`['camera'][0]`) and number of the first environment whose bounds differ from the first, or None."""
    parts = dict(children(batched))
    if parts and type(batched) is type(single):
        for key, own in children(single):  # Gymnasium sorts the keys of a batched Dict
            if key in parts and (difference := differing_environments(parts[key], own, num_envs)) is not None:
                return f"[{key!r}]{difference[0]}", difference[1]
        return None
    rows = list(batched.spaces) if isinstance(batched, Tuple) else _bounds(batched, single, num_envs)
    return next((("", number) for number, row in enumerate(rows) if not _equal(row, rows[0])), None)


def _bounds(batched: gym.Space[Any], single: gym.Space[Any], num_envs: int) -> list[Any]:
    """Return the bounds of each environment; [] if the batched space has none."""
    if (batched.shape or ())[:1] != (num_envs,) or batched.shape == single.shape:
        return []
    if isinstance(batched, Box):
        return list(zip(batched.low, batched.high, strict=True))
    return list(zip(batched.nvec, batched.start, strict=True)) if isinstance(batched, MultiDiscrete) else []


def _equal(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, one, other)) if isinstance(one, tuple) else bool(one == other)
