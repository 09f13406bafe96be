"""Trajectories: what actors write and the learner reads. Time-major, aligned once, at the write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import Structure
from actor_learner.system.files import DamagedError, one_line, read_arrays, write_arrays, write_atomically

Array = np.ndarray[Any, Any]
Fields = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name -> shape, dtype."""

_FORMAT = 1
_STRUCTURE = "structure"  # beside the arrays of a file: how they are nested


class Trajectory(NamedTuple):
    """`T` consecutive env steps of each of `B` environments.

    Row `t` holds what was seen, done and received at one step: `action[t]` answers `observation[t]`
    and brought `reward[t]`; `observation[t + 1]` is what was acted on next.
    """

    observation: Any
    """`[T + 1, B, ...]`; the last one is the bootstrap observation. Dicts and tuples of such arrays for Dict and Tuple
    spaces."""
    action: Any
    """`[T, B, ...]`, nested like the space: the sample before any clipping or squashing; discrete ones count from 0."""
    reward: Array
    """`[T, B]` float32, raw."""
    terminated: Array
    """`[T, B]` bool: the episode ended in a terminal state."""
    truncated: Array
    """`[T, B]` bool: the episode was cut off; never True together with `terminated`."""
    valid: Array
    """`[T, B]` bool: False where a row only resets its environment."""
    behaviour_log_prob: Array
    """`[T, B]` float32: log-probability of `action` under the policy that chose it."""
    truncation_value: Array
    """`[T, B]` float32: value of the true last observation where `truncated`, else 0."""
    policy_version: Array
    """`[B]` int64: version of the weights that chose the actions of a column."""
    action_mask: Array | None = None
    """`[T, B, M]` bool: what was allowed, a column for each choice of each discrete leaf of the action, in order (see
    `masks.MaskLayout`); None where everything always is."""
    env_index: Array | None = None
    """`[B]` int32: which environment a column came from; None means column b is environment b."""
    initial_state: Array | None = None
    """None (recurrent policies aren't supported yet)."""

    def copy(self) -> Trajectory:
        """A trajectory with memory of its own, which outlives the pool's next `collect()`."""
        copies: dict[str, Any] = {
            name: None if field is None else map_leaves(np.array, field) for name, field in self._asdict().items()
        }
        return self._replace(**copies)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes every field to an .npz file, for `load_trajectory`; the file is whole or isn't there.

        Raises:
            OSError: the disk is full or can't be written.
            ValueError: a field holds objects, or keys that aren't strings or integers.
        """
        arrays: dict[str, Array] = {}
        fields = {name: _take_apart(name, value, arrays) for name, value in self._asdict().items()}
        arrays[_STRUCTURE] = np.array(json.dumps({"format": _FORMAT, "fields": fields}))
        write_atomically(Path(path), lambda file: write_arrays(file, arrays))


def load_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """The trajectory that `Trajectory.save` wrote, bit for bit. Needs no TensorFlow; nothing is unpickled.

    Raises ValueError if there is none, or if the file was cut off or changed.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no trajectory there. Received: path={str(path)!r}")
    try:
        return _put_together(read_arrays(file.read_bytes()))
    except Exception as error:  # a file of a stranger may hold anything
        raise DamagedError(f"The trajectory is damaged: {one_line(error)}. Received: path={str(path)!r}") from error


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of every array of a nested value, in dicts and tuples like the value's."""
    if isinstance(value, dict):
        return {key: map_leaves(function, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, item) for item in value)
    return function(value)


