"""Calls of environments' methods between unrolls, and the record that replaced and resumed processes repeat."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gymnasium.vector import SyncVectorEnv, VectorEnv

from actor_learner.environments.autoreset import AnyVectorEnv, layers
from actor_learner.environments.errors import EnvError, calling, short
from actor_learner.system.fields import misfit

MAX_CALLS_BYTES = 15 * 1024  # bytes of JSON: all calls fit into one message to an actor
_EXCLUDED = ("reset", "step", "close")


class CallError(EnvError):
    """A method that environments don't have, or other arguments than it takes: every process would fail likewise."""


class Call(NamedTuple):
    """A method of every environment, and its arguments as JSON returns them."""

    name: str
    args: list[Any]
    optional: bool = False  # warn of a missing method: a checkpoint may hold a call that never worked


class Calls:
    """The calls so far, in order; only the last one of each name, so that they stay few."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[int, Call]] = {}
        self.count = 0  # all calls so far

    def add(self, call: Call) -> None:
        """Add a call at the end. Raises ValueError if all together are too large."""
        calls = {name: entry for name, entry in self._calls.items() if name != call.name}
        calls[call.name] = self.count + 1, call
        size = len(encode(call for _, call in calls.values()))
        if size > MAX_CALLS_BYTES:
            raise ValueError(
                f"The arguments of `call`, of all methods together, must have at most {MAX_CALLS_BYTES} bytes as JSON; "
                f"pass the path of a file instead. Received: {size} bytes with {call.name!r}"
            )
        self._calls, self.count = calls, self.count + 1

    def since(self, number: int) -> tuple[Call, ...]:
        """Return the calls after the first `number`."""
        return tuple(call for position, call in self._calls.values() if position > number)


def make_call(name: str, args: Sequence[Any], *, optional: bool = False) -> Call:
    """Return a call with its arguments as JSON returns them after a resume: tuples become lists.

    Raises ValueError for a name that can't be called, and for arguments that JSON changes.
    """
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or name in _EXCLUDED:
        raise ValueError(f"`name` must be a public method other than {', '.join(_EXCLUDED)}. Received: name={name!r}")
    try:
        given = _as_lists(list(args))
        read = json.loads(json.dumps(given, allow_nan=False))
        if read != given:
            raise ValueError("the keys of a dict must be strings")
    except (TypeError, ValueError, RecursionError) as error:
        received = "a value that is nested too deep" if isinstance(error, RecursionError) else short(args)
        raise ValueError(
            f"The arguments of `{name}` must be JSON: None, bool, int, float, str, lists and dicts of them, whose keys "
            f"are strings ({error}). Received: {received}"
        ) from error
    return Call(name, read, optional)


def _as_lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in value]
    return {key: _as_lists(item) for key, item in value.items()} if isinstance(value, dict) else value


def encode(calls: Iterable[Call]) -> str:
    return json.dumps([list(call) for call in calls])


def decode(text: str) -> list[Call]:
    return [Call(*call) for call in json.loads(text)]


def perform(vector_env: AnyVectorEnv, call: Call, where: str) -> None:
    """Call the method of every environment. Raises CallError as `methods` does, EnvError if the method raises."""
    for method in methods(vector_env, call, where):
        with calling(f"`{call.name}` of {where}"):
            method(*call.args)


def methods(vector_env: AnyVectorEnv, call: Call, where: str) -> list[Callable[..., Any]]:
    """Return the method of each sub-environment, like Gymnasium's own `call`, or that of the vector environment.

    Raises CallError for a missing method or arguments that don't fit.
    """
    members = _find_members(vector_env, call.name)
    if not members or not all(map(callable, members)):
        raise CallError(f"{where} must have a method of that name. Received: call({call.name!r})")
    for method in members:
        if error := misfit(method, *call.args):
            received = ", ".join(map(repr, (call.name, *call.args)))
            raise CallError(f"`{call.name}` of {where}: {error}. Received: call({short(received)[1:-1]})") from error
    return members


def _find_members(vector_env: AnyVectorEnv, name: str) -> list[Any]:
    """Search from the outermost wrapper inwards, and the sub-environments of a SyncVectorEnv before itself."""
    for layer in layers(vector_env):
        if not isinstance(layer, VectorEnv):
            break
        if isinstance(layer, SyncVectorEnv) and all(env.has_wrapper_attr(name) for env in layer.envs):
            return [env.get_wrapper_attr(name) for env in layer.envs]
        if hasattr(layer, name):
            return [getattr(layer, name)]
        call: Any = getattr(layer, "call", None)
        if callable(call) and not isinstance(layer, SyncVectorEnv):
            return [functools.partial(call, name)]
    return []
