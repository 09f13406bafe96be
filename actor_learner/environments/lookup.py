"""Lookup of names, without building anything: a Gymnasium id, `module:Id-v0`, `module:factory`, wrappers."""

from __future__ import annotations

import copy
import difflib
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from gymnasium import wrappers
from gymnasium.envs.registration import EnvSpec, registry
from gymnasium.vector import VectorWrapper

from actor_learner.environments.errors import EnvError, describe_error, short
from actor_learner.system.fields import misfit
from actor_learner.system.installation import install_command
from actor_learner.system.keras_import import is_installed

Wrapper = functools.partial[Any]  # takes an environment


class Namespace(NamedTuple):
    """A package that registers ids: Gymnasium 1.x has no plugin entry points."""

    package: str
    requirement: str  # for pip
    register: str = ""  # a function to call; "": importing the package registers its ids


NAMESPACES = {
    "ALE": Namespace("ale_py", "actor-learner[atari]"),
    "MinAtar": Namespace("minatar.gym", "minatar", register="register_envs"),
    "actor_learner": Namespace("actor_learner_envs", "actor-learner"),
}

# Modules of entry points whose ids are registered even if the package that they need isn't installed.
_REQUIREMENTS = {
    "gymnasium.envs.box2d": Namespace("Box2D", "actor-learner[box2d]"),
    "gymnasium.envs.mujoco": Namespace("mujoco", "actor-learner[mujoco]"),
    "gymnasium.envs.phys2d": Namespace("jax", "gymnasium[jax]"),
    "gymnasium.envs.tabular": Namespace("jax", "gymnasium[jax]"),
    "ale_py": NAMESPACES["ALE"],
}

_OF_ROBOTICS = re.compile("Fetch|HandManipulate|HandReach|PointMaze|AntMaze|Adroit|FrankaKitchen")

_EXTRAS = {"pettingzoo": "games", "mpe2": "games", "gymnasium_robotics": "robotics"}
"""Packages of environments, with further packages that they need -> the extra that brings all."""


def find_env(env: str) -> EnvSpec | Callable[..., Any]:
    """Return the spec or callable of an env string. Raises EnvError if it is unknown or a package is missing."""
    if ":" not in env:
        return find_spec(env)
    factory = find_attribute(env)
    if not isinstance(factory, EnvSpec) and not callable(factory):
        received = f"{env.partition(':')[2]}={short(factory)}"
        raise EnvError(f"`{env}` must be a callable that returns an environment. Received: {received}")
    return factory  # type: ignore[no-any-return]


def find_attribute(env: str) -> Any:
    """Return what "module:name" names, where the module has no such name a spec or a game. Raises EnvError."""
    module_name, _, attribute = env.partition(":")
    module = _import_module(module_name, "env", env)
    if not hasattr(module, attribute):
        return _find_game(attribute, env, module) if module_name == "pettingzoo" else find_spec(attribute, env, module)
    return getattr(module, attribute)


def _find_game(game: str, env: str, pettingzoo: ModuleType) -> Callable[..., Any]:
    """Return the factory of a game of PettingZoo's registries: of its Parallel interface, where it has both."""
    registries = {kind: getattr(pettingzoo, f"{kind}_registry", {}) for kind in ("parallel", "aec")}
    for kind, games in registries.items():
        if game in games:
            return functools.partial(pettingzoo.make, kind, game)
    near = closest(game, {**registries["aec"], **registries["parallel"]})
    hint = f"did you mean `pettingzoo:{near}`?" if near else "`pettingzoo.aec_registry` has the ids."
    raise EnvError(f"PettingZoo has no game `{game}`; {hint} Received: env={env!r}")


