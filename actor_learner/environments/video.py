"""Episodes to be seen: as videos, or in a window while they are played."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import RecordVideo

from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory, resolve_env

NO_VIDEO = (None, "human", "ansi")
"""Render modes that give no pictures."""


def recorded(
    env: str | Callable[..., Any] | EnvFactory,
    env_kwargs: Mapping[str, Any] | None,
    directory: str | os.PathLike[str],
    episodes: int,
) -> Callable[..., Any]:
    """A factory for `evaluate` whose environment writes its first `episodes` to `directory`, as *.mp4.

    The environment is built with `render_mode="rgb_array"`. It is to be the only one that is played at a time: the
    frames of an episode are kept in memory until it ends. One that builds only whole vector environments is recorded
    by Gymnasium's recorder for these, which puts the pictures of all side by side.

    Raises:
        ImportError: moviepy isn't installed.
        ValueError: `env` can't be resolved; when it is built: it draws no pictures.
    """
    if importlib.util.find_spec("moviepy") is None:
        raise ImportError("videos need moviepy: pip install 'actor-learner[video]'")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, and looks for no display
    options: dict[str, Any] = {
        "video_folder": os.fspath(directory),
        "episode_trigger": lambda episode: episode < episodes,
        "name_prefix": "evaluation",
        "disable_logger": True,
    }
    factory = _drawing(env, env_kwargs, "rgb_array")

    def record(built: Any) -> Any:
        if built.render_mode in NO_VIDEO:
            raise EnvError(
                f"`{factory.name}` has no renderer that gives pictures; a video needs an environment that can be built "
                f'with render_mode="rgb_array". Received: render_mode={built.render_mode!r}'
            )
        if isinstance(built, VectorEnv):
            return gym.wrappers.vector.RecordVideo(built, **options)
        return RecordVideo(built, **options)

    return _maker(factory, record)


def in_a_window(env: str | Callable[..., Any] | EnvFactory, env_kwargs: Mapping[str, Any] | None) -> Callable[..., Any]:
    """A factory for `evaluate` whose environment shows itself: it is built with `render_mode="human"`.

    Raises ValueError if `env` can't be resolved; when it is built: if it has no window.
    """
    factory = _drawing(env, env_kwargs, "human")

    def check(built: Any) -> Any:
        if built.render_mode != "human":
            raise EnvError(
                f'`{factory.name}` has no window to show: it can\'t be built with render_mode="human". '
                f"Received: render_mode={built.render_mode!r}"
            )
        return built

    return _maker(factory, check)


def _drawing(
    env: str | Callable[..., Any] | EnvFactory, env_kwargs: Mapping[str, Any] | None, render_mode: str
) -> EnvFactory:
    """What builds the environment with this render mode: a single one where there is one."""
    factory = resolve_env(env, env_kwargs, check_pickle=False)
    source, kwargs = factory.source, {**factory.env_kwargs}
    if isinstance(source, EnvSpec):
        return dataclasses.replace(
            factory, env_kwargs={**kwargs, "render_mode": render_mode}, native=source.entry_point is None
        )
    parameters = inspect.signature(source).parameters.values()
    if any(p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        kwargs["render_mode"] = render_mode
    return dataclasses.replace(factory, env_kwargs=kwargs)  # else it may draw as it is


def _maker(factory: EnvFactory, wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    def make() -> Any:
        return wrap(_with_renderer(factory, lambda: factory.make_one()))

    def make_vector(num_envs: int, seed: int | None = None) -> Any:
        return wrap(_with_renderer(factory, lambda: factory.make(num_envs, seed)))

    made = make_vector if factory.native else make
    made.__qualname__ = factory.name  # what messages call it
    return made


def _with_renderer(factory: EnvFactory, build: Callable[[], Any]) -> Any:
    """Builds; an environment that doesn't know the render mode has no renderer, and that is all there is to say."""
    try:
        return build()
    except (TypeError, EnvError) as error:
        if "render_mode" not in str(error) or "unexpected keyword" not in str(error):
            raise
        raise EnvError(
            f"`{factory.name}` has no renderer: it takes no `render_mode`. "
            f"Received: render_mode={factory.env_kwargs['render_mode']!r}"
        ) from error
