"""The protocol of an environment written in JAX, and how one is named. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

LIBRARIES = ("gymnax", "brax", "playground", "jumanji", "craftax", "jax")
"""The prefixes of environments in JAX: of libraries, and "jax:module:name" for one's own."""


class Step(NamedTuple):
    """A step of one environment. After an end, `state` and `observation` are still those of the ended episode.

    Attributes:
        state: any pytree of arrays, of the same shapes and dtypes as `reset` returns.
        observation: as in the observation space, with discrete values from their `start` on.
        reward: a number without a shape.
        terminated: a flag without a shape: the episode ended in a terminal state.
        truncated: likewise: it was cut off. Where both are set, it terminated.
        info: numbers without a shape by name. Those of an episode's last step that `info_keys` names are reported.
    """

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Mapping[str, Any] = {}


class JaxEnv(Protocol):
    """One environment as pure functions in JAX, which are mapped over many. It doesn't reset itself.

    An environment may also have these:

    - `action_mask(state) -> bool [M]`: the actions that the state allows, as `al.Trajectory.action_mask` has them;
    - `render(state) -> uint8 [height, width, 3]`: a picture, on the host, of a state of NumPy arrays;
    - `metadata`: a dict with "render_fps", the pictures of a second.
    """

    observation_space: Any
    """The Gymnasium space of observations."""
    action_space: Any
    """The Gymnasium space of actions, which `step` gets within their bounds, discrete ones from their `start` on."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Return state and observation of a new episode, drawn with a key of JAX."""

    def step(self, key: Any, state: Any, action: Any) -> Step:
        """Return the step from a state by an action. It must not reset: that would lose the last observation."""


def is_jax_env(env: Any) -> bool:
    """Return whether an object has what the protocol asks for, and isn't a Gymnasium environment."""
    names = ("observation_space", "action_space", "reset", "step")
    return (
        not isinstance(env, type)
        and all(hasattr(env, name) for name in names)
        and not hasattr(env, "close_extras")
        and not hasattr(env, "unwrapped")
        and not hasattr(env, "possible_agents")
    )


def names_jax_env(env: Any) -> bool:
    """Return whether `env` is an environment in JAX, or the name of one."""
    if isinstance(env, str):
        library, separator, _ = env.partition(":")
        return bool(separator) and library in LIBRARIES
    return is_jax_env(env)


def steps_on_device(env: Any, vectorization: str) -> bool:
    """Return whether the learner's device steps the environments: those in JAX, unless actors are asked for."""
    return vectorization == "auto" and names_jax_env(env)
