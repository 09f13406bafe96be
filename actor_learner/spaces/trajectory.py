"""Trajectories, which actors write and the learner reads: time-major, aligned once, at the write."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import Structure
from actor_learner.system.files import (
    DamagedError,
    NewerFormatError,
    one_line,
    read_arrays,
    stamped,
    unstamped,
    write_arrays,
    write_atomically,
)
from actor_learner.system.types import Array

Fields = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]  # name -> shape, dtype

_MAX_FRAMES = 16  # an axis of images is one of frames or of channels up to here
_MIN_REPEATED_ROWS_SHARE = 0.25  # with fewer rows that only add a frame, keeping frames once saves little
_FORMAT = 2  # in 1, masks had no row for the bootstrap observation
_STRUCTURE = "structure"  # name of a file's entry that describes how its arrays are nested


class Field(NamedTuple):
    """The description of a field of a `Trajectory`."""

    rows: int | None  # beyond T: its arrays are `[T + rows, B, ...]`; None: `[B, ...]`
    dtype: Any  # None: those of the leaves
    of: str = (
        ""  # what gives further axes: leaves of "observation", "action" or "state", or a "mask"; "": there are none
    )

    @property
    def nested(self) -> bool:
        """True if it has an array for each of several leaves."""
        return self.of in ("observation", "action", "state")

    def axes(self, steps: int, columns: int) -> tuple[int, ...]:
        """Return the sizes of the first axes."""
        return (columns,) if self.rows is None else (steps + self.rows, columns)


FIELDS = {
    "observation": Field(1, None, "observation"),
    "action": Field(0, None, "action"),
    "reward": Field(0, np.float32),
    "terminated": Field(0, np.bool_),
    "truncated": Field(0, np.bool_),
    "valid": Field(0, np.bool_),
    "behaviour_log_prob": Field(0, np.float32),
    "truncation_value": Field(0, np.float32),
    "policy_version": Field(None, np.int64),
    "action_mask": Field(1, np.bool_, "mask"),  # only where environments give masks
    "env_index": Field(None, np.int32),
    "start": Field(1, np.bool_),
    "final_observation": Field(None, None, "observation"),
    "final_row": Field(None, np.int32),
    "initial_state": Field(None, np.float32, "state"),  # only with memory
    "final_action_mask": Field(None, np.bool_, "mask"),  # only where environments give masks
}
"""All fields, in `Trajectory`'s order. Arrays are named by field and place of the leaf: "observation/camera/0"."""

BY_COLUMN = frozenset(name for name, field in FIELDS.items() if field.rows is None)
"""The fields without an axis of steps."""


