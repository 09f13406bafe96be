"""Action masks: the choices that the discrete leaves of an action space allow, as one bool array `[b, M]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actor_learner.spaces.kinds import MultiDiscrete
from actor_learner.spaces.structure import Structure, children, choice_counts, choices
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.spaces.kinds import AnySpace


class Choice(NamedTuple):
    """One discrete entry of an action and its columns in a mask."""

    leaf: int  # index of the action's leaf
    entry: int  # index in that leaf, in C order
    first_column: int
    size: int  # number of values, thus of columns


class MaskLayout:
    """The columns of a mask: one for each choice of each Discrete and MultiDiscrete leaf, in leaf order."""

    def __init__(self, action: Structure) -> None:
        self._structure = action
        self.choices = tuple(_choices(action))  # one for a Discrete, one for each component of a MultiDiscrete
        self.size = sum(choice.size for choice in self.choices)  # the number of columns, M
        self._starts = np.array([choice.first_column for choice in self.choices], np.int64)

    def read(self, value: Any, rows: int, label: str = "action_mask") -> Array:
        """Return an environment's mask as bool `[rows, M]`.

        Args:
            value: `[rows, M]`, or a nest that mirrors the action space, with None (or no key) where everything is
                allowed; a MultiDiscrete's may be a tuple of arrays, as for Gymnasium's `sample(mask=...)`, or one array
                `[rows, k, n]` for k choices of n values.
            rows: Number of environments.
            label: Name of the value in messages.

        Raises ValueError for a wrong length, or entries other than booleans, 0 and 1.
        """
        if isinstance(value, (dict, tuple, list)) and not self._structure.plain:
            columns = self._read_nest(self._structure.space, value, rows, label)
        else:
            columns = self._read_leaf(self._structure.space, value, rows, label, self.size)
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    def first_empty(self, mask: Array) -> tuple[int, int] | None:
        """Return (row, index of the choice) of the first choice of which a mask `[b, M]` allows no value, or None."""
        if not self.size:
            return None
        allowed = np.logical_or.reduceat(mask, self._starts, axis=1)
        if allowed.all():
            return None
        row, choice = np.argwhere(~allowed)[0]
        return int(row), int(choice)

    def _read_nest(self, space: AnySpace, value: Any, rows: int, label: str) -> list[Array]:
        if not isinstance(value, (dict, tuple, list)):
            return self._read_leaf(space, value, rows, label, choices(space))
        _check_entries(value, [key for key, _ in children(space)], label)
        columns: list[Array] = []
        for key, child in children(space):
            if isinstance(value, dict):
                inner = value.get(key)
            else:
                inner = value[key] if isinstance(key, int) and key < len(value) else None
            inner_label = f"{label}[{key!r}]"
            size = choices(child)
            if inner is None or not size:
                columns.append(np.ones((rows, size), bool))
            elif children(child):
                columns += self._read_nest(child, inner, rows, inner_label)
            else:
                columns += self._read_leaf(child, inner, rows, inner_label, size)
        return columns

    def _read_leaf(self, space: AnySpace, value: Any, rows: int, label: str, size: int) -> list[Array]:
        if isinstance(space, MultiDiscrete) and isinstance(value, (tuple, list)) and len(value) == space.nvec.size:
            parts = zip(value, space.nvec.reshape(-1), strict=True)
            return [_as_booleans(part, (rows, int(n)), f"{label}[{i}]") for i, (part, n) in enumerate(parts)]
        if isinstance(space, MultiDiscrete):
            counts = np.unique(space.nvec)
            if len(counts) == 1 and np.shape(value) == (rows, *space.nvec.shape, counts[0]):
                value = np.reshape(value, (rows, -1))
        return [_as_booleans(value, (rows, size), label)]


def with_batch_axis(mask: Any) -> Any:
    """Return one environment's mask as a batch of one."""
    if isinstance(mask, dict):
        return {key: with_batch_axis(part) for key, part in mask.items()}
    if isinstance(mask, (tuple, list)) and not all(np.isscalar(part) for part in mask):
        return tuple(with_batch_axis(part) for part in mask)
    return None if mask is None else np.asarray(mask)[None]


def _choices(structure: Structure) -> Iterator[Choice]:
    first_column = 0
    for number, leaf in enumerate(structure.leaves):
        for entry, size in enumerate(choice_counts(leaf.space)):
            yield Choice(number, entry, first_column, size)
            first_column += size


def _check_entries(value: Any, keys: list[Any], label: str) -> None:
    """Raise ValueError for entries that the space hasn't; a vector environment's flags begin with an underscore."""
    if isinstance(value, dict):
        unknown = [key for key in value if key not in keys and not str(key).startswith("_")]
        if unknown:
            raise ValueError(f"`{label}` must have no other keys than {keys}. Received: {unknown[0]!r}")
    elif isinstance(keys[0], str):
        raise ValueError(
            f"`{label}` must be a dict with the keys {keys}, or an array. Received: {type(value).__name__}"
        )
    elif len(value) > len(keys):
        raise ValueError(f"`{label}` must have {len(keys)} entries. Received: {len(value)}")


def _as_booleans(value: Any, shape: tuple[int, int], label: str) -> Array:
    mask = np.asarray(value)
    if mask.shape != shape:
        hint = "; flatten it, in the order of the actions" if mask.ndim > 2 and mask.size == shape[0] * shape[1] else ""
        received = f"shape={mask.shape}, expected {shape}" if mask.ndim else repr(value)
        raise ValueError(
            f"`{label}` must have {shape[1]} entries for each environment, one for each action{hint}. "
            f"Received: {received}"
        )
    if mask.dtype == np.bool_:
        return mask
    if mask.dtype.kind not in "iuf" or not ((mask == 0) | (mask == 1)).all():
        wrong = f", {mask[(mask != 0) & (mask != 1)].reshape(-1)[0]}" if mask.dtype.kind in "iuf" else ""
        raise ValueError(f"`{label}` must hold booleans, or 0 and 1. Received: dtype={mask.dtype}{wrong}")
    return mask.astype(bool)
