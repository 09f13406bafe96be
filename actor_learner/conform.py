"""What a trajectory from anywhere must be before it is learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space

from actor_learner import spaces
from actor_learner.trajectory import Array, Trajectory


def conform(trajectory: Trajectory, action_space: Space[Any]) -> Trajectory:
    """A trajectory of whatever source with every field in its dtype; what has it already isn't copied.

    Raises ValueError, naming the field, for a wrong shape or kind, an action outside a Discrete space, NaN or infinity
    in a valid row, or an invalid row within an episode: each would be broadcast, or learned from, without a word.
    """
    if not isinstance(trajectory, Trajectory):
        raise ValueError(f"`trajectory` must be an actor_learner.Trajectory. Received: a {type(trajectory).__name__}")
    for name in ("action_mask", "initial_state"):
        if (given := getattr(trajectory, name)) is not None:
            raise ValueError(f"`{name}` must be None, it isn't supported yet. Received: shape={np.shape(given)}")
    rows = np.shape(trajectory.reward)
    if len(rows) != 2 or 0 in rows:
        raise ValueError(f"`reward` must have shape [T, B], at least [1, 1]. Received: shape={rows}")
    shape, dtype = spaces.action_shape_dtype(action_space)
    action_kinds = "iu" if dtype.kind == "i" else "fiu"
    observation = _field("observation", trajectory.observation, (rows[0] + 1, rows[1], ...), "fiub")
    valid = _field("valid", trajectory.valid, rows, "biu", np.bool_)
    checked = {
        "observation": observation.astype(np.float32) if observation.dtype == np.float64 else observation,
        "action": _field("action", trajectory.action, (*rows, *shape), action_kinds, dtype),
        "valid": valid,
        **{
            name: _field(name, getattr(trajectory, name), rows, "biu", np.bool_) for name in ("terminated", "truncated")
        },
        **{
            name: _field(name, getattr(trajectory, name), rows, "fiu", np.float32)
            for name in ("reward", "behaviour_log_prob", "truncation_value")
        },
    }
    if trajectory.env_index is not None:
        checked["env_index"] = _field("env_index", trajectory.env_index, rows[1:], "iu", np.int32)
    seen = np.concatenate([valid, np.ones_like(valid[:1])])
    for name, values in checked.items():
        _check_finite(name, values, seen if name == "observation" else valid)
    _check_integers(checked, action_space)
    _check_ends(**{name: checked[name] for name in ("terminated", "truncated", "valid")})
    return trajectory._replace(**checked)


def _field(name: str, given: Any, shape: tuple[Any, ...], kinds: str, dtype: Any = None) -> Array:
    values = np.asarray(given)
    fits = values.shape[:2] == shape[:2] if ... in shape else values.shape == shape
    if not fits:
        expected = ", ".join("..." if size is ... else str(size) for size in shape)
        raise ValueError(f"`{name}` must have shape [{expected}], as `reward` has [T, B]. Received: {values.shape}")
    if values.dtype.kind not in kinds:
        expected = {"biu": "booleans", "iu": "integers"}.get(kinds, "numbers")
        raise ValueError(f"`{name}` must hold {expected}. Received: dtype={values.dtype}")
    return values if dtype is None else values.astype(dtype, copy=False)


def _check_finite(name: str, values: Array, rows: Array) -> None:
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    bad = ~np.isfinite(values) & rows.reshape(*rows.shape, *(1,) * (values.ndim - 2))
    if bad.any():
        row, column, *rest = (int(index) for index in np.argwhere(bad)[0])
        raise ValueError(
            f"`{name}` must be finite in valid rows. "
            f"Received: {values[(row, column, *rest)]} in row {row} of column {column}"
        )


def _check_integers(checked: dict[str, Array], action_space: Space[Any]) -> None:
    index = checked.get("env_index")
    if index is not None and index.min() < 0:
        raise ValueError(f"`env_index` must hold numbers from 0. Received: {index.min()}")
    if isinstance(action_space, Discrete):
        acted = checked["action"][checked["valid"]]
        wrong = acted[(acted < 0) | (acted >= action_space.n)]
        if wrong.size:
            raise ValueError(
                f"`action` must be counted from 0 and below {action_space.n} in valid rows. Received: {wrong[0]}"
            )


def _check_ends(terminated: Array, truncated: Array, valid: Array) -> None:
    """An invalid row follows the end of an episode, or another one; else the return of the row before is unknown."""
    lost = valid[:-1] & ~(terminated | truncated)[:-1] & ~valid[1:]
    if lost.any():
        row, column = (int(index) for index in np.argwhere(lost)[0])
        raise ValueError(
            "A row before an invalid one must be `terminated`, or `truncated` with its `truncation_value`. "
            f"Received: neither, in row {row} of column {column}"
        )
