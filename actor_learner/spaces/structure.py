"""The leaves of a space: which spaces are supported, and the shapes and dtypes that follow.

Spaces are Gymnasium's or those of `kinds`. Inside the project a value is a tuple of leaf arrays, in the order of
`Structure.leaves`; users see the nested dicts and tuples of their space.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.spaces.kinds import SUPPORTED, Box, Dict, Discrete, Kind, MultiBinary, MultiDiscrete, Tuple
from actor_learner.system.fields import refusal

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from actor_learner.spaces.kinds import AnySpace

MASK_KEY = "action_mask"  # in a Dict observation or in `infos`
OWN_KEY = "observation"  # in the Dict observation of an agent with a centralized value: what the agent sees
AGENT_KEY, STATE_KEY = VALUE_KEYS = ("agent", "state")  # there, for the value alone: its number, the game's state
PRIVILEGED_KEY = "privileged_state"  # what simulators of robots call what no robot measures

_WRAPPERS = {
    "Text": "encode it as a MultiDiscrete in a Gymnasium wrapper",
    "Graph": "encode it as Boxes of a fixed size in a Gymnasium wrapper",
    "Sequence": "pad it to a Box of a fixed length in a Gymnasium wrapper",
    "OneOf": "encode it as a Discrete beside a Dict of its parts in a Gymnasium wrapper",
}
_LEAVES = (Box, Discrete, MultiBinary, MultiDiscrete)
_ROOTS = {
    "observation": SUPPORTED,
    "action": "Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these",
}


@dataclass(frozen=True)
class Leaf:
    """One array of a value: its place in the space, and its shape and dtype in a trajectory."""

    path: tuple[str | int, ...]  # keys and indices from the root; () if the space is a leaf itself
    root: str  # "observation" or "action"
    space: Any
    shape: tuple[int, ...]  # without time and batch axes
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The name of the leaf's field: "observation", "observation/camera/0"."""
        return "/".join(map(str, (self.root, *self.path)))

    @functools.cached_property
    def label(self) -> str:
        """The leaf in messages, as in Python: "observation['camera'][0]"."""
        return _label(self.root, self.path)

    @functools.cached_property
    def start(self) -> Any:
        """The space's lowest value, which a trajectory counts as 0; None if it is 0."""
        start = np.asarray(getattr(self.space, "start", 0))
        return start if start.any() else None

    @property
    def is_discrete(self) -> bool:
        """True for a Discrete space."""
        return isinstance(self.space, Discrete)

    @property
    def is_bounded_box(self) -> bool:
        """True for a Box whose bounds are finite, low below high."""
        if not isinstance(self.space, Box):
            return False
        low, high = self.space.low, self.space.high
        return bool(np.isfinite([low, high]).all() and (low < high).all())