def find_spec(env_id: str, env: str | None = None, module: ModuleType | None = None) -> EnvSpec:
    """Return the registered spec of a Gymnasium id, in a form that another process can load.

    An id without a version means the newest one. `env`, the whole env string, and `module`, of `module:Id-v0`, are for
    messages. Raises EnvError for an unknown id (the message suggests the closest one), or a missing package.
    """
    env = env_id if env is None else env
    spec = _registered(env_id)
    if spec is None and _import_namespace(env_id, env):
        spec = _registered(env_id)
    if spec is None:
        raise EnvError(_unknown_id(env_id, env, module))
    return sendable_spec(spec, env)


def sendable_spec(spec: EnvSpec, env: str) -> EnvSpec:
    """Return a copy of `spec` whose entry points another process can load. Raises EnvError for a missing package."""
    spec = copy.copy(spec)
    if any(wrapper.entry_point.startswith("__main__:") for wrapper in spec.additional_wrappers):
        raise EnvError(
            "Another process can't find a registered wrapper of `__main__`: put wrappers inside a callable env. "
            f"Received: env={env!r}"
        )
    for name in ("entry_point", "vector_entry_point"):
        entry_point = getattr(spec, name)
        if isinstance(entry_point, str):
            _check_requirement(entry_point, env)
            module, _, attribute = entry_point.partition(":")
            if module == "__main__":  # another module in another process
                if not hasattr(sys.modules[module], attribute):
                    raise EnvError(f"`__main__` has no attribute `{attribute}`. Received: entry_point={entry_point!r}")
                setattr(spec, name, getattr(sys.modules[module], attribute))
    return spec


def _registered(env_id: str) -> EnvSpec | None:
    if env_id in registry:
        return registry[env_id]
    versions = [spec for key, spec in registry.items() if re.fullmatch(re.escape(env_id) + r"-v\d+", key)]
    return max(versions, key=lambda spec: spec.version or 0, default=None)


def _import_namespace(env_id: str, env: str) -> bool:
    """Import the package that registers `env_id`, and have it do so; return False if none is known.

    An id without a namespace tries ALE, if installed, which registers such ids too (`PongNoFrameskip-v4`).
    """
    prefix, separator, _ = env_id.rpartition("/")
    namespace = NAMESPACES.get(prefix if separator else "ALE")
    if namespace is None:
        return False
    try:
        module = importlib.import_module(namespace.package)
    except ImportError as error:
        if not separator:
            return False
        package = namespace.package.partition(".")[0]
        reason = describe_error(error, with_place=False)
        install = install_command(namespace.requirement)
        raise EnvError(
            f"`{env_id}` needs the package `{package}` ({reason}): {install}. Received: env={env!r}"
        ) from error
    if namespace.register:
        getattr(module, namespace.register)()
    return True


def _unknown_id(env_id: str, env: str, module: ModuleType | None) -> str:
    where, prefix, name = "", "", env_id.rpartition("/")[2]
    near = name if name in registry else closest(env_id, registry)
    if module is not None:
        where, prefix = f"`{module.__name__}` has no attribute `{env_id}`, and ", f"{module.__name__}:"
        types = [found for found in vars(module).values() if isinstance(found, type)]
        own = [found.__name__ for found in types if found.__module__ == module.__name__]
        near = closest(env_id, dir(module)) or near or (own[0] if len(own) == 1 else None)
    elif _OF_ROBOTICS.match(env_id):
        near = f"gymnasium_robotics:{env_id}"
    elif os.path.isfile(f"{(file := env_id.removesuffix('.py'))}.py"):
        near = f"{file}:NAME` with the class or function that makes the environment, or `{file}:Id-v0"
    hint = "write `module:Id-v0` if a module registers it, or `module:factory`."
    hint = f"did you mean `{prefix}{near}`?" if near else hint
    return f"{where}`{env_id}` is not a registered Gymnasium id; {hint} Received: env={env!r}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, ignoring case, or None; of several versions the newest."""
    by_lower = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[near[0]] if near else None