def _take_apart(name: str, value: Any, arrays: dict[str, Array]) -> Any:
    """Adds the leaves of a nested value to `arrays`. Returns how they are nested, as JSON, with their names there."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {
            "dict": [[key, _take_apart(f"{name}/{_plain(name, key)}", item, arrays)] for key, item in value.items()]
        }
    if isinstance(value, tuple):
        return {"tuple": [_take_apart(f"{name}/{index}", item, arrays) for index, item in enumerate(value)]}
    if name in arrays:
        raise ValueError(f"Keys of a field must differ where they are joined by slashes. Received: {name!r} twice")
    arrays[name] = np.asarray(value)
    return name


def _plain(name: str, key: Any) -> str | int:
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        raise ValueError(f"Keys of `{name}` must be strings or integers. Received: {key!r}")
    return key


def _put_together(arrays: dict[str, Array]) -> Trajectory:
    """The reverse of `_take_apart` for all fields; each array must have its place."""
    structure = json.loads(arrays.pop(_STRUCTURE).item())
    if structure["format"] != _FORMAT:
        raise ValueError("it was written by another version")
    fields = {name: _nested(structure["fields"][name], arrays) for name in Trajectory._fields}
    if arrays or len(structure["fields"]) != len(fields):
        raise ValueError("it holds more than a trajectory")
    if absent := [
        name for name in Trajectory._fields if fields[name] is None and name not in Trajectory._field_defaults
    ]:
        raise ValueError(f"it has no {absent[0]}")
    return Trajectory(**fields)


def _nested(structure: Any, arrays: dict[str, Array]) -> Any:
    """Takes the arrays that a structure names."""
    if structure is None:
        return None
    if isinstance(structure, str):
        return arrays.pop(structure)
    ((kind, items),) = structure.items()
    if kind == "dict":
        return {key: _nested(item, arrays) for key, item in items}
    if kind == "tuple":
        return tuple(_nested(item, arrays) for item in items)
    raise ValueError(f"it has an unknown kind of structure, {str(kind)[:100]!r}")


def nest(arrays: Mapping[str, Array], spaces: Spaces) -> Trajectory:
    """Return the trajectory of a block's arrays, given by their fields' names."""
    fields = {name: arrays[name] for name in Trajectory._fields if name in arrays}
    for structure in (spaces.observation, spaces.action):
        fields[structure.root] = structure.unflatten([arrays[leaf.name] for leaf in structure.leaves])
    return Trajectory(**fields)


@dataclass(frozen=True)
class TrajectorySpec:
    """Shapes and dtypes of a `Trajectory`'s arrays, derived once from the spaces. Small: it travels in a message."""

    observation: Fields
    """Of one environment, by the leaves' names."""
    action: Fields
    unroll_length: int
    num_envs: int
    mask_size: int = 0
    """Columns of a mask; 0: no masks."""

    @classmethod
    def from_spaces(cls, spaces: Spaces, *, unroll_length: int, num_envs: int) -> TrajectorySpec:
        """Return the spec of `num_envs` columns of `unroll_length` rows."""
        leaves = _leaf_fields(spaces.observation), _leaf_fields(spaces.action)
        return cls(*leaves, unroll_length=unroll_length, num_envs=num_envs, mask_size=spaces.mask_size)

    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array, in `Trajectory`'s order, without those that are None."""
        rows, columns = self.unroll_length, self.num_envs
        flag, number = np.dtype(np.bool_), np.dtype(np.float32)
        masks = {"action_mask": ((rows, columns, self.mask_size), flag)} if self.mask_size else {}
        return {
            **{name: ((rows + 1, columns, *shape), dtype) for name, (shape, dtype) in self.observation.items()},
            **{name: ((rows, columns, *shape), dtype) for name, (shape, dtype) in self.action.items()},
            "reward": ((rows, columns), number),
            "terminated": ((rows, columns), flag),
            "truncated": ((rows, columns), flag),
            "valid": ((rows, columns), flag),
            "behaviour_log_prob": ((rows, columns), number),
            "truncation_value": ((rows, columns), number),
            "policy_version": ((columns,), np.dtype(np.int64)),
            **masks,
            "env_index": ((columns,), np.dtype(np.int32)),
        }


def _leaf_fields(structure: Structure) -> Fields:
    return {leaf.name: (leaf.shape, leaf.dtype) for leaf in structure.leaves}
