"""What names an environment in JAX and builds it: `gymnax:CartPole-v1`, `jax:module:name`. Imports no JAX."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Space

from actor_learner.environments.errors import EnvError, describe_error, short
from actor_learner.environments.lookup import closest, find_attribute
from actor_learner.spaces.jax_env import JaxEnv, is_jax_env
from actor_learner.system.fields import misfit
from actor_learner.system.installation import install_command

if TYPE_CHECKING:
    from actor_learner.environments.jax.vector import JaxVectorEnv

_PACKAGES = {"gymnax": "gymnax", "brax": "brax", "playground": "mujoco_playground", "jumanji": "jumanji"}
_PACKAGES |= {"craftax": "craftax", "jax": "jax"}
_OWN = "jax"


@dataclass(frozen=True)
class JaxSource:
    """Builds an environment in JAX, alone or as a vector environment, in any process. env: an object, or its name."""

    env: JaxEnv | str

    def __call__(
        self, num_envs: int, seed: int | None = None, render_mode: str | None = None, **env_kwargs: Any
    ) -> JaxVectorEnv:
        """Build a Gymnasium vector environment, which steps on the CPU."""
        import jax

        from actor_learner.environments.jax.vector import JaxVectorEnv

        with jax.default_device(jax.devices("cpu")[0]):
            return JaxVectorEnv(self.make(env_kwargs), num_envs, seed, render_mode)

    def make(self, env_kwargs: Mapping[str, Any]) -> JaxEnv:
        """Build the environment. Raises EnvError if there is none, or it isn't what `JaxEnv` asks for."""
        if not isinstance(self.env, str):
            return self.env
        library, _, env_id = self.env.partition(":")
        own = library == _OWN
        made: JaxEnv = _own(env_id, self.env, env_kwargs) if own else _of_library(library, env_id, env_kwargs)
        if (misfit := misfit_of(made)) is not None:
            raise EnvError(f"`{self.env}` must be an environment in JAX: {misfit}. Received: {short(made)}")
        return made


def find_jax_env(env: Any, env_kwargs: Mapping[str, Any]) -> JaxSource:
    """Return the source of an environment in JAX, without importing its library, which would start JAX.

    Raises EnvError if a package is missing, or an object isn't what `JaxEnv` asks for.
    """
    if isinstance(env, str):
        library = env.partition(":")[0]
        if importlib.util.find_spec(_PACKAGES[library]) is None:
            install = install_command(f"actor-learner[{library}]")
            raise EnvError(f"`{env}` needs the package `{_PACKAGES[library]}`: {install}. Received: env={env!r}")
        return JaxSource(env)
    if (misfit := misfit_of(env)) is not None:
        raise EnvError(f"`env` must be an environment in JAX: {misfit}. Received: {short(env)}")
    if env_kwargs:
        text = "`env_kwargs` must be left out for an environment that is built already"
        raise EnvError(f"{text}. Received: env_kwargs={dict(env_kwargs)!r}")
    return JaxSource(env)


def misfit_of(env: Any) -> str | None:
    """Return what an object lacks of the protocol, None if it has everything."""
    if not is_jax_env(env):
        if hasattr(env, "observation_size") or hasattr(env, "observation_spec"):
            adapter = "Jumanji" if hasattr(env, "observation_spec") else "Brax"
            return f"wrap it, al.jax_envs.{adapter}(env)"
        return "with `observation_space`, `action_space`, `reset` and `step`"
    if not isinstance(env.observation_space, Space):
        if hasattr(env, "step_env"):
            adapter = "Gymnax" if hasattr(env, "is_truncated") else "Craftax"
            return f"wrap it, al.jax_envs.{adapter}(env, params)"
        return "its `observation_space` must be a Gymnasium space"
    return None if isinstance(env.action_space, Space) else "its `action_space` must be a Gymnasium space"


def _own(name: str, env: str, env_kwargs: Mapping[str, Any]) -> Any:
    """Return the object that "module:name" names, or what that callable returns."""
    if ":" not in name:
        raise EnvError(f"`env` must name an environment of your own as jax:module:name. Received: env={env!r}")
    found = find_attribute(name)
    if callable(found) and not is_jax_env(found):
        if error := misfit(found, **env_kwargs):
            text = f"`{env}` can't be called with these `env_kwargs`: {error}"
            raise EnvError(f"{text}. Received: env_kwargs={dict(env_kwargs)!r}") from error
        return found(**env_kwargs)
    if env_kwargs:
        text = f"`env_kwargs` must be left out for `{env}`, which is built already"
        raise EnvError(f"{text}. Received: env_kwargs={dict(env_kwargs)!r}")
    return found


def _of_library(library: str, env_id: str, env_kwargs: Mapping[str, Any]) -> Any:
    try:
        make, known = importlib.import_module("actor_learner.environments.jax.adapters").MAKERS[library]
        ids = known()
    except ImportError as error:
        reason = describe_error(error, with_place=False)
        install = install_command(f"actor-learner[{library}]")
        raise EnvError(
            f"`{library}` can't be imported ({reason}): {install}. Received: env={library}:{env_id}"
        ) from error
    if env_id not in ids:
        near = closest(env_id, ids)
        hint = f"did you mean `{library}:{near}`?" if near else f"it has {', '.join(sorted(ids)[:5])}, ..."
        raise EnvError(f"{library} has no `{env_id}`; {hint} Received: env='{library}:{env_id}'")
    return functools.partial(make, env_id)(**env_kwargs)