class Trajectory(NamedTuple):
    """`T` consecutive env steps of each of `B` environments.

    Row `t` is one step: `action[t]` answers `observation[t]` and earns `reward[t]`; `observation[t + 1]` is the next
    observation that an action answers.

    Attributes:
        observation: `[T + 1, B, ...]`, the bootstrap observation last; dicts and tuples of such arrays for Dict and
            Tuple spaces.
        action: `[T, B, ...]`, nested like the space: the sample before clipping or squashing; discrete actions count
            from 0.
        reward: `[T, B]` float32, raw.
        terminated: `[T, B]` bool: the episode ended in a terminal state.
        truncated: `[T, B]` bool: the episode was cut off; never True where `terminated` is.
        valid: `[T, B]` bool: False if the row only resets its environment.
        behaviour_log_prob: `[T, B]` float32: log-probability of `action` under the policy that chose it.
        truncation_value: `[T, B]` float32: value of the episode's last observation where `truncated`, otherwise 0.
        policy_version: `[B]` int64: version of the weights that chose the actions of a column.
        action_mask: `[T + 1, B, M]` bool: the choices that each observation allows, one column for each value of each
            discrete leaf of the action (see `masks.MaskLayout`); nothing is allowed where that isn't known. None if all
            are always allowed. `[T, B, M]` is taken, too, without the mask of the bootstrap observation.
        env_index: `[B]` int32: the environment of each column; None means column b is environment b.
        start: `[T + 1, B]` bool: the environment was reset before this observation, so an episode begins with it. A
            lost life that is terminal for learning doesn't begin an episode.
        final_observation: `[B, ...]`, nested like `observation`: the last observation of the episode that each column's
            row `final_row` cut off, or also ended in a terminal state (with `terminal_observations`). The
            observation of an invalid row after a truncated one must then be the last of its episode, too.
        final_row: `[B]` int32: the last row of each column in which its environment ended such an episode; -1 if its
            `final_observation` means nothing. An unroll that ends early is truncated at a later row; its last
            observation is in the row after that.
        initial_state: `[B, ...]` each: the leaves of the state before row 0, for a network with memory; None without
            memory. Where `start[0]` is True, the initial state of an episode takes their place. A network with memory
            needs `start`, too.
        final_action_mask: `[B, M]` bool: the choices that `final_observation` allows; nothing where that isn't known.
    """

    observation: Any
    action: Any
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    behaviour_log_prob: Array
    truncation_value: Array
    policy_version: Array
    action_mask: Array | None = None
    env_index: Array | None = None
    start: Array | None = None
    final_observation: Any = None
    final_row: Array | None = None
    initial_state: tuple[Array, ...] | None = None
    final_action_mask: Array | None = None

    def __repr__(self) -> str:
        """Return the fields that are there, with the dtype and shape of each array."""
        described = map_fields(lambda _, array: f"{getattr(array, 'dtype', 'list')}{list(np.shape(array))}", self)
        named = described._asdict()
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in named.items() if value)})"

    def copy(self) -> Trajectory:
        """Return a copy with its own memory, which stays valid after the pool's next `collect()`."""
        return map_fields(lambda name, array: np.array(array), self)

    def at_updates(self, ahead: int) -> Trajectory:
        """Return the batch with versions that count a learner's updates, which are `ahead` of the pool's versions."""
        return self._replace(policy_version=self.policy_version + ahead)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every field to an .npz file, atomically, for `load_trajectory`.

        Raises:
            OSError: the disk is full or can't be written.
            ValueError: a field holds objects, or keys that aren't strings or integers.
        """
        arrays: dict[str, Array] = {}
        fields = {name: _flatten_field(name, value, arrays) for name, value in self._asdict().items()}
        arrays[_STRUCTURE] = np.array(json.dumps(stamped({"fields": fields}, _FORMAT)))
        write_atomically(Path(path), lambda file: write_arrays(file, arrays))


class Trajectories(dict[str, Trajectory]):
    """The batches of several policies that play the same games, by the policies' names."""

    @property
    def policy_version(self) -> Array:
        """The versions of all columns of all policies."""
        return np.concatenate([trajectory.policy_version for trajectory in self.values()])

    def at_updates(self, ahead: int) -> Trajectories:
        """Return the batches as `Trajectory.at_updates` does."""
        return Trajectories({name: trajectory.at_updates(ahead) for name, trajectory in self.items()})


class DeviceTrajectory(Trajectory):
    """A trajectory on the learner's device, by a program that checks what `validate_trajectory` checks."""

    __slots__ = ()

    def copy(self) -> Trajectory:
        """Return a copy in ordinary memory."""
        return Trajectory(*self).copy()


def load_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Return the trajectory that `Trajectory.save` wrote, bit for bit. Needs no TensorFlow and unpickles nothing.

    Raises ValueError if there is no such file, or if it is damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"Trajectory not found. Received: path={str(path)!r}")
    try:
        return _read_fields(file, read_arrays(file.read_bytes()))
    except NewerFormatError:
        raise
    except Exception as error:  # see the threat model in system/untrusted.py
        raise DamagedError(f"The trajectory is damaged: {one_line(error)}. Received: path={str(path)!r}") from error


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to every array of a nested value and nest the results likewise."""
    if isinstance(value, dict):
        return {key: map_leaves(function, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, item) for item in value)
    return function(value)


def map_fields(function: Callable[[str, Any], Any], trajectory: Trajectory) -> Trajectory:
    """Return a trajectory of what `function` returns for the name of each field that is there, and for its arrays."""
    given = {name: value for name, value in trajectory._asdict().items() if value is not None}
    return trajectory._replace(
        **{name: map_leaves(functools.partial(function, name), value) for name, value in given.items()}
    )


def _flatten_field(name: str, value: Any, arrays: dict[str, Array]) -> Any:
    """Add the leaves of a nested value to `arrays`; return their nesting as JSON, with their names as leaves."""
    if value is None:
        return None
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise ValueError(f"Keys of `{name}` must be strings or integers. Received: {key!r}")
        return {"dict": [[key, _flatten_field(f"{name}/{key}", item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_flatten_field(f"{name}/{index}", item, arrays) for index, item in enumerate(value)]}
    if name in arrays:
        raise ValueError(f"Keys of a field must differ when joined by slashes. Received: {name!r} twice")
    arrays[name] = np.asarray(value)
    return name


def _read_fields(file: Path, arrays: dict[str, Array]) -> Trajectory:
    """Reverse `_flatten_field` for all fields. Raises ValueError for arrays that belong to none."""
    structure = unstamped(file, json.loads(arrays.pop(_STRUCTURE).item()), _FORMAT)
    fields = {name: _nest_arrays(structure["fields"].get(name), arrays) for name in Trajectory._fields}
    if arrays or structure["fields"].keys() - fields.keys():
        raise ValueError("it holds more than a trajectory")
    for name, field in fields.items():
        if field is None and name not in Trajectory._field_defaults:
            raise ValueError(f"it has no {name}")
    return Trajectory(**fields)


def _nest_arrays(structure: Any, arrays: dict[str, Array]) -> Any:
    """Move the arrays that a structure names out of `arrays`."""
    if structure is None:
        return None
    if isinstance(structure, str):
        return arrays.pop(structure)
    ((kind, items),) = structure.items()
    if kind == "dict":
        return {key: _nest_arrays(item, arrays) for key, item in items}
    if kind == "tuple":
        return tuple(_nest_arrays(item, arrays) for item in items)
    raise ValueError(f"it has an unknown kind of structure, {str(kind)[:100]!r}")


def by_field(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return a block's arrays, given by their names, by fields: nested ones as tuples of leaves."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        field = name.partition("/")[0]
        nested = field in FIELDS and FIELDS[field].nested
        found[field] = (*found.get(field, ()), array) if nested else array
    return found


def columns_of(name: str, array: Array, start: int, stop: int) -> Array:
    """Return a view on the columns `[start, stop)` of an array, given with its name."""
    return array[start:stop] if name.partition("/")[0] in BY_COLUMN else array[:, start:stop]


def nest(arrays: Mapping[str, Array], spaces: Spaces, kind: type[Trajectory] = Trajectory) -> Trajectory:
    """Return the trajectory of a block's arrays, given by their names."""
    fields = by_field(arrays)
    for name in ("observation", "action", "final_observation"):
        fields[name] = getattr(spaces, FIELDS[name].of).unflatten(fields[name])
    return kind(**fields)