@dataclass(frozen=True)
class Structure:
    """A space and its leaves."""

    root: str
    space: Any
    leaves: tuple[Leaf, ...]

    @functools.cached_property
    def plain(self) -> bool:
        """True if the space is a leaf itself: values are single arrays."""
        return self._nest is None

    @functools.cached_property
    def _nest(self) -> Any:
        """The nesting of values: a dict, a tuple, or None for a leaf. Actors walk it at every step."""
        return _nest_of(self.space)

    def flatten(self, value: Any, *, further: bool = False) -> tuple[Any, ...]:
        """Return the leaves of a nested value, unchecked. Raises ValueError for other keys or lengths.

        further: drop further entries of dicts.
        """
        if self.plain:
            return (value,)
        leaves: list[Any] = []
        _collect_leaves(self.root, (), self._nest, value, leaves, further)
        return tuple(leaves)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return the nested value of these leaves: dicts for Dict spaces, tuples for Tuple spaces."""
        return leaves[0] if self.plain else _nest_leaves(self._nest, iter(leaves))

    def zeros(self, rows: int) -> Any:
        """Return a nested value of zeros, `[rows, ...]`."""
        return self.unflatten([np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in self.leaves])


def observation_structure(space: AnySpace) -> Structure:
    """Return the leaves of observations.

    Box: its own dtype, but float64 as float32, bool as uint8, and 64-bit integers as float32 where 32 bits don't hold
    the bounds. Discrete, MultiDiscrete: int32 from 0.

    Raises ValueError, naming the leaf, for unsupported spaces.
    """
    return _structure("observation", space, _observation_shape_dtype)


def action_structure(space: AnySpace) -> Structure:
    """Return the leaves of actions as sampled. Box: float32, before clipping. Discrete, MultiDiscrete: int32 from 0.

    Raises ValueError, naming the leaf, for unsupported spaces, and for a Box with single bounds, which clip nothing.
    """
    return _structure("action", space, _action_shape_dtype)


def has_mask_leaf(observation_space: AnySpace) -> bool:
    """Return True if observations contain the action mask: a Dict with a key `action_mask`."""
    return isinstance(observation_space, Dict) and MASK_KEY in observation_space.spaces


def without_mask(observation_space: AnySpace) -> AnySpace:
    """Return the observation space without its mask leaf, which default networks ignore."""
    return _without(observation_space, {MASK_KEY}) if has_mask_leaf(observation_space) else observation_space


def without(observation_space: AnySpace, keys: Sequence[str], name: str = "value_keys") -> AnySpace:
    """Return a Dict space without these entries, nested ones by path ("a/b").

    Raises ValueError, naming the argument, for an unknown entry, and where none but a mask would be left.
    """
    if not keys:
        return observation_space
    known = _entries(observation_space)
    left: AnySpace = _without(observation_space, set(keys))
    if set(keys) - set(known) or not {key for key, _ in children(left)} - {MASK_KEY}:
        expected = f"some of the entries of a Dict observation ({', '.join(known) or 'this is none'}), but not all"
        raise refusal(name, expected, keys)
    return left


def _entries(space: AnySpace, path: str = "") -> list[str]:
    """Return the paths of the entries of a Dict, of Dicts in it too."""
    found = [(f"{path}{key}", child) for key, child in children(space) if isinstance(space, Dict)]
    return [name for key, child in found for name in (key, *_entries(child, f"{key}/"))]


def _without(space: Any, keys: set[str], path: str = "") -> Any:
    from gymnasium import spaces

    left: list[tuple[str, Any]] = []
    for key, child in children(space):
        inner = f"{path}{key}"
        if isinstance(child, Dict) and any(name.startswith(f"{inner}/") for name in keys):
            child = _without(child, keys, f"{inner}/")
        if inner not in keys and (children(child) or not isinstance(child, Dict)):
            left.append((str(key), child))
    return spaces.Dict(left)


def drop_mask(observation: Any) -> Any:
    """Return an observation without its mask, if it is a dict that has one."""
    if not isinstance(observation, Mapping) or MASK_KEY not in observation:
        return observation
    return {key: value for key, value in observation.items() if key != MASK_KEY}


def parameter_size(action_space: AnySpace) -> int:
    """Return the number of columns of the network's `parameters` output: those of each leaf in turn.

    Logits for Discrete and MultiDiscrete (one for each choice) and for MultiBinary (one for each bit);
    means and log standard deviations, concatenated, for Box.
    """
    return sum(leaf_parameter_size(leaf.space) for leaf in action_structure(action_space).leaves)


def leaf_parameter_size(space: Any) -> int:
    """Return the number of columns of `parameters` for one leaf of an action."""
    if isinstance(space, Box):
        return 2 * math.prod(space.shape)
    return choices(space) or math.prod(space.shape or ())


def choices(space: AnySpace) -> int:
    """Return the number of choices that a mask can forbid: the sum of `choice_counts` over the leaves."""
    return sum(choice_counts(space)) + sum(choices(child) for _, child in children(space))


def choice_counts(space: AnySpace) -> tuple[int, ...]:
    """Return the number of values of each entry of a leaf: (n,) of a Discrete, `nvec` of a MultiDiscrete, else ()."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    return tuple(int(n) for n in space.nvec.reshape(-1)) if isinstance(space, MultiDiscrete) else ()


