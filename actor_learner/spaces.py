"""The one place that decides by space: what is supported, which shapes follow, how it is written as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

_JSON_INFINITIES = {"inf": np.inf, "-inf": -np.inf}


def check_observation_space(space: Space[Any]) -> None:
    """Raises ValueError, naming the leaf, for an observation space that isn't a Box or Discrete."""
    if isinstance(space, Discrete):
        return
    if not isinstance(space, Box):
        raise _unsupported("observation", space, "Box or Discrete")
    if not (np.issubdtype(space.dtype, np.floating) or np.issubdtype(space.dtype, np.integer)):
        raise ValueError(
            "`observation` must be a Box of a float or integer dtype; cast it in a wrapper. "
            f"Received: dtype={space.dtype}"
        )
    _check_not_empty("observation", space)


def check_action_space(space: Space[Any]) -> None:
    """Raises ValueError, naming the leaf, for an action space that isn't Discrete or a Box of floats.

    A Box may be bounded on both sides or on none of an element: a single infinite bound has no
    meaningful clipping.
    """
    if isinstance(space, Discrete):
        return
    if not isinstance(space, Box):
        raise _unsupported("action", space, "Discrete or Box")
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"`action` must be Discrete or a Box of a float dtype. Received: dtype={space.dtype}")
    _check_not_empty("action", space)
    one_sided = np.isinf(space.low) != np.isinf(space.high)
    if one_sided.any():
        index = tuple(int(i) for i in np.argwhere(one_sided)[0])
        raise ValueError(
            "`action` must have both bounds finite or both infinite; rescale it in a wrapper. Received: "
            f"action{list(index)} in [{space.low[index]}, {space.high[index]}]"
        )


def _check_not_empty(role: str, space: Box) -> None:
    if 0 in space.shape:
        raise ValueError(f"`{role}` must be a Box of at least one number. Received: shape={space.shape}")


def _unsupported(role: str, space: Space[Any], supported: str) -> ValueError:
    leaf, found = _first_unsupported_leaf(role, space)
    return ValueError(f"`{leaf}` must be {supported}; convert it in a Gymnasium wrapper. Received: {found}")


def _first_unsupported_leaf(name: str, space: Space[Any]) -> tuple[str, Space[Any]]:
    """Goes down into a composite, so that the error names what the reader must change."""
    children = getattr(space, "spaces", None)
    if isinstance(children, dict):
        named = [(f"{name}[{key!r}]", child) for key, child in children.items()]
    elif isinstance(children, (tuple, list)):
        named = [(f"{name}[{index}]", child) for index, child in enumerate(children)]
    else:
        return name, space
    for leaf, child in named:
        if not isinstance(child, (Box, Discrete)):
            return _first_unsupported_leaf(leaf, child)
    return name, space


def observation_shape_dtype(space: Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one observation in a trajectory: the space's own, float64 as float32.

    A Discrete observation is an int32 counted from 0, whatever the space's `start`.
    """
    if isinstance(space, Discrete):
        return (), np.dtype(np.int32)
    assert isinstance(space, Box)
    return space.shape, np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)


def action_shape_dtype(space: Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one action in a trajectory: the sample, before clipping.

    A Discrete action is an int32 counted from 0, whatever the space's `start`; a Box is float32.
    """
    if isinstance(space, Discrete):
        return (), np.dtype(np.int32)
    assert isinstance(space, Box)
    return space.shape, np.dtype(np.float32)


def parameter_size(action_space: Space[Any]) -> int:
    """Number of columns of the network's `parameters` output.

    Logits for Discrete; means and log standard deviations, concatenated, for Box.
    """
    if isinstance(action_space, Discrete):
        return int(action_space.n)
    assert isinstance(action_space, Box)
    return 2 * int(np.prod(action_space.shape))


def to_json(space: Space[Any]) -> dict[str, Any]:
    """A Box or Discrete space as a JSON object, read back by `from_json`."""
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if not isinstance(space, Box):
        raise _unsupported("space", space, "Box or Discrete")
    return {
        "type": "Box",
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bound_to_json(space.low),
        "high": _bound_to_json(space.high),
    }


def from_json(description: dict[str, Any]) -> Space[Any]:
    """The space that `to_json` described."""
    dtype = np.dtype(description["dtype"])
    if description["type"] == "Discrete":
        return Discrete(description["n"], start=description["start"], dtype=dtype)
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
