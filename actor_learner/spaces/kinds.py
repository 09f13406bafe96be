"""The kinds of spaces as classes without Gymnasium, and their JSON form; `structure` says which are supported.

A new kind also needs its place in `structure`, `leaves`, `masks`, `environments.buffers`, `networks.distributions`
(actions) and `networks.default` (observations).

Gymnasium's own spaces count as instances of these classes: `isinstance` works with both, without importing Gymnasium.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from actor_learner.system.types import Array

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    AnySpace: TypeAlias = Space[Any] | "Kind"


SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"


class Kind(abc.ABC):  # noqa: B024 - an ABC for its `__subclasshook__` alone
    """A description of a space. Raises ValueError for attributes that no space has."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Accept Gymnasium's class of the same name, and its subclasses."""
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
    """`n` integers from `start`."""

    n: int
    start: int
    dtype: np.dtype[Any]
    shape: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        _check(_is_integer(self.n) and self.n > 0 and _is_integer(self.start) and self.dtype.kind in "iu", self)


@dataclass(frozen=True, eq=False)
class MultiDiscrete(Kind):
    """Arrays of integers; each entry has `nvec` values from `start`."""

    nvec: Array
    start: Array
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        _check(self.nvec.dtype.kind in "iu" and self.start.dtype.kind in "iu" and self.dtype.kind in "iu", self)
        _check(self.nvec.shape == self.start.shape and bool((self.nvec > 0).all()), self)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.nvec.shape)


@dataclass(frozen=True, eq=False)
class MultiBinary(Kind):
    """Arrays of 0 and 1."""

    n: int | tuple[int, ...]  # the length or the shape
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int8)

    def __post_init__(self) -> None:
        _check(all(_is_integer(size) and size > 0 for size in self.shape), self)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n if isinstance(self.n, tuple) else (self.n,)


@dataclass(frozen=True, eq=False)
class Dict(Kind):
    """Values of other spaces by name; the order counts."""

    spaces: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check(all(isinstance(key, str) for key in self.spaces), self)


@dataclass(frozen=True, eq=False)
class Tuple(Kind):
    """Values of other spaces by position."""

    spaces: tuple[Any, ...]


def middle(space: Any, dtype: Any = None) -> tuple[Array, Array]:
    """Return the centre of a Box's bounds, and half of their distance, in a dtype; None: the space's.

    Bounds are halved first: the difference of the largest ones is infinite.
    """
    low, high = np.asarray(space.low, dtype) / 2, np.asarray(space.high, dtype) / 2
    return low + high, high - low


def to_json(space: Any) -> dict[str, Any]:
    """Return a space as a JSON object, for `from_json`. Raises ValueError for an unsupported kind."""
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
    """Return the space of a JSON object from `to_json`. Raises ValueError, TypeError or KeyError for anything else."""
    kind = description["type"]
    if kind == "Dict":
        return Dict({key: from_json(child) for key, child in description["spaces"]})
    if kind == "Tuple":
        return Tuple(tuple(from_json(child) for child in description["spaces"]))
    if kind == "MultiBinary":
        n = description["n"]
        return MultiBinary(tuple(n) if isinstance(n, list) else n)
    if kind not in ("Discrete", "MultiDiscrete", "Box"):
        raise ValueError(f"unknown kind of space {str(kind)[:100]!r}")
    dtype = np.dtype(description["dtype"])
    if kind == "Discrete":
        return Discrete(description["n"], description["start"], dtype)
    if kind == "MultiDiscrete":
        return MultiDiscrete(np.array(description["nvec"]), np.array(description["start"]), dtype)
    shape = tuple(description["shape"])
    bounds = [_replace_numbers(description[side], {"inf": np.inf, "-inf": -np.inf}) for side in ("low", "high")]
    low, high = (np.broadcast_to(np.asarray(bound, dtype=dtype), shape).copy() for bound in bounds)
    return Box(low, high, shape, dtype)


def _bound_to_json(bound: Array) -> Any:
    """Return a single number if all elements are equal (an image has thousands), else nested lists."""
    if bound.size and (bound == bound.flat[0]).all():
        bound = bound.flat[0]
    return _replace_numbers(np.asarray(bound).tolist(), {np.inf: "inf", -np.inf: "-inf"})


def _replace_numbers(value: Any, replacements: Mapping[Any, Any]) -> Any:
    """Replace infinities, which JSON doesn't have, in nested lists."""
    if isinstance(value, list):
        return [_replace_numbers(item, replacements) for item in value]
    return replacements.get(value, value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(valid: bool, kind: Kind) -> None:
    if not valid:
        raise ValueError(f"invalid space: {kind}")