def children(space: AnySpace) -> list[tuple[str | int, Any]]:
    """Return key and space of each part of a Dict or Tuple; [] for a leaf."""
    if isinstance(space, Dict):
        return [(str(key), child) for key, child in space.spaces.items()]
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def _structure(root: str, space: AnySpace, shape_dtype: Any) -> Structure:
    walked = list(_walk(root, space, ()))
    for path, leaf in walked:
        if not isinstance(leaf, _LEAVES):
            raise ValueError(
                f"`{_label(root, path)}` must be {_ROOTS[root]}; {_advice(root, space, leaf)}. Received: {leaf}"
            )
    leaves = tuple(Leaf(path, root, leaf, *shape_dtype(leaf, _label(root, path))) for path, leaf in walked)
    if not leaves:
        raise ValueError(f"`{root}` must have at least one leaf. Received: {space}")
    dotted = [".".join(map(str, leaf.path)) for leaf in leaves]
    if len(set(dotted)) < len(dotted):  # the names of a network's inputs
        raise ValueError(f"Leaves of `{root}` must have different names, keys joined by dots. Received: {dotted}")
    for leaf in leaves:
        if 0 in leaf.shape:
            raise ValueError(f"`{leaf.label}` must hold at least one number. Received: shape={leaf.shape}")
    return Structure(root, space, leaves)


def _advice(root: str, space: AnySpace, leaf: Any) -> str:
    """Return what to do about a leaf of an unsupported kind; an entry of a Dict observation can be dropped."""
    kinds = [kind.__name__ for kind in type(leaf).__mro__ if kind.__name__ in _WRAPPERS]
    advice = _WRAPPERS[kinds[0]] if kinds else "convert it in a Gymnasium wrapper"
    kept = [key for key, child in children(space) if isinstance(space, Dict) and _is_supported(child)]
    if root == "action" or not kept:
        return advice
    kwargs = json.dumps({"FilterObservation": {"filter_keys": kept}})
    return f"{advice}, or drop it: --wrappers gymnasium.wrappers:FilterObservation --wrapper-kwargs '{kwargs}'"


def _is_supported(space: AnySpace) -> bool:
    if isinstance(space, (Dict, Tuple)):
        return all(_is_supported(child) for _, child in children(space))
    return isinstance(space, _LEAVES)


def _label(root: str, path: tuple[str | int, ...]) -> str:
    return root + "".join(f"[{key!r}]" for key in path)


