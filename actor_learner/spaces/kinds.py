"""The kinds of spaces that are supported: what is read of a space, for policies that act without Gymnasium.

Gymnasium's own spaces are instances of these classes too, since they have these attributes: code that asks here what a
space is works with both, and doesn't import Gymnasium.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    AnySpace: TypeAlias = Space[Any] | "Kind"

Array = np.ndarray[Any, Any]

SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"


class Kind(abc.ABC):  # noqa: B024 - an ABC for its `__subclasshook__` alone
    """A space, described. Raises ValueError for what no space is."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Gymnasium's class of the same name, and what is derived from it, is of this kind."""
        theirs = (base for base in other.__mro__ if base.__module__.partition(".")[0] == "gymnasium")
        return any(base.__name__ == cls.__name__ for base in theirs) or NotImplemented


@dataclass(frozen=True, eq=False)
class Box(Kind):
    """Arrays between bounds."""

    low: Array = field(repr=False)
    high: Array = field(repr=False)
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        _check(self.low.shape == self.high.shape == self.shape, self)
        _check(self.dtype.kind in "biuf" and self.low.dtype == self.high.dtype == self.dtype, self)


@dataclass(frozen=True, eq=False)
class Discrete(Kind):
    """`n` whole numbers from `start`."""

    n: int
    start: int
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        _check(_whole(self.n) and self.n > 0 and _whole(self.start) and self.dtype.kind in "iu", self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one value."""
        return ()


@dataclass(frozen=True, eq=False)
class MultiDiscrete(Kind):
    """Arrays of whole numbers: `nvec` of each, from `start`."""

    nvec: Array
    start: Array
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        _check(self.nvec.dtype.kind in "iu" and self.start.dtype.kind in "iu" and self.dtype.kind in "iu", self)
        _check(self.nvec.shape == self.start.shape and bool((self.nvec > 0).all()), self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one value."""
        return tuple(self.nvec.shape)


@dataclass(frozen=True, eq=False)
class MultiBinary(Kind):
    """Arrays of 0 and 1."""

    n: int | tuple[int, ...]
    """The length, or the shape, as it was given."""

    def __post_init__(self) -> None:
        _check(all(_whole(size) and size > 0 for size in self.shape), self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one value."""
        return self.n if isinstance(self.n, tuple) else (self.n,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of values."""
        return np.dtype(np.int8)


@dataclass(frozen=True, eq=False)
class Dict(Kind):
    """Values of other spaces by name, in order."""

    spaces: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check(all(isinstance(key, str) for key in self.spaces), self)


@dataclass(frozen=True, eq=False)
class Tuple(Kind):
    """Values of other spaces, one after the other."""

    spaces: tuple[Any, ...]


def to_json(space: Any) -> dict[str, Any]:
    """A space as a JSON object, read back by `from_json`. Raises ValueError for one of another kind."""
    if isinstance(space, Dict):
        return {"type": "Dict", "spaces": [[str(key), to_json(child)] for key, child in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [to_json(child) for child in space.spaces]}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, MultiDiscrete):
        vectors = {"nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
        return {"type": "MultiDiscrete", **vectors, "dtype": str(space.dtype)}
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if not isinstance(space, Box):
        raise ValueError(f"`space` must be {SUPPORTED}. Received: {space}")
    bounds = {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}


def from_json(description: Mapping[str, Any]) -> Any:
    """The space that `to_json` described. Raises ValueError, TypeError or KeyError for what it didn't write."""
    kind = description["type"]
    if kind == "Dict":
        return Dict({key: from_json(child) for key, child in description["spaces"]})
    if kind == "Tuple":
        return Tuple(tuple(from_json(child) for child in description["spaces"]))
    if kind == "MultiBinary":
        n = description["n"]
        return MultiBinary(tuple(n) if isinstance(n, list) else n)
    if kind not in ("Discrete", "MultiDiscrete", "Box"):
        raise ValueError(f"there is no kind of space called {str(kind)[:100]!r}")
    dtype = np.dtype(description["dtype"])
    if kind == "Discrete":
        return Discrete(description["n"], description["start"], dtype)
    if kind == "MultiDiscrete":
        return MultiDiscrete(np.array(description["nvec"]), np.array(description["start"]), dtype)
    shape = tuple(description["shape"])
    low, high = (_bound_from_json(description[side], shape, dtype) for side in ("low", "high"))
    return Box(low, high, shape, dtype)


def _bound_to_json(bound: Array) -> Any:
    """A single number where all elements agree (an image has thousands), else nested lists."""
    if bound.size and (bound == bound.flat[0]).all():
        bound = bound.flat[0]
    return _infinities_to_strings(np.asarray(bound).tolist())


def _infinities_to_strings(value: Any) -> Any:
    if isinstance(value, list):
        return [_infinities_to_strings(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The `low` or `high` entry of a described Box as an array of `shape`."""

    def number(item: Any) -> Any:
        return [number(i) for i in item] if isinstance(item, list) else _JSON_INFINITIES.get(item, item)

    return np.broadcast_to(np.asarray(number(value), dtype=dtype), shape).copy()


_JSON_INFINITIES = {"inf": np.inf, "-inf": -np.inf}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(right: bool, kind: Kind) -> None:
    if not right:
        raise ValueError(f"there is no such space: {kind}")
