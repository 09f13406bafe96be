"""Environments that show episodes: as videos, or live in a window."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import RecordVideo

from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory, accepts, resolve_env

_NO_PICTURES = (None, "human", "ansi")  # render modes


def recorded(
    env: str | Callable[..., Any] | EnvFactory,
    env_kwargs: Mapping[str, Any] | None,
    directory: str | os.PathLike[str],
    episodes: int,
) -> Callable[..., Any]:
    """Return a factory for `evaluate` whose environment writes its first `episodes` to `directory`, as *.mp4.

    It builds the environment with `render_mode="rgb_array"`. Play one environment at a time: the frames of an episode
    stay in memory until it ends. For a source of whole vector environments, a frame shows all of them side by side.

    Raises ImportError without moviepy, ValueError if `env` can't be resolved or, on the build, draws no pictures.
    """
    if importlib.util.find_spec("moviepy") is None:
        raise ImportError("videos need moviepy: pip install 'actor-learner[video]'")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory and needs no display
    options: dict[str, Any] = {
        "video_folder": os.fspath(directory),
        "episode_trigger": lambda episode: episode < episodes,
        "name_prefix": "evaluation",
        "disable_logger": True,
    }
    factory = _drawing(env, env_kwargs, "rgb_array")

    def record(built: Any) -> Any:
        if built.render_mode in _NO_PICTURES:
            raise EnvError(
                f"`{factory.name}` has no renderer for pictures; a video needs an environment with "
                f'render_mode="rgb_array". Received: render_mode={built.render_mode!r}'
            )
        if isinstance(built, VectorEnv):
            return gym.wrappers.vector.RecordVideo(built, **options)
        return RecordVideo(built, **options)

    return _maker(factory, record)


def in_a_window(env: str | Callable[..., Any] | EnvFactory, env_kwargs: Mapping[str, Any] | None) -> Callable[..., Any]:
    """Return a factory for `evaluate` that builds the environment with `render_mode="human"`.

    Raises ValueError if `env` can't be resolved; on the build: if it has no window.
    """
    factory = _drawing(env, env_kwargs, "human")

    def check(built: Any) -> Any:
        if built.render_mode != "human":
            raise EnvError(
                f'`{factory.name}` has no window: it can\'t be built with render_mode="human". '
                f"Received: render_mode={built.render_mode!r}"
            )
        return built

    return _maker(factory, check)


def _drawing(
    env: str | Callable[..., Any] | EnvFactory, env_kwargs: Mapping[str, Any] | None, render_mode: str
) -> EnvFactory:
    """Return a factory with this render mode, of single environments where possible."""
    factory = resolve_env(env, env_kwargs, check_pickle=False)
    source, kwargs = factory.source, {**factory.env_kwargs}
    if isinstance(source, EnvSpec):
        kwargs["render_mode"] = render_mode
        return dataclasses.replace(factory, env_kwargs=kwargs, native=source.entry_point is None)
    if accepts(source, "render_mode"):
        kwargs["render_mode"] = render_mode
    return dataclasses.replace(factory, env_kwargs=kwargs)  # without the parameter it may draw anyway


def _maker(factory: EnvFactory, wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    def make() -> Any:
        return wrap(_with_renderer(factory, factory.make_one))

    def make_vector(num_envs: int, seed: int | None = None) -> Any:
        return wrap(_with_renderer(factory, lambda: factory.make(num_envs, seed)))

    function = make_vector if factory.native else make
    function.__qualname__ = factory.name  # its name in messages
    return function


def _with_renderer(factory: EnvFactory, build: Callable[[], Any]) -> Any:
    """Build an environment; raise EnvError if it takes no `render_mode`."""
    try:
        return build()
    except (TypeError, EnvError) as error:
        if "render_mode" not in str(error) or "unexpected keyword" not in str(error):
            raise
        raise EnvError(
            f"`{factory.name}` has no renderer: it takes no `render_mode`. "
            f"Received: render_mode={factory.env_kwargs['render_mode']!r}"
        ) from error