def _walk(root: str, space: AnySpace, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(space, (Dict, Tuple)):
        yield path, space
        return
    for key, child in children(space):
        if isinstance(key, str) and (not key or "/" in key):
            raise ValueError(f"Keys of `{_label(root, path)}` must be names without a slash. Received: {key!r}")
        yield from _walk(root, child, (*path, key))


def _nest_of(space: Any) -> Any:
    if isinstance(space, Dict):
        return {key: _nest_of(child) for key, child in children(space)}
    return tuple(_nest_of(child) for _, child in children(space)) if isinstance(space, Tuple) else None


def _collect_leaves(
    root: str, path: tuple[str | int, ...], nest: Any, value: Any, leaves: list[Any], further: bool
) -> None:
    if nest is None:
        leaves.append(value)
        return
    if not (further and type(nest) is dict and isinstance(value, dict) and value.keys() > nest.keys()):
        _check_keys(root, path, nest, value)
    for key, child in nest.items() if type(nest) is dict else enumerate(nest):
        if child is None:
            leaves.append(value[key])
        else:
            _collect_leaves(root, (*path, key), child, value[key], leaves, further)


def _check_keys(root: str, path: tuple[str | int, ...], nest: Any, value: Any) -> None:
    if type(nest) is tuple:
        if not isinstance(value, (tuple, list)) or len(value) != len(nest):
            got = f"{len(value)} entries" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
            raise ValueError(f"`{_label(root, path)}` must be a tuple of {len(nest)} entries. Received: {got}")
    elif not isinstance(value, dict):
        got = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise ValueError(f"`{_label(root, path)}` must be a dict with the keys {list(nest)}. Received: {got}")
    elif value.keys() != nest.keys():
        missing, extra = (sorted(map(str, keys)) for keys in (nest.keys() - value, value.keys() - nest))
        wrong = [f"{what} {keys}" for what, keys in (("without", missing), ("with the further", extra)) if keys]
        raise ValueError(
            f"`{_label(root, path)}` must have the keys {list(nest)}. Received: a dict {' and '.join(wrong)}"
        )


def _nest_leaves(nest: Any, leaves: Iterator[Any]) -> Any:
    if type(nest) is dict:
        return {key: _nest_leaves(child, leaves) for key, child in nest.items()}
    return next(leaves) if nest is None else tuple(_nest_leaves(child, leaves) for child in nest)


def _observation_shape_dtype(space: AnySpace, label: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(space, Box):
        return _discrete_shape_dtype(space)
    if not isinstance(space.dtype, np.dtype) or space.dtype.kind not in "fiub":
        raise ValueError(
            f"`{label}` must be a Box of a float, integer or bool dtype; cast it in a Gymnasium wrapper. "
            f"Received: dtype={space.dtype}"
        )
    stored = {"float64": np.float32, "bool": np.uint8}.get(str(space.dtype), space.dtype)
    return space.shape, np.dtype(stored if fits_32_bits(space.low) and fits_32_bits(space.high) else np.float32)


def fits_32_bits(numbers: Any) -> bool:
    """Return False for integers of 64 bits that 32 bits don't hold: devices would wrap them."""
    if numbers.dtype.kind not in "iu" or numbers.dtype.itemsize < 8 or not numbers.size:
        return True
    limits = np.iinfo(f"{numbers.dtype.kind}4")
    return bool(numbers.min() >= limits.min and numbers.max() <= limits.max)


def _action_shape_dtype(space: AnySpace, label: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(space, Box):
        return _discrete_shape_dtype(space)
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"`{label}` must be Discrete or a Box of a float dtype. Received: dtype={space.dtype}")
    one_sided = np.isinf(space.low) != np.isinf(space.high)
    if one_sided.any():
        index = tuple(int(i) for i in np.argwhere(one_sided)[0])
        raise ValueError(
            f"`{label}` must have both bounds finite or both infinite; rescale it in a wrapper. Received: "
            f"{label}{list(index)} in [{space.low[index]}, {space.high[index]}]"
        )
    return space.shape, np.dtype(np.float32)


def _discrete_shape_dtype(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(space.shape or ()), np.dtype(np.int8 if isinstance(space, MultiBinary) else np.int32)


def to_gymnasium(space: Kind) -> Space[Any]:
    """Return Gymnasium's own space for one of `kinds`; imports Gymnasium."""
    from gymnasium import spaces

    if isinstance(space, Dict):
        # A list of pairs keeps the order; Gymnasium sorts the keys of a plain dict.
        return spaces.Dict([(key, to_gymnasium(child)) for key, child in space.spaces.items()])
    if isinstance(space, Tuple):
        return spaces.Tuple([to_gymnasium(child) for child in space.spaces])
    if isinstance(space, MultiBinary):
        return spaces.MultiBinary(space.n)
    if isinstance(space, Discrete):
        discrete = spaces.Discrete(space.n, start=space.start, dtype=space.dtype)
        discrete.n = int(space.n)  # for `Dense(space.n)`, which refuses NumPy's integers
        return discrete
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, start=space.start, dtype=space.dtype.type)
    assert isinstance(space, Box)
    return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
