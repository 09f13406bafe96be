"""An env string looked up: a Gymnasium id, `module:Id-v0` or `module:factory`, found without building anything."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from gymnasium.envs.registration import EnvSpec, registry

from actor_learner.environments.errors import EnvError, _one_line, last_frame, short


class Namespace(NamedTuple):
    """A package that registers ids when it is imported; Gymnasium 1.x has no plugin entry points."""

    package: str
    install: str


NAMESPACES = {
    "ALE": Namespace("ale_py", 'pip install "actor-learner[atari]"'),
    "actor_learner": Namespace("actor_learner_envs", "pip install actor-learner"),
}

# Modules of entry points whose ids are registered whether or not the package behind them is installed.
_REQUIREMENTS = {
    "gymnasium.envs.box2d": Namespace("Box2D", 'pip install "actor-learner[box2d]"'),
    "gymnasium.envs.mujoco": Namespace("mujoco", 'pip install "actor-learner[mujoco]"'),
    "gymnasium.envs.phys2d": Namespace("jax", 'pip install "gymnasium[jax]"'),
    "gymnasium.envs.tabular": Namespace("jax", 'pip install "gymnasium[jax]"'),
    "ale_py": NAMESPACES["ALE"],
}


def find_env(env: str) -> EnvSpec | Callable[..., Any]:
    """The `EnvSpec` or the callable that an env string names.

    Raises:
        EnvError: the id is unknown, a package is missing, or the module or its attribute can't be found.
    """
    module_name, separator, attribute = env.partition(":")
    if not separator:
        return find_spec(env)
    if module_name.partition(".")[0] in sys.stdlib_module_names:  # `os:system`, in a config.json from a stranger
        raise EnvError(
            f"`env` must name a module that makes environments, not one of Python's own. Received: env={env!r}"
        )
    module = _import_module(module_name, env)
    if not hasattr(module, attribute):
        return find_spec(attribute, env, module)
    factory = getattr(module, attribute)
    if not callable(factory):
        raise EnvError(
            f"`{env}` must be a callable that returns an environment. Received: {attribute}={short(factory)}"
        )
    return factory  # type: ignore[no-any-return]


def find_spec(env_id: str, env: str | None = None, module: ModuleType | None = None) -> EnvSpec:
    """The registered spec of a Gymnasium id, fit to be sent to another process.

    Args:
        env_id: A Gymnasium id. Without a version it means the newest one.
        env: The whole env string, for messages.
        module: The imported module of `module:Id-v0`, for messages.

    Raises:
        EnvError: unknown id (with the closest known one), or a package that it needs is missing.
    """
    env = env_id if env is None else env
    spec = _registered(env_id)
    if spec is None and _import_namespace(env_id, env):
        spec = _registered(env_id)
    if spec is None:
        raise EnvError(_unknown_id(env_id, env, module))
    return sendable_spec(spec, env)


def sendable_spec(spec: EnvSpec, env: str) -> EnvSpec:
    """A copy of `spec` whose entry points another process can load, after a look at the packages it needs."""
    spec = copy.copy(spec)
    if any(wrapper.entry_point.startswith("__main__:") for wrapper in spec.additional_wrappers):
        raise EnvError(
            "A registered wrapper defined in `__main__` can't be found by another process: put wrappers inside a "
            f"callable env. Received: env={env!r}"
        )
    for name in ("entry_point", "vector_entry_point"):
        entry_point = getattr(spec, name)
        if isinstance(entry_point, str):
            _check_requirement(entry_point, env)
            setattr(spec, name, _main_object(entry_point))
    return spec


def _registered(env_id: str) -> EnvSpec | None:
    if env_id in registry:
        return registry[env_id]
    versions = [spec for key, spec in registry.items() if re.fullmatch(re.escape(env_id) + r"-v\d+", key)]
    return max(versions, key=lambda spec: spec.version or 0, default=None)


def _import_namespace(env_id: str, env: str) -> bool:
    """Imports the package that registers `env_id`; False where no package is known to.

    ALE registers ids without a namespace too (`PongNoFrameskip-v4`), so an id without one tries it, where it is there.
    """
    prefix, separator, _ = env_id.rpartition("/")
    namespace = NAMESPACES.get(prefix if separator else "ALE")
    if namespace is None:
        return False
    try:
        importlib.import_module(namespace.package)
    except ImportError as error:
        if not separator:
            return False
        raise EnvError(
            f"`{env_id}` needs the package `{namespace.package}` ({_one_line(error)}): {namespace.install}. "
            f"Received: env={env!r}"
        ) from error
    return True


def _unknown_id(env_id: str, env: str, module: ModuleType | None) -> str:
    where, prefix, near = "", "", _closest(env_id, registry)
    if module is not None:
        where, prefix = f"`{module.__name__}` has no attribute `{env_id}`, and ", f"{module.__name__}:"
        near = _closest(env_id, dir(module)) or near
    hint = "write `module:Id-v0` where a module registers it, or `module:factory`."
    if near is not None:
        hint = f"did you mean `{prefix}{near}`?"
    return f"{where}`{env_id}` is not a registered Gymnasium id; {hint} Received: env={env!r}"


def _closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, case aside; of two versions the newer one."""
    by_lower = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[near[0]] if near else None


def _check_requirement(entry_point: str, env: str) -> None:
    module = entry_point.partition(":")[0]
    for prefix, requirement in _REQUIREMENTS.items():
        if (module == prefix or module.startswith(prefix + ".")) and not _is_installed(requirement.package):
            raise EnvError(
                f"`{env}` needs the package `{requirement.package}`: {requirement.install}. Received: env={env!r}"
            )
    top = module.partition(".")[0]
    if not _is_installed(top):
        raise EnvError(f"`{env}` needs the package `{top}`, which is not installed. Received: env={env!r}")


def _is_installed(package: str) -> bool:
    if sys.modules.get(package) is not None:
        return True
    return importlib.util.find_spec(package) is not None


def _main_object(entry_point: str) -> Any:
    """An entry point in `__main__` means something else in another process, so its object travels instead."""
    module, _, attribute = entry_point.partition(":")
    if module != "__main__":
        return entry_point
    if not hasattr(sys.modules["__main__"], attribute):
        raise EnvError(f"`__main__` has no attribute `{attribute}`. Received: entry_point={entry_point!r}")
    return getattr(sys.modules["__main__"], attribute)


def _import_module(name: str, env: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise EnvError(_import_failed(name, env, error)) from error
        _look_in_working_directory(name)
    except Exception as error:
        raise EnvError(_import_failed(name, env, error)) from error
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise EnvError(_import_failed(name, env, error)) from error


def _look_in_working_directory(name: str) -> None:
    """A console script doesn't have the working directory on its path; at the end of it, it shadows nothing."""
    directory = os.getcwd()
    top = os.path.join(directory, name.partition(".")[0])
    if (os.path.isfile(f"{top}.py") or os.path.isdir(top)) and directory not in sys.path:
        sys.path.append(directory)
        importlib.invalidate_caches()


def _import_failed(name: str, env: str, error: BaseException) -> str:
    where = "" if isinstance(error, ModuleNotFoundError) else f" ({last_frame(error)})"
    return f"`{name}` can't be imported: {_one_line(error)}{where}. Received: env={env!r}"
