"""Environments that show episodes: as videos, or live in a window."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import RecordVideo

from actor_learner.environments.atari import split_life_options
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import EnvFactory, accepts
from actor_learner.environments.games import close_game, is_game, without_checks
from actor_learner.system.installation import install_command

DISPLAYS = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")  # environment variables that tell MuJoCo where to draw
_MUJOCOS_CONTEXTS = ("mujoco.rendering.classic.gl_context", "mujoco.gl_context")  # they read MUJOCO_GL once; by version
_MODES_WITHOUT_PICTURES = (None, "human", "ansi")  # render modes
_PIXEL = (5, 4)  # height and width of a drawn pixel of ALE's frames, which are shrunk from 210 x 160 to a square
_SCREEN_FPS = 60  # frames per second of an Atari
_GAME_FPS = 2  # of a game that names no number


class _NewestFrames(VectorWrapper):
    """Draws the newest frames that ALE's vector environment returns, which draws nothing itself."""

    render_mode = "rgb_array"

    def __init__(self, env: VectorEnv[Any, Any, Any], frame_skip: int) -> None:
        super().__init__(env)
        env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": max(1, _SCREEN_FPS // frame_skip)}
        self._newest: Any = None

    def reset(self, **options: Any) -> Any:
        observation, infos = self.env.reset(**options)
        self._newest = observation[:, -1]
        return observation, infos

    def step(self, actions: Any) -> Any:
        observation, *rest = self.env.step(actions)
        self._newest = observation[:, -1]
        return observation, *rest

    def render(self) -> Any:
        """Return a frame `[height, width, 3]` for each environment."""
        colors = self._newest if self._newest.ndim == 4 else np.repeat(self._newest[..., None], 3, axis=-1)
        return tuple(colors.repeat(_PIXEL[0], axis=1).repeat(_PIXEL[1], axis=2))


class _FilmedGame:
    """A game of several agents with a video of each of its first episodes, which has a frame for each step."""

    def __init__(self, game: Any, *, directory: str, episodes: int) -> None:
        self._game, self._directory, self._left = without_checks(game), directory, episodes
        self._number, self._frames = 0, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)

    def reset(self, *args: Any, **options: Any) -> Any:
        self._write()
        found = self._game.reset(*args, **options)
        self._frames = [self._game.render()]
        return found

    def step(self, actions: Any) -> Any:
        found = self._game.step(actions)
        if self._left and actions is not None:  # None: of a dead agent
            self._frames.append(self._game.render())
        return found

    def _write(self) -> None:
        if len(self._frames) < 2 or not self._left:
            return
        from moviepy import ImageSequenceClip

        self._left -= 1
        os.makedirs(self._directory, exist_ok=True)
        file = os.path.join(self._directory, f"evaluation-episode-{self._number}.mp4")
        frames_per_second = self._game.metadata.get("render_fps", _GAME_FPS)
        ImageSequenceClip(self._frames, fps=frames_per_second).write_videofile(file, logger=None)
        self._number, self._frames = self._number + 1, []


def recorded(env: EnvFactory, directory: str | os.PathLike[str], episodes: int) -> EnvFactory | Callable[..., Any]:
    """Return a factory for `evaluate` whose environment writes its first `episodes` to `directory`, as *.mp4.

    It builds the environment with `render_mode="rgb_array"`. Play one environment at a time: the frames of an episode
    stay in memory until it ends. For a source of whole vector environments, a frame shows all of them side by side.
    ALE's vector environment is shown as the policy sees it.

    Raises ImportError without moviepy, ValueError if `env`, on the build, draws no pictures.
    """
    if importlib.util.find_spec("moviepy") is None:
        raise ImportError(f"videos need moviepy: {install_command('actor-learner[video]')}")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory and needs no display
    options: dict[str, Any] = {
        "video_folder": os.fspath(directory),
        "episode_trigger": lambda episode: episode < episodes,
        "name_prefix": "evaluation",
        "disable_logger": True,
    }
    factory = _drawing_factory(env, "rgb_array")

    def record(built: Any) -> Any:
        _check_pictures(factory.name, built)
        if is_game(built):
            return _FilmedGame(built, directory=os.fspath(directory), episodes=episodes)
        if isinstance(built, VectorEnv):
            return gym.wrappers.vector.RecordVideo(built, **options)
        return RecordVideo(built, **options)

    return _callable_from(factory, record)


