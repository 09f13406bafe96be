"""Wrappers of single environments, found by their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorWrapper

from actor_learner.environments.errors import EnvError, calling
from actor_learner.environments.lookup import closest, find_wrapper
from actor_learner.system.fields import misfit

Wrapper = functools.partial[Any]  # takes an environment


def find_wrappers(
    wrappers: Sequence[str | Callable[..., Any]], wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> tuple[Wrapper, ...]:
    """Return each wrapper with its keyword arguments, and build nothing.

    Args:
        wrappers: Names "module:Class", which are imported, or callables that take an environment.
        wrapper_kwargs: Class name -> keyword arguments, or keyword arguments for each wrapper in turn.

    Raises EnvError for a name that can't be imported, and for keyword arguments that no wrapper takes.
    """
    found = [find_wrapper(wrapper) if isinstance(wrapper, str) else wrapper for wrapper in wrappers]
    names = [_name(wrapper) for wrapper in found]
    if isinstance(wrapper_kwargs, Mapping):
        for name in wrapper_kwargs:
            if name not in names:
                near = closest(name, names)
                hint = f"did you mean {near!r}?" if near else f"the wrappers are {', '.join(names) or 'none'}."
                raise EnvError(f"`wrapper_kwargs` has no wrapper's name; {hint} Received: {name!r}")
        wrapper_kwargs = [wrapper_kwargs.get(name, {}) for name in names]
    elif wrapper_kwargs and len(wrapper_kwargs) != len(found):
        expected = f"a dict for each of the {len(found)} wrappers, or a dict by class name"
        raise EnvError(f"`wrapper_kwargs` must be {expected}. Received: {len(wrapper_kwargs)} dicts")
    given = wrapper_kwargs or [{}] * len(found)
    return tuple(_bound(wrapper, kwargs) for wrapper, kwargs in zip(found, given, strict=True))


def wrapped(env: Any, wrapper: Wrapper, where: str) -> Any:
    """Return the environment in its wrapper. where: the environment's name. Raises EnvError if that fails."""
    what = f"wrapper `{_name(wrapper.func)}` of env `{where}`"
    with calling(what, "can't be built:"):
        env = wrapper(env)
    if not isinstance(env, gym.Env):
        raise EnvError(f"{what} must return a gymnasium.Env. Received: {type(env).__module__}.{type(env).__qualname__}")
    if isinstance(env, gym.Wrapper) and "env" not in vars(env):
        raise EnvError(f"{what} must call super().__init__(env) in its __init__. Received: a wrapper without `env`")
    return env


def _bound(wrapper: Callable[..., Any], kwargs: Any) -> Wrapper:
    name = _name(wrapper)
    if not isinstance(kwargs, Mapping):
        raise EnvError(f"`wrapper_kwargs` of {name} must be a dict with names as keys. Received: {kwargs!r}")
    if isinstance(wrapper, type) and issubclass(wrapper, VectorWrapper):
        raise EnvError(
            "`wrappers` go around single environments, but this one takes a vector environment. "
            f"Received: {wrapper.__module__}:{name}"
        )
    if error := misfit(wrapper, None, **kwargs):
        raise EnvError(
            f"wrapper `{name}` can't be called with these `wrapper_kwargs`: {error}; at a shell they are "
            f"--wrapper-kwargs '{{\"{name}\": {{...}}}}'. Received: {dict(kwargs)}"
        ) from error
    return functools.partial(wrapper, **kwargs)


def _name(wrapper: Any) -> str:
    return str(getattr(wrapper, "__qualname__", type(wrapper).__qualname__)).rpartition(".")[2]
