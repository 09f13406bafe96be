"""Calls of environments' methods between unrolls, and the record that replaced and resumed processes repeat."""

from __future__ import annotations

import functools
import json
import warnings
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
    """The calls so far, in order, and those of them that a new process repeats: the last one for each key.

    The key is what a call sets, as its arguments tell it: the method, and before its last argument the texts, such as
    the name of a parameter, each with a whole number directly after it; of a dict its keys.
    """

    def __init__(self) -> None:
        self._repeated: dict[str, tuple[int, Call, int]] = {}  # each with its number and its bytes
        self._recent: list[tuple[int, Call, int]] = []  # all, as long as they fit into a message
        self.count = 0  # all calls so far

    def add(self, call: Call) -> None:
        """Add a call at the end. Raises ValueError if all that are repeated are too large.

        Where more calls of its method are kept than fit, the oldest ones are dropped with a warning.
        """
        key, entry = _key(call), (self.count + 1, call, len(encode([call])))
        calls = {other: known for other, known in self._repeated.items() if other != key} | {key: entry}
        size = _size(calls.values())
        while size > MAX_CALLS_BYTES:
            oldest = next(other for other, (_, known, _) in calls.items() if known.name == call.name)
            if oldest == key:
                raise ValueError(
                    f"The arguments of `call`, of all methods together, must have at most {MAX_CALLS_BYTES} bytes as "
                    f"JSON; pass the path of a file instead. Received: {size} bytes with {call.name!r}"
                )
            size -= calls.pop(oldest)[2]
            text = f"Only the newest calls of {call.name!r} are repeated by new actors and resumed runs, of so many"
            warnings.warn(f"{text}. Received: more than {MAX_CALLS_BYTES} bytes", UserWarning, stacklevel=4)
        self._repeated, self.count = calls, self.count + 1
        self._recent.append(entry)
        size = _size(self._recent)
        while size > MAX_CALLS_BYTES:
            size -= self._recent.pop(0)[2]

    def since(self, number: int, until: int | None = None) -> tuple[Call, ...]:
        """Return the calls after the first `number`, of the first `until`."""
        is_kept = self._recent and self._recent[0][0] <= number + 1
        found = self._recent if is_kept else self._repeated.values()
        last = self.count if until is None else until
        return tuple(call for position, call, _ in found if number < position <= last)

    def repeated(self, until: int | None = None) -> tuple[Call, ...]:
        """Return the calls that a new process repeats, of the first `until`, as far as the recent ones are kept."""
        last = self.count if until is None else until
        later = {key for key, entry in self._repeated.items() if entry[0] > last}
        earlier = {key: entry for entry in self._recent if entry[0] <= last and (key := _key(entry[1])) in later}
        found = {key: entry for key, entry in self._repeated.items() if key not in later} | earlier
        return tuple(call for _, call, _ in sorted(found.values(), key=lambda entry: entry[0]))


def _key(call: Call) -> str:
    """Return a text that calls have in common of which only the last one counts."""
    pairs = zip(call.args[:-1], [None, *call.args], strict=False)
    places = [
        value if isinstance(value, str) or (isinstance(value, int) and isinstance(before, str)) else None
        for value, before in pairs
    ]
    return json.dumps([call.name, places, [sorted(value) for value in call.args if isinstance(value, dict)]])


def _size(entries: Iterable[tuple[int, Call, int]]) -> int:
    return sum(size for _, _, size in entries)


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


def same_calls(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether calls, as `ActorPool.calls` returns them, set the same: of those, only the order may differ."""
    return one == other or sorted(map(repr, one)) == sorted(map(repr, other))


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
