"""Libraries of environments written in JAX, as `JaxEnv`: gymnax, Brax, MuJoCo Playground, Jumanji and Craftax.

An adapter takes a library's bare environment, which doesn't reset itself: so the last observation of an episode that is
cut off isn't lost.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from actor_learner.environments.errors import EnvError
from actor_learner.spaces.jax_env import JaxEnv, Step

_BRAX_LIMIT = 1000
"""The steps of an episode of Brax, where its own training programs cut it off."""
_NO_LIMIT = 2**30
_PICTURE = 240, 320
"""Height and width in pixels."""
_CRAFTAX = ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")
_DRAWN = ("qpos", "qvel", "mocap_pos", "mocap_quat", "xfrc_applied")
"""What Playground's own pictures take of a state."""


class _WithParams:
    """An environment whose functions take parameters, as gymnax's and Craftax's do."""

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self._params = env, env.default_params if params is None else params

    def reset(self, key: Any) -> tuple[Any, Any]:
        observation, state = self._env.reset_env(key, self._params)
        return state, observation


class Gymnax(_WithParams):
    """An environment of gymnax 1.x, by its functions that don't reset.

    MinAtar's grids are of bool, as MinAtar's own are, so that the default network reads them as images; gymnax has the
    same bits as floats.

    Args:
        env: the environment of `gymnax.make`.
        params: its parameters; None: the default ones.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        from gymnax.environments.spaces import gymnax_space_to_gym_space

        super().__init__(env, params)
        self._bits = env.name.endswith("-MinAtar")
        self.observation_space = gymnax_space_to_gym_space(env.observation_space(self._params))
        if self._bits:
            self.observation_space = gym.spaces.Box(0, 1, self.observation_space.shape, np.bool_)
        self.action_space = gymnax_space_to_gym_space(env.action_space(self._params))

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, observation = super().reset(key)
        return state, self._seen(observation)

    def step(self, key: Any, state: Any, action: Any) -> Step:
        observation, state, reward, terminated, info = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(state, self._params)
        return Step(state, self._seen(observation), reward, terminated, truncated, _numbers(info))

    def _seen(self, observation: Any) -> Any:
        return observation != 0 if self._bits else observation


class Craftax(_WithParams):
    """An environment of Craftax, made with `auto_reset=False`. It counts its time limit among the ends, which are told
    apart here.

    Args:
        env: the environment of `make_craftax_env_from_name`.
        params: its parameters; None: the default ones.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        super().__init__(env, params)
        self._endless = self._params.replace(max_timesteps=_NO_LIMIT)
        box = env.observation_space(self._params)
        self.observation_space = gym.spaces.Box(float(box.low), float(box.high), box.shape, np.float32)
        self.action_space = gym.spaces.Discrete(int(env.action_space(self._params).n))

    def step(self, key: Any, state: Any, action: Any) -> Step:
        observation, state, reward, done, info = self._env.step_env(key, state, action, self._params)
        terminated = self._env.is_terminal(state, self._endless)
        return Step(state, observation, reward, terminated, done, _numbers(info))


class Brax:
    """A bare environment of Brax or MuJoCo Playground, without the wrappers that count steps and reset.

    Args:
        env: an environment of `brax.envs.get_environment` or `mujoco_playground.registry.load`.
        episode_length: the steps after which an episode is cut off, counted here.
    """

    def __init__(self, env: Any, episode_length: int = _BRAX_LIMIT) -> None:
        if not isinstance(episode_length, int) or episode_length < 1:
            raise EnvError(f"`episode_length` must be an integer of at least 1. Received: {episode_length!r}")
        self._env, self._limit = env, episode_length
        self.observation_space = jax.tree.map(
            lambda leaf: gym.spaces.Box(-np.inf, np.inf, leaf.shape, np.float32),
            jax.eval_shape(env.reset, jax.random.key(0)).obs,
            is_leaf=lambda leaf: hasattr(leaf, "shape"),
        )
        if isinstance(self.observation_space, Mapping):
            self.observation_space = gym.spaces.Dict(dict(self.observation_space))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        self.metadata = {"render_fps": round(1 / float(env.dt))}
        self._drawing: Any = None  # MuJoCo's renderer, and the data that it draws

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = self._env.reset(key)
        return (state, jnp.int32(0)), _as_dict(state.obs)

    def step(self, key: Any, state: Any, action: Any) -> Step:
        inner, count = state
        inner, count = self._env.step(inner, action), count + 1
        terminated = inner.done > 0.5
        info = _numbers(inner.metrics)
        return Step((inner, count), _as_dict(inner.obs), inner.reward, terminated, count >= self._limit, info)

    def render(self, state: Any) -> Any:
        """Return a picture of a state, drawn by MuJoCo."""
        import mujoco

        inner = state[0]
        playground = hasattr(self._env, "mj_model")
        model = self._env.mj_model if playground else self._env.sys.mj_model
        if self._drawing is None:  # which takes seconds
            self._drawing = mujoco.Renderer(model, *_PICTURE), mujoco.MjData(model)
        renderer, drawn = self._drawing
        if playground:
            for name in _DRAWN:
                getattr(drawn, name)[:] = getattr(inner.data, name)
        else:
            drawn.qpos[:] = inner.pipeline_state.q
        mujoco.mj_forward(model, drawn)
        renderer.update_scene(drawn)
        return renderer.render()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_drawing": None}


