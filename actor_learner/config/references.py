"""Code by name: "module:attribute", as the command line, config files and config.json write it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import operator
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actor_learner.algorithms import BY_NAME
from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.spaces.jax_env import is_jax_env
from actor_learner.system.fields import close_match, refusal
from actor_learner.system.keras_import import import_keras_before

FUNCTIONS = ("network", "critics", "compute_reward")
"""The fields of a config whose value may be a function, "module:function" at a shell and in files."""

_SHELL_FORMS = {
    "env": "module:factory",
    "env_kwargs": "--env-kwargs, or a factory that fills them in",
    "network": "--network module:function",
    "compute_reward": "--compute-reward module:function",
    "exploration": "--exploration module:function",
    "wrappers": "--wrappers module:Class",
    "wrapper_kwargs": "--wrapper-kwargs",
    "callbacks": "--callback module:factory",
}


def algorithm_class(name: str) -> type[Any]:
    """Return the algorithm's class: "ppo" and others of this package, or "package.module:Class".

    Raises ValueError for an unknown name, a module that can't be imported, or a class that is no algorithm.
    """
    if ":" not in name:
        if name not in BY_NAME:
            known = f"one of {', '.join(BY_NAME)}, or module:Class{close_match(name.lower(), BY_NAME)}"
            raise refusal("algorithm", known, name)
        return BY_NAME[name]
    found = resolve_reference(name, "algorithm")
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or not issubclass(found, Hyperparameters):
        raise refusal("algorithm", "a dataclass that subclasses al.algorithms.Algorithm, or OffPolicy", name)
    return found


def algorithm_reference(cls: type[Any]) -> str:
    """Return the name that `algorithm_class` takes for this class."""
    return next((name for name, known in BY_NAME.items() if cls is known), f"{cls.__module__}:{cls.__qualname__}")


def algorithm_from_json(data: Mapping[str, Any]) -> Any:
    """Return the algorithm that a config.json describes. Raises ValueError, in one line, if it describes none."""
    name = data.get("name")
    if not isinstance(name, str):
        raise refusal("algorithm", "an object with the name of a class", dict(data))
    # JSON has no tuples.
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "name"}
    try:
        return algorithm_class(name)(**values)
    except TypeError as error:  # unknown hyperparameters
        raise ValueError(f"`algorithm`: {error}") from error


def resolve_reference(reference: str, name: str) -> Any:
    """Import "package.module:attribute". Raises ValueError, naming the argument, if there is no such thing."""
    module_name, _, attribute = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"`{name}`: can't import {module_name!r} ({error}). Received: {name}={reference!r}") from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        hint = close_match(attribute, vars(module))
        raise ValueError(
            f"`{name}`: module {module_name!r} has no attribute {attribute!r}{hint}. Received: {name}={reference!r}"
        ) from error


def import_network(reference: str, name: str) -> Any:
    """Import the function of a network, or of critics, and keras quietly before it."""
    import_keras_before(reference)
    return resolve_reference(reference, name)


def imported(value: Any, name: str) -> Any:
    """Return a value of JSON with what each `{"import": "module:name"}` in it names. Raises ValueError as above."""
    if isinstance(value, list | tuple):
        return type(value)(imported(item, name) for item in value)
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"import"}:
        return resolve_recorded(str(value["import"]), name)
    if set(value) == {"tuple"} and isinstance(value["tuple"], list):
        return tuple(imported(item, name) for item in value["tuple"])
    if set(value) == {"numpy"} and isinstance(value["numpy"], list) and len(value["numpy"]) == 2:
        kind, number = value["numpy"]
        if re.fullmatch(r"bool|u?int\d+|float\d+", str(kind)) and isinstance(number, int | float):
            return np.dtype(str(kind)).type(number)
    return {key: imported(item, name) for key, item in value.items()}


def resolve_recorded(reference: str, name: str) -> Any:
    """Import what a file names, but nothing of Python's own, such as `os:system`: someone else may have written it."""
    if is_pythons_own(reference):
        raise refusal(name, "module:function, the module not one of Python's own", reference)
    return import_network(reference, name)


def is_pythons_own(reference: str) -> bool:
    """Return True for a reference into Python's standard library, which a file from someone else must not call."""
    return reference.partition(":")[0].partition(".")[0] in sys.stdlib_module_names


def importable_name(value: object) -> str | None:
    """Return "module:name" if another process that imports it gets this very callable, else None."""
    module, name = (getattr(value, attribute, None) for attribute in ("__module__", "__qualname__"))
    if not callable(value) or not isinstance(module, str) or not isinstance(name, str):
        return None
    if module == "__main__" or is_pythons_own(module):
        return None
    return f"{module}:{name}" if vars(sys.modules.get(module, object)).get(name) is value else None


def same_env(one: object, other: object) -> bool:
    """Return True if both are one environment; a callable is the one that its "module:name" names."""
    return bool(one == other) or bool(_resolved(one) == _resolved(other))


def _resolved(env: object) -> object:
    """Return the name of a callable where it is defined, which may be another one than it is given by."""
    if isinstance(env, str) and ":" in env and not is_pythons_own(env):
        with contextlib.suppress(ValueError):
            return _resolved(resolve_reference(env, "env"))
    return env if isinstance(env, str) else importable_name(env) or env


def callable_name(value: object) -> str:
    """Return "module:qualified name" of a callable, or of an object's class; "jax:" before an environment's in JAX."""
    named = value if hasattr(value, "__qualname__") else type(value)
    library = "jax:" if is_jax_env(value) else ""
    return f"{library}{named.__module__}:{named.__qualname__}"


def as_mark(value: object) -> dict[str, str]:
    """Return what config.json holds of a value that JSON has no form for: what to import, or only a name."""
    name = importable_name(value)
    return {"callable": callable_name(value)} if name is None else {"import": name}


_FORMS = ("callable", "import", "numpy", "tuple")
"""The only key of a dict of JSON that stands for a value of another type."""


def exact_json(value: Any) -> Any:
    """Return a value as JSON of which `imported` makes it again, in its own type; what it can't becomes a mark."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, enum.Enum) and (name := importable_name(type(value))):
        return {"import": f"{name}.{value.name}"}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"numpy": [value.dtype.name, value.item()]}
    if type(value) in (list, tuple):
        items = [exact_json(item) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if (
        type(value) is dict
        and all(type(key) is str for key in value)
        and not (len(value) == 1 and {*value} & {*_FORMS})
    ):
        return {key: exact_json(item) for key, item in value.items()}
    return as_mark(value)


def marked_name(value: Any) -> str | None:
    """Return the name in a mark, which `as_mark` gives; None for any other value."""
    is_mark = isinstance(value, Mapping) and set(value) in ({"callable"}, {"import"})
    return str(next(iter(value.values()))) if is_mark else None


def callable_marks(value: Any) -> list[str]:
    """Return the names of the values anywhere inside a value from config.json of which it holds only the name."""
    if isinstance(value, Mapping):
        if set(value) == {"callable"}:
            return [str(value["callable"])]
        value = list(value.values())
    return [mark for item in value for mark in callable_marks(item)] if isinstance(value, list) else []


def ask_again(missing: Mapping[str, Sequence[str]]) -> str:
    """Return how to give each field again, at a shell and in Python. missing: field -> names of its callables."""
    spelled = {name: f"{_SHELL_FORMS[name]} at a shell, " if name in _SHELL_FORMS else "" for name in missing}
    listed = "; ".join(f"{spelled[name]}{name}= in Python (was {', '.join(missing[name])})" for name in missing)
    return f"holds only the names of values that a file can't store; give them again: {listed}"
