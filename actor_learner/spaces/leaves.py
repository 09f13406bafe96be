"""The check of an array against a leaf of a space, for observations, actions, trajectories and policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actor_learner.spaces.kinds import MultiBinary
from actor_learner.spaces.structure import Leaf, choice_counts
from actor_learner.system.types import Array

_KINDS = {"biu": "booleans", "iu": "integers"}  # of dtypes; others are numbers


def check_leaf(
    leaf: Leaf,
    given: Any,
    axes: tuple[int, ...] = (),
    *,
    kinds: str | None = None,
    used: Array | None = None,
    from_start: bool = False,
    hint: str = "",
) -> Array:
    """Return an array of a leaf's values, `[*axes, *leaf.shape]`, in the leaf's dtype; discrete ones count from 0.

    Args:
        leaf: The leaf, whose label begins each message.
        given: Its values.
        axes: The sizes of the axes in front of the leaf's own.
        kinds: The kinds of dtypes that are allowed, as NumPy's letters; None: any that holds such values.
        used: bool `[*axes]`, where a float must be finite and a choice one of the space; None: choices, everywhere.
        from_start: True if discrete values are given as the environment gives them, counted from their space's `start`.
        hint: What follows the expected shape in a message.

    Raises ValueError for another shape or kind, and for values that the leaf's dtype or its discrete space hasn't.
    """
    values = check_array(leaf.label, given, (*axes, *leaf.shape), kinds, hint=hint)
    if values.dtype.kind == "f" and leaf.dtype.kind in "iu" and (wrong := values != np.round(values)).any():
        raise ValueError(f"`{leaf.label}` must hold whole numbers. Received: {values[wrong].reshape(-1)[0]}")
    if used is not None:
        check_finite(leaf.label, values, used)
    if values.dtype == leaf.dtype and values.dtype.kind == "f":  # the common case, for speed
        return values
    if choice_counts(leaf.space) or (isinstance(leaf.space, MultiBinary) and leaf.root == "action"):
        check_choices(leaf, values, used, from_start=from_start)  # before the cast: 300 is 44 in int8
        if from_start and leaf.start is not None:
            values = values - leaf.start.astype(np.int64)  # in which differences of unsigned numbers may be negative
    else:
        check_values(leaf, values)
    return values.astype(leaf.dtype, copy=False)


def check_array(
    name: str, given: Any, shape: tuple[Any, ...], kinds: str | None = None, dtype: Any = None, *, hint: str = ""
) -> Array:
    """Return an array of a shape, whose last entry `...` stands for further axes, and of a kind, cast to `dtype`."""
    values = np.asarray(given)
    sizes = shape[:-1] if shape[-1:] == (...,) else shape
    if isinstance(given, dict) or (values.shape if sizes is shape else values.shape[: len(sizes)]) != sizes:
        expected = str(shape).replace("Ellipsis", "...")
        received = "a dict" if isinstance(given, dict) else f"shape={values.shape}"
        raise ValueError(f"`{name}` must have shape {expected}{hint}. Received: {received}")
    if kinds is not None and values.dtype.kind not in kinds:
        raise ValueError(f"`{name}` must hold {_KINDS.get(kinds, 'numbers')}. Received: dtype={values.dtype}")
    return values if dtype is None else values.astype(dtype, copy=False)


def check_finite(name: str, values: Array, used: Array) -> None:
    """Raise ValueError for NaN or infinity in used rows: values `[T, B, ...]`, used bool `[T, B]`."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    wrong = ~np.isfinite(values) & used.reshape(*used.shape, *(1,) * (values.ndim - 2))
    if wrong.any():
        row, column, *entry = np.argwhere(wrong)[0]
        value = f"{values[(row, column, *entry)]} in row {row} of column {column}"
        raise ValueError(f"`{name}` must be finite in valid rows. Received: {value}")


def check_choices(leaf: Leaf, values: Array, used: Array | None = None, *, from_start: bool = False) -> None:
    """Raise ValueError for a choice that a discrete leaf's space hasn't: its log-probability may be anything."""
    entries = (values if used is None else values[used]).reshape(-1, math.prod(leaf.shape))
    low = np.reshape(leaf.start if from_start and leaf.start is not None else 0, -1).astype(np.int64)
    high = low + np.array(choice_counts(leaf.space) or (2,))
    wrong = (entries < low) | (entries >= high)
    if not wrong.any():
        return
    row, entry = np.argwhere(wrong)[0]
    first, bound = (np.broadcast_to(each, entries.shape[1:])[entry] for each in (low, high))
    where = f" at entry {[int(index) for index in np.unravel_index(entry, leaf.shape)]}" if leaf.shape else ""
    counted = ", as the environment gives it" if from_start else ", as in a Trajectory"
    which = " in valid rows" if used is not None else "" if leaf.start is None else counted
    expected = f"must count from {first} and be below {bound}{where}{which}"
    raise ValueError(f"`{leaf.label}` {expected}. Received: {entries[row, entry]}")


def check_values(leaf: Leaf, values: Any) -> None:
    """Raise ValueError, naming the leaf, for numbers that its integer dtype hasn't."""
    try:
        require_values(values, leaf.dtype)
    except ValueError as error:
        raise ValueError(f"`{leaf.label}` must have values of its space. Received: {error}") from error


def require_values(value: Any, dtype: np.dtype[Any]) -> None:
    """Raise ValueError for numbers that an integer dtype hasn't: a cast would change them. Runs once per env step."""
    if dtype.kind not in "iub" or getattr(value, "dtype", None) == dtype:
        return
    array = np.asarray(value)
    if array.dtype.kind not in "fiubc":
        raise ValueError(f"no numbers, but {array.dtype}")
    if np.can_cast(array.dtype, dtype, "safe"):
        return
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    with np.errstate(invalid="ignore"):
        fits = (array.real >= low) & (array.real <= high) & (array == np.rint(array.real))
    if not fits.all():
        raise ValueError(f"{array[~fits].reshape(-1)[0]} where the space has {dtype}")
