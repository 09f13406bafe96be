"""How a vector environment resets: Gymnasium's autoreset modes, and environments that differ from each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from actor_learner.spaces import structure as spaces

if TYPE_CHECKING:
    _SyncVectorEnv = SyncVectorEnv[Any, Any]
else:  # older Gymnasium releases don't let this class be subscripted
    _SyncVectorEnv = SyncVectorEnv
AnyVectorEnv = VectorEnv[Any, Any, Any]
_MODES = {mode.value.lower(): mode for mode in AutoresetMode}


def layers(env: Any) -> Iterator[Any]:
    """An environment's wrappers from the outside in, then itself, then the same for the sub-environments it shows."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env
    if isinstance(env, SyncVectorEnv):
        for child in env.envs:
            yield from layers(child)


def parse_autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """`"next_step"`, `"same_step"` or `"disabled"`, or Gymnasium's own spellings, as an `AutoresetMode`."""
    if isinstance(mode, AutoresetMode):
        return mode
    try:
        return _MODES[mode.lower().replace("_", "")]
    except (KeyError, AttributeError):
        raise ValueError(
            f"`autoreset_mode` must be 'next_step', 'same_step' or 'disabled'. Received: autoreset_mode={mode!r}"
        ) from None


def declared_autoreset_mode(vector_env: AnyVectorEnv) -> AutoresetMode | None:
    """The mode that a VectorEnv declares on its instance or class; None where it declares none.

    `VectorEnv.metadata`, the base class's dictionary, is not asked: `AtariVectorEnv` writes its mode there, and every
    other VectorEnv of the process inherits it.
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
    """Where the space of a vector environment gives one environment other bounds than the first one; else None.

    Returns the leaf, as in `['camera'][0]`, and the number of the environment.
    """
    children = dict(spaces.children(batched))
    if children and type(batched) is type(single):
        for key, own in spaces.children(single):  # Gymnasium sorts the keys of a batched Dict
            found = differing_environments(children[key], own, num_envs) if key in children else None
            if found is not None:
                return f"[{key!r}]{found[0]}", found[1]
        return None
    rows = list(batched.spaces) if isinstance(batched, Tuple) else _bounds(batched, single, num_envs)
    others = (number for number, row in enumerate(rows) if not _same(row, rows[0]))
    number = next(others, None)
    return None if number is None else ("", number)


def _bounds(batched: gym.Space[Any], single: gym.Space[Any], num_envs: int) -> list[Any]:
    """The bounds of each environment; none where the batched space doesn't say."""
    if (batched.shape or ())[:1] != (num_envs,) or batched.shape == single.shape:
        return []
    if isinstance(batched, Box):
        return list(zip(batched.low, batched.high, strict=True))
    return list(zip(batched.nvec, batched.start, strict=True)) if isinstance(batched, MultiDiscrete) else []


def _same(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, one, other)) if isinstance(one, tuple) else bool(one == other)