class Jumanji:
    """An environment of Jumanji. An episode that ends with a discount above 0 was cut off.

    Args:
        env: the environment of `jumanji.make`.
    """

    def __init__(self, env: Any) -> None:
        from jumanji.specs import jumanji_specs_to_gym_spaces

        self._env = env
        self.observation_space = jumanji_specs_to_gym_spaces(env.observation_spec)
        self.action_space = jumanji_specs_to_gym_spaces(env.action_spec)

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, first = self._env.reset(key)
        return state, _as_dict(first.observation)

    def step(self, key: Any, state: Any, action: Any) -> Step:
        state, now = self._env.step(state, action)
        last, terminated = now.step_type == 2, jnp.all(now.discount == 0)
        info = _numbers(now.extras or {})
        return Step(state, _as_dict(now.observation), jnp.sum(now.reward), last & terminated, last, info)


def _as_dict(observation: Any) -> Any:
    """Return named tuples and other mappings as dicts."""
    if hasattr(observation, "_asdict"):
        observation = observation._asdict()
    if isinstance(observation, Mapping):
        return {name: _as_dict(part) for name, part in observation.items()}
    return observation


def _numbers(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are numbers without a shape."""
    return {name: value for name, value in info.items() if np.shape(value) == ()}


def make_gymnax(env_id: str, **env_kwargs: Any) -> JaxEnv:
    import gymnax

    return Gymnax(*gymnax.make(env_id, **env_kwargs))


def make_brax(env_id: str, episode_length: int = _BRAX_LIMIT, **env_kwargs: Any) -> JaxEnv:
    from brax import envs

    return Brax(envs.get_environment(env_id, **env_kwargs), episode_length)


def make_playground(env_id: str, episode_length: int | None = None, **env_kwargs: Any) -> JaxEnv:
    from mujoco_playground import registry

    config = registry.get_default_config(env_id)
    device = jax.config.jax_default_device or jax.devices()[0]
    if "impl" in config and "config" not in env_kwargs and device.platform == "cpu":  # MuJoCo Warp is for GPUs
        env_kwargs["config_overrides"] = {"impl": "jax", **(env_kwargs.get("config_overrides") or {})}
    limit = int(config.episode_length) if episode_length is None else episode_length
    return Brax(registry.load(env_id, **env_kwargs), limit)


def make_jumanji(env_id: str, **env_kwargs: Any) -> JaxEnv:
    import jumanji

    return Jumanji(jumanji.make(env_id, **env_kwargs))


def make_craftax(env_id: str, **env_kwargs: Any) -> JaxEnv:
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(env_id, auto_reset=False)
    return Craftax(env, env.default_params.replace(**env_kwargs))


def _listed(module: str, attribute: str) -> Callable[[], list[str]]:
    return lambda: list(getattr(importlib.import_module(module), attribute))


MAKERS: Mapping[str, tuple[Callable[..., JaxEnv], Callable[[], list[str]]]] = {
    "gymnax": (make_gymnax, _listed("gymnax", "registered_envs")),
    "brax": (make_brax, _listed("brax.envs", "_envs")),
    "playground": (make_playground, lambda: list(importlib.import_module("mujoco_playground").registry.ALL_ENVS)),
    "jumanji": (make_jumanji, lambda: list(importlib.import_module("jumanji").registered_environments())),
    "craftax": (make_craftax, lambda: [f"Craftax-{kind}-v1" for kind in _CRAFTAX]),
}
"""By prefix: what makes an environment by its id, and what lists the ids."""