def recording_arguments(factory: EnvFactory | Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments with which `evaluate` plays a factory of `recorded` or `in_a_window`, which is complete."""
    return {"env": factory, "env_kwargs": {}, "vectorization": "auto", "wrappers": (), "num_envs": 1}


def check_recorded(env: EnvFactory) -> None:
    """Build an environment once, and raise what `recorded` raises."""
    factory = _drawing_factory(env, "rgb_array")
    close_game(_make(factory, lambda built: _check_pictures(factory.name, built))(*[1] * factory.native))


def _check_pictures(name: str, built: Any) -> Any:
    mode = getattr(built, "render_mode", None)
    if mode in _MODES_WITHOUT_PICTURES:
        raise EnvError(
            f"`{name}` has no renderer for pictures; a video needs an environment with "
            f'render_mode="rgb_array". Received: render_mode={mode!r}'
        )
    if hasattr(getattr(built, "unwrapped", built), "mujoco_renderer") and not _choose_mujocos_renderer():
        raise EnvError(
            f"`{name}` can't be drawn: MuJoCo needs a display, EGL or OSMesa (apt install libegl1 libgl1-mesa-dri, or "
            "libosmesa6). Received: MUJOCO_GL isn't set, and neither works"
        )
    return built


def _choose_mujocos_renderer() -> bool:
    """Have MuJoCo draw by EGL, else by OSMesa, where there is no display. Returns False if neither works."""
    if sys.platform != "linux" or any(map(os.environ.get, DISPLAYS)):
        return True
    for renderer in ("egl", "osmesa"):  # tried in another process: in this one, only the first could be loaded
        code = f"import mujoco.{renderer} as renderer; renderer.GLContext(8, 8)"
        variables = {**os.environ, "MUJOCO_GL": renderer}
        with contextlib.suppress(subprocess.SubprocessError):  # it fails, or a driver hangs
            subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, check=True, timeout=60)
            os.environ["MUJOCO_GL"] = renderer
            for context in filter(None, map(sys.modules.get, _MUJOCOS_CONTEXTS)):
                importlib.reload(context)
            return True
    return False


def in_a_window(env: EnvFactory) -> EnvFactory | Callable[..., Any]:
    """Return a factory for `evaluate` that builds the environment with `render_mode="human"`.

    Raises ValueError on the build if it has no window.
    """
    factory = _drawing_factory(env, "human")

    def check(built: Any) -> Any:
        if getattr(built, "render_mode", None) != "human":
            raise EnvError(
                f'`{factory.name}` has no window: it can\'t be built with render_mode="human". '
                f"Received: render_mode={getattr(built, 'render_mode', None)!r}"
            )
        return built

    return _callable_from(factory, check)


def _drawing_factory(factory: EnvFactory, render_mode: str) -> EnvFactory:
    """Return a factory with this render mode, of single environments where possible.

    ALE's observe something else than its vector environment, for which no render mode is asked. A lost life ends no
    episode.
    """
    if render_mode == "rgb_array" and "mujoco" in sys.modules:  # an environment of one's own may draw as it is built
        _choose_mujocos_renderer()
    source, kwargs = factory.source, {**factory.env_kwargs}
    if _is_ale(source):
        kwargs, _ = split_life_options(kwargs)
        if factory.native:
            return dataclasses.replace(factory, env_kwargs=kwargs)
    if isinstance(source, EnvSpec):
        kwargs["render_mode"] = render_mode
        return dataclasses.replace(factory, env_kwargs=kwargs, native=source.entry_point is None)
    if accepts(source, "render_mode"):
        kwargs["render_mode"] = render_mode
    return dataclasses.replace(factory, env_kwargs=kwargs)  # without the parameter it may draw anyway


def _is_ale(source: EnvSpec | Callable[..., Any]) -> bool:
    return isinstance(source, EnvSpec) and source.namespace == "ALE"


def _callable_from(factory: EnvFactory, wrap: Callable[[Any], Any]) -> EnvFactory | Callable[..., Any]:
    """Return `_make`; a factory of it where opponents take seats in a game."""
    function = _make(factory, wrap)
    return function if factory.seats is None else EnvFactory(factory.name, function, seats=factory.seats)


def _make(factory: EnvFactory, wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a callable that wraps what a factory builds."""

    def make() -> Any:
        return wrap(_with_renderer(factory, factory.make_one_or_game))

    def make_vector(num_envs: int, seed: int | None = None) -> Any:
        built = _with_renderer(factory, lambda: factory.make(num_envs, seed))
        return wrap(_NewestFrames(built, factory.env_kwargs.get("frameskip", 4)) if _is_ale(factory.source) else built)

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