def _check_requirement(entry_point: str, env: str) -> None:
    module = entry_point.partition(":")[0]
    for prefix, namespace in _REQUIREMENTS.items():
        if (module == prefix or module.startswith(prefix + ".")) and not is_installed(namespace.package):
            install = install_command(namespace.requirement)
            raise EnvError(f"`{env}` needs the package `{namespace.package}`: {install}. Received: env={env!r}")
    top = module.partition(".")[0]
    if not is_installed(top):
        raise EnvError(f"`{env}` needs the package `{top}`, which is not installed. Received: env={env!r}")


def find_wrappers(
    wrappers: Sequence[str | Callable[..., Any]], wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> tuple[Wrapper, ...]:
    """Return each wrapper with its keyword arguments, and build nothing.

    Args:
        wrappers: Names "module:Class", which are imported, or callables that take an environment.
        wrapper_kwargs: Class name -> keyword arguments, or keyword arguments for each wrapper in turn.

    Raises EnvError for a name that can't be imported, and for keyword arguments that no wrapper takes.
    """
    found = [_find_wrapper(wrapper) if isinstance(wrapper, str) else wrapper for wrapper in wrappers]
    names = [wrapper_name(wrapper) for wrapper in found]
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


def _find_wrapper(wrapper: str) -> Callable[..., Any]:
    """Return the wrapper that "module:Class" names. Raises EnvError if there is no such thing."""
    module_name, separator, attribute = wrapper.partition(":")
    if not separator:
        module_name = "gymnasium.wrappers" if hasattr(wrappers, wrapper) else "module"
        example = ":".join(wrapper.rpartition(".")[::2]) if "." in wrapper else f"{module_name}:{wrapper}"
        raise EnvError(f"`wrappers` must be names such as {example}. Received: wrappers={wrapper!r}")
    module = _import_module(module_name, "wrappers", wrapper)
    found = getattr(module, attribute, None)
    if not callable(found):
        near = closest(attribute, dir(module))
        hint = f" (did you mean {module_name}:{near}?)" if near else ""
        raise EnvError(f"`{module_name}` has no wrapper `{attribute}`{hint}. Received: wrappers={wrapper!r}")
    return found  # type: ignore[no-any-return]


def _bound(wrapper: Callable[..., Any], kwargs: Any) -> Wrapper:
    name = wrapper_name(wrapper)
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


def wrapper_name(wrapper: Any) -> str:
    """Return the name of a wrapper's class, as `wrapper_kwargs` has it."""
    return str(getattr(wrapper, "__qualname__", type(wrapper).__qualname__)).rpartition(".")[2]


def _import_module(name: str, argument: str, value: str) -> ModuleType:
    """Import a module that an argument's value names; none of Python's own (the threat model: system/untrusted.py)."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        rule = f"`{argument}` must name a module of environments, not one of Python's own"
        raise EnvError(f"{rule}. Received: {argument}={value!r}")
    try:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            _add_working_directory(name)
            return importlib.import_module(name)
    except Exception as error:
        text = describe_error(error, with_place=not isinstance(error, ModuleNotFoundError))
        package = name.partition(".")[0]
        missing = str(error.name) if isinstance(error, ModuleNotFoundError) else package + "."
        is_there = missing.startswith(package + ".")  # but hasn't this game
        extra = None if is_there else _EXTRAS.get(package)
        remedy = "" if extra is None else f"; {install_command(f'actor-learner[{extra}]')}"
        remedy = f"; a module's name has no `.py`: write {name[:-3]}" if name.endswith(".py") else remedy
        raise EnvError(f"`{name}` can't be imported: {text}{remedy}. Received: {argument}={value!r}") from error


def _add_working_directory(name: str) -> None:
    """Append the working directory, which a console script's path lacks, if it has the module: it shadows nothing."""
    directory = os.getcwd()
    top = os.path.join(directory, name.partition(".")[0])
    if (os.path.isfile(f"{top}.py") or os.path.isdir(top)) and directory not in sys.path:
        sys.path.append(directory)
        importlib.invalidate_caches()
