"""The one place that decides by space: what is supported, which shapes follow, how it is written as JSON.

A space is a tree of leaves. Inside the project values travel as tuples of leaf arrays, in the order of
`Structure.leaves`; users see the nested dicts and tuples that their space describes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

MASK_KEY = "action_mask"
"""Key of a Dict observation that says which actions are allowed."""

_WRAPPERS = {
    "Text": "encode it as a MultiDiscrete in a Gymnasium wrapper, or leave it out with FilterObservation",
    "Graph": "encode it as Boxes of a fixed size in a Gymnasium wrapper",
    "Sequence": "pad it to a Box of a fixed length in a Gymnasium wrapper",
    "OneOf": "turn it into a Discrete choice beside a Dict of its parts in a Gymnasium wrapper",
}
_OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these"
_JSON_INFINITIES = {"inf": np.inf, "-inf": -np.inf}


@dataclass(frozen=True)
class Leaf:
    """One array of a value: where it stands in the space, and what it is in a trajectory."""

    path: tuple[str | int, ...]
    """Keys and indices from the root; () where the space is a leaf itself."""
    root: str
    """"observation" or "action"."""
    space: Space[Any]
    shape: tuple[int, ...]
    """Of one environment."""
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """Name of the leaf's field: "observation", "observation/camera/0"."""
        return "/".join(map(str, (self.root, *self.path)))

    @property
    def label(self) -> str:
        """As one would write it in Python, for messages: "observation['camera'][0]"."""
        return _label(self.root, self.path)

    @functools.cached_property
    def start(self) -> Any:
        """The space's lowest value, which is 0 in a trajectory; None where it is 0 anyway."""
        start = np.asarray(getattr(self.space, "start", 0))
        return start if start.any() else None


@dataclass(frozen=True)
class Structure:
    """A space as its leaves."""

    root: str
    space: Space[Any]
    leaves: tuple[Leaf, ...]

    @property
    def plain(self) -> bool:
        """Whether the space is a leaf itself, so that values are single arrays."""
        return not isinstance(self.space, (Dict, Tuple))

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """The leaves of a nested value, whatever they are. Raises ValueError for other keys or lengths."""
        return (value,) if self.plain else tuple(_leaves_of(self.root, self.space, value))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested value of these leaves: dicts for Dict spaces, tuples for Tuple spaces."""
        return leaves[0] if self.plain else _nested(self.space, iter(leaves))


def observation_structure(space: Space[Any]) -> Structure:
    """Leaves of observations. Box: the space's dtype, float64 as float32. Discrete, MultiDiscrete: int32 from 0.

    Raises ValueError, naming the leaf, for spaces that aren't supported.
    """
    return _structure("observation", space, _observation_shape_dtype)


def action_structure(space: Space[Any]) -> Structure:
    """Leaves of actions, as sampled. Box: float32, before clipping. Discrete, MultiDiscrete: int32 from 0.

    A Box may be bounded on both sides or on none of an element: a single infinite bound has no
    meaningful clipping. Raises ValueError, naming the leaf, for spaces that aren't supported.
    """
    return _structure("action", space, _action_shape_dtype)


def check_observation_space(space: Space[Any]) -> None:
    """Raises ValueError, naming the leaf, for an observation space that isn't supported."""
    observation_structure(space)


def check_action_space(space: Space[Any]) -> None:
    """Raises ValueError, naming the leaf, for an action space that isn't supported."""
    action_structure(space)


def has_mask_leaf(observation_space: Space[Any]) -> bool:
    """Whether observations say by themselves which actions are allowed: a Dict with a key `action_mask`."""
    return isinstance(observation_space, Dict) and MASK_KEY in observation_space.spaces


def without_mask(observation_space: Space[Any]) -> Space[Any]:
    """The observation space without its mask leaf, which is no input of a network by default."""
    if not has_mask_leaf(observation_space):
        return observation_space
    return Dict([(str(key), space) for key, space in children(observation_space) if key != MASK_KEY])


