"""Videos of evaluated episodes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordVideo

from actor_learner.environments import EnvFactory, resolve_env


def recorded(
    env: str | Callable[..., Any],
    env_kwargs: Mapping[str, Any] | None,
    directory: str | os.PathLike[str],
    episodes: int,
) -> Callable[[], gym.Env[Any, Any]]:
    """A factory for `evaluate` whose environment writes its first `episodes` to `directory`, as *.mp4.

    The environment is built with `render_mode="rgb_array"`.

    Raises:
        ImportError: moviepy isn't installed.
        ValueError: `env` can't be resolved, or builds only whole vector environments.
    """
    if importlib.util.find_spec("moviepy") is None:
        raise ImportError("videos need moviepy: pip install 'actor-learner[video]'")
    kwargs = {**(env_kwargs or {}), "render_mode": "rgb_array"}
    factory = resolve_env(env, kwargs, "sync", check_pickle=False)
    return lambda: _record(factory, directory, episodes)


def _record(factory: EnvFactory, directory: str | os.PathLike[str], episodes: int) -> gym.Env[Any, Any]:
    source = factory.source
    if isinstance(source, EnvSpec):
        env: gym.Env[Any, Any] = gym.make(source, **factory.env_kwargs)
    else:
        env = source(**factory.env_kwargs)
    return RecordVideo(
        env,
        os.fspath(directory),
        episode_trigger=lambda episode: episode < episodes,
        name_prefix="evaluation",
        disable_logger=True,
    )