@dataclass(frozen=True)
class TrajectorySpec:
    """Shapes and dtypes of a `Trajectory`'s arrays, small enough to travel in a message."""

    observation: Fields  # of one row, by the leaves' names
    action: Fields
    unroll_length: int
    num_envs: int
    mask_size: int = 0  # columns of a mask; 0 without masks
    state_shapes: tuple[tuple[int, ...], ...] = ()  # of one row of the state's leaves

    @classmethod
    def from_spaces(
        cls, spaces: Spaces, *, unroll_length: int, num_envs: int, state_shapes: tuple[tuple[int, ...], ...] = ()
    ) -> TrajectorySpec:
        """Return the spec of `num_envs` columns of `unroll_length` rows. state_shapes: Of the policy's state."""
        leaves = _leaf_fields(spaces.observation), _leaf_fields(spaces.action)
        return cls(*leaves, unroll_length, num_envs, spaces.mask_size, state_shapes)

    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of each array that isn't None, in `Trajectory`'s order."""
        number, flag = np.dtype(np.float32), np.dtype(np.bool_)
        leaves: dict[str, Fields] = {
            "": {"": ((), number)},
            "observation": self.observation,
            "action": self.action,
            "mask": {"": ((self.mask_size,), flag)} if self.mask_size else {},
            "state": {f"/{index}": (shape, number) for index, shape in enumerate(self.state_shapes)},
        }
        return {
            name + leaf.removeprefix(field.of): (
                (*field.axes(self.unroll_length, self.num_envs), *shape),
                np.dtype(field.dtype or dtype),
            )
            for name, field in FIELDS.items()
            for leaf, (shape, dtype) in leaves[field.of].items()
        }


def _leaf_fields(structure: Structure) -> Fields:
    return {leaf.name: (leaf.shape, leaf.dtype) for leaf in structure.leaves}


def stack_axis(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int | None:
    """Return the axis of an observation that counts frames, if it is an image that has one."""
    if dtype != np.uint8 or len(shape) not in (3, 4):
        return None
    return next((axis for axis in (0, len(shape) - 1) if 2 <= shape[axis] <= _MAX_FRAMES), None)


def repeats_frames(frames: Array) -> Array:
    """Return where a row shows the frames of the row before but its first, bool `[T, b]`. frames: `[T + 1, b, n, ...]`.

    It may say no where few rows are like that.
    """
    edges = frames[:, :, :, 0]  # of the pictures: enough to see that most rows aren't like that
    repeats: Array = (edges[1:, :, :-1] == edges[:-1, :, 1:]).reshape(len(frames) - 1, frames.shape[1], -1).all(axis=-1)
    if repeats.mean() < _MIN_REPEATED_ROWS_SHARE:
        return np.zeros_like(repeats)
    pixels = frames.reshape(*frames.shape[:3], -1)
    if pixels.shape[-1] % 8 == 0 and pixels.strides[-1] == 1:
        pixels = pixels.view(np.uint64)  # a third of the time
    repeats &= (pixels[1:, :, :-1] == pixels[:-1, :, 1:]).all(axis=(2, 3))
    return repeats