def parameter_size(action_space: Space[Any]) -> int:
    """Number of columns of the network's `parameters` output: those of each leaf, one after the other.

    Logits for Discrete and MultiDiscrete (one for each choice) and for MultiBinary (one for each bit);
    means and log standard deviations, concatenated, for Box.
    """
    return sum(leaf_parameter_size(leaf.space) for leaf in action_structure(action_space).leaves)


def leaf_parameter_size(space: Space[Any]) -> int:
    """Columns of `parameters` that describe one leaf of an action."""
    if isinstance(space, Box):
        return 2 * math.prod(space.shape)
    return choices(space) or math.prod(space.shape or ())


def choices(space: Space[Any]) -> int:
    """How many choices a mask can forbid in a leaf: n of a Discrete, the sum of a MultiDiscrete's; else 0."""
    return sum(choice_counts(space))


def choice_counts(space: Space[Any]) -> tuple[int, ...]:
    """Numbers of values of each entry of a leaf: n of a Discrete, a MultiDiscrete's in C order; else ()."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    return tuple(int(n) for n in space.nvec.reshape(-1)) if isinstance(space, MultiDiscrete) else ()


def children(space: Space[Any]) -> list[tuple[str | int, Space[Any]]]:
    """Key and space of each part of a Dict or Tuple; none for a leaf."""
    if isinstance(space, Dict):
        return [(str(key), child) for key, child in space.spaces.items()]
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def _structure(root: str, space: Space[Any], shape_dtype: Any) -> Structure:
    leaves = tuple(
        Leaf(path, root, leaf, *shape_dtype(leaf, _label(root, path))) for path, leaf in _walk(root, space, ())
    )
    if not leaves:
        raise ValueError(f"`{root}` must have at least one leaf. Received: {space}")
    dotted = [".".join(map(str, leaf.path)) for leaf in leaves]
    if len(set(dotted)) < len(dotted):  # a network's inputs go by these names
        raise ValueError(f"Leaves of `{root}` must differ where keys are joined by dots. Received: {dotted}")
    return Structure(root, space, leaves)


def _label(root: str, path: tuple[str | int, ...]) -> str:
    return root + "".join(f"[{key!r}]" for key in path)


def _walk(root: str, space: Space[Any], path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(space, (Dict, Tuple)):
        yield path, space
        return
    for key, child in children(space):
        if isinstance(key, str) and (not key or "/" in key):
            raise ValueError(f"Keys of `{_label(root, path)}` must be names without a slash. Received: {key!r}")
        yield from _walk(root, child, (*path, key))


def _leaves_of(label: str, space: Space[Any], value: Any) -> Iterator[Any]:
    if not isinstance(space, (Dict, Tuple)):
        yield value
        return
    _check_keys(label, space, value)
    for key, child in children(space):
        yield from _leaves_of(f"{label}[{key!r}]", child, value[key])


def _check_keys(label: str, space: Any, value: Any) -> None:
    if isinstance(space, Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            got = f"{len(value)} entries" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
            raise ValueError(f"`{label}` must be a tuple of {len(space.spaces)} entries. Received: {got}")
        return
    if not isinstance(value, dict):
        raise ValueError(f"`{label}` must be a dict with the keys {list(space.spaces)}. Received: {_kind(value)}")
    if value.keys() != space.spaces.keys():
        missing, extra = (sorted(map(str, keys)) for keys in (space.spaces.keys() - value, value.keys() - space.spaces))
        wrong = [f"{what} {keys}" for what, keys in (("without", missing), ("with the further", extra)) if keys]
        raise ValueError(f"`{label}` must have the keys {list(space.spaces)}. Received: a dict {' and '.join(wrong)}")


def _kind(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _nested(space: Space[Any], leaves: Iterator[Any]) -> Any:
    if isinstance(space, Dict):
        return {key: _nested(child, leaves) for key, child in children(space)}
    if isinstance(space, Tuple):
        return tuple(_nested(child, leaves) for _, child in children(space))
    return next(leaves)


def _observation_shape_dtype(space: Space[Any], label: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(space, Box):
        return _discrete_shape_dtype(space, label, _OBSERVATIONS)
    if space.dtype == np.bool_ or not isinstance(space.dtype, np.dtype) or space.dtype.kind not in "fiu":
        raise ValueError(
            f"`{label}` must be a Box of a float or integer dtype; cast it in a Gymnasium wrapper. "
            f"Received: dtype={space.dtype}"
        )
    _check_not_empty(label, space)
    return space.shape, np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)


def _action_shape_dtype(space: Space[Any], label: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(space, Box):
        return _discrete_shape_dtype(space, label, _ACTIONS)
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"`{label}` must be Discrete or a Box of a float dtype. Received: dtype={space.dtype}")
    _check_not_empty(label, space)
    one_sided = np.isinf(space.low) != np.isinf(space.high)
    if one_sided.any():
        index = tuple(int(i) for i in np.argwhere(one_sided)[0])
        raise ValueError(
            f"`{label}` must have both bounds finite or both infinite; rescale it in a wrapper. Received: "
            f"{label}{list(index)} in [{space.low[index]}, {space.high[index]}]"
        )
    return space.shape, np.dtype(np.float32)


def _discrete_shape_dtype(space: Space[Any], label: str, supported: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if isinstance(space, Discrete):
        return (), np.dtype(np.int32)
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        _check_not_empty(label, space)
        return tuple(space.shape), np.dtype(np.int32 if isinstance(space, MultiDiscrete) else np.int8)
    kinds = [kind.__name__ for kind in type(space).__mro__ if kind.__name__ in _WRAPPERS]
    advice = _WRAPPERS[kinds[0]] if kinds else "convert it, or leave it out with gymnasium.wrappers.FilterObservation"
    raise ValueError(f"`{label}` must be {supported}; {advice}. Received: {space}")


def _check_not_empty(label: str, space: Space[Any]) -> None:
    if 0 in (space.shape or ()):
        raise ValueError(f"`{label}` must hold at least one number. Received: shape={space.shape}")


def to_json(space: Space[Any]) -> dict[str, Any]:
    """A space as a JSON object, read back by `from_json`. Raises ValueError for one that isn't supported."""
    if isinstance(space, Dict):
        return {"type": "Dict", "spaces": [[key, to_json(child)] for key, child in children(space)]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [to_json(child) for _, child in children(space)]}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, MultiDiscrete):
        vectors = {"nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
        return {"type": "MultiDiscrete", **vectors, "dtype": str(space.dtype)}
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if not isinstance(space, Box):
        raise ValueError(f"`space` must be {_OBSERVATIONS}. Received: {space}")
    bounds = {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}


def from_json(description: dict[str, Any]) -> Space[Any]:
    """The space that `to_json` described."""
    kind = description["type"]
    if kind == "Dict":
        # A list of pairs keeps the order; Gymnasium sorts the keys of a plain dict.
        return Dict([(key, from_json(child)) for key, child in description["spaces"]])
    if kind == "Tuple":
        return Tuple([from_json(child) for child in description["spaces"]])
    if kind == "MultiBinary":
        return MultiBinary(description["n"])
    dtype = np.dtype(description["dtype"])
    if kind == "Discrete":
        return Discrete(description["n"], start=description["start"], dtype=dtype)
    if kind == "MultiDiscrete":
        return MultiDiscrete(np.array(description["nvec"]), start=np.array(description["start"]), dtype=dtype.type)
    shape = tuple(description["shape"])
    low, high = (bound_from_json(description[side], shape, dtype) for side in ("low", "high"))
    return Box(low, high, shape, dtype.type)


def _bound_to_json(bound: np.ndarray[Any, Any]) -> Any:
    """A single number where all elements agree (an image has thousands), else nested lists."""
    if bound.size and (bound == bound.flat[0]).all():
        bound = bound.flat[0]
    return _infinities_to_strings(np.asarray(bound).tolist())


def _infinities_to_strings(value: Any) -> Any:
    if isinstance(value, list):
        return [_infinities_to_strings(item) for item in value]
    return str(value) if isinstance(value, float) and np.isinf(value) else value


def bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The `low` or `high` entry of a described Box as an array of `shape`."""

    def number(item: Any) -> Any:
        return [number(i) for i in item] if isinstance(item, list) else _JSON_INFINITIES.get(item, item)

    return np.broadcast_to(np.asarray(number(value), dtype=dtype), shape).copy()
