"""Batches as nests of tensors: constants for invalid rows, rows side by side, and minibatches of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from keras import ops, tree

from actor_learner.learner import backend
from actor_learner.learner.packing import Packed, emptied, pack
from actor_learner.spaces.trajectory import BY_COLUMN, FIELDS, Trajectory
from actor_learner.system.types import Nest, Tensor

CHUNK_NUMBERS = 2**22
"""The most numbers of observations that enter the network at once without gradients: 150 Atari frame stacks.

On a GPU, whose cores so few rows leave idle, they are at least as many rows as a minibatch has: without gradients,
those need less memory than with them.
"""


_LARGE = 2**22
"""From this many numbers on, a look at whether a copy is needed costs less than the copy, which XLA can't fuse."""


def packed(*parts: tuple[Nest, int | None]) -> Packed:
    """Return nests of arrays as an argument of a program. Of several devices each gets its part of every array.

    parts: Nests, and the axis that several devices share; None: each of them gets the whole.
    """
    if backend.device_count() > 1:
        return pack([backend.to_device(nest, split=axis) for nest, axis in parts], backend.device_dtype)
    return pack([nest for nest, _ in parts], backend.device_dtype)


def sent(argument: Packed) -> Packed:
    """Return an argument whose arrays are on the device already."""
    return argument._replace(arrays=backend.to_device(list(argument.arrays)), nests=emptied(argument.nests))


def packed_fields(trajectory: Trajectory, *, greedy: bool) -> Packed:
    """Return the fields that are there as an argument of a program: those of rows, and those of columns."""
    fields = fields_of(trajectory, greedy=greedy)
    by_column = {name: fields.pop(name) for name in sorted(BY_COLUMN) if name in fields}
    return packed((fields, 1), (by_column, 0))


def fields_of(trajectory: Trajectory, *, greedy: bool) -> dict[str, Nest]:
    """Return the fields that are there, `env_index` among them.

    `action_mask` is that of the rows, `[T, B, M]`; greedy policies, whose values are of allowed actions, need
    `shown_mask [T + 1, B, M]` and `final_action_mask`, too.
    """
    fields = {name: value for name, value in trajectory._asdict().items() if value is not None}
    final = fields.pop("final_action_mask", None)
    if (mask := trajectory.action_mask) is not None:
        fields["action_mask"] = mask[:-1]
        fields |= {"shown_mask": mask} if greedy else {}
        fields |= {"final_action_mask": final} if greedy and final is not None else {}
    del fields["policy_version"]
    if "env_index" not in fields:
        fields["env_index"] = np.arange(trajectory.reward.shape[1], dtype=np.int32)
    return fields


def num_environments(trajectory: Trajectory) -> int:
    """Return the number of environments, as a batch shows it."""
    columns = int(trajectory.reward.shape[1])
    return columns if trajectory.env_index is None else max(columns, int(trajectory.env_index.max()) + 1)


def without_invalid(batch: Mapping[str, Nest]) -> dict[str, Nest]:
    """Replace the contents of invalid rows by harmless constants: 0 x NaN is NaN in a gradient."""
    valid = batch["valid"]
    result = dict(batch)
    # The bootstrap row is acted on next, so it is valid whatever the row before it was. A pool's trajectories have the
    # last observation of a truncated episode in the row after it, valid or not.
    after = batch["truncated"] if "final_row" in batch else ops.zeros_like(valid)
    seen = ops.concatenate([valid[:1], ops.logical_or(valid[1:], after[:-1]), ops.ones_like(valid[:1])], axis=0)
    result["observation"] = _zero_invalid(batch["observation"], seen)
    for name, field in FIELDS.items():
        if field.rows == 0 and field.dtype is not np.bool_:
            result[name] = _zero_invalid(batch[name], valid)
    for name, rows in (("action_mask", valid), ("shown_mask", seen)):
        if name in batch:
            result[name] = ops.logical_or(batch[name], ops.logical_not(rows)[..., None])
    return result


def _zero_invalid(values: Nest, valid: Tensor) -> Nest:
    """Return zeros where `valid [T, B]` is False, the values elsewhere."""

    def zeroed(leaf: Tensor) -> Tensor:
        rows = ops.reshape(valid, (*valid.shape, *(1,) * (len(leaf.shape) - 2)))
        return ops.where(rows, leaf, ops.cast(0, leaf.dtype))

    def zero(leaf: Tensor) -> Tensor:
        if math.prod(leaf.shape) < _LARGE:
            return zeroed(leaf)
        return backend.choose(ops.all(valid), lambda: leaf, lambda: zeroed(leaf))

    return tree.map_structure(zero, values)


def side_by_side(fields: Mapping[str, Nest]) -> dict[str, Nest]:
    """`[T, B, ...]` -> `[T x B, ...]`, for each field that has rows; of several devices one after another."""
    return {name: tree.map_structure(backend.flatten, values) for name, values in fields.items() if _has_rows(values)}


def minibatch_of(rows: Mapping[str, Nest], index: Tensor) -> dict[str, Nest]:
    """Return the rows of `index [devices, M]`, each of them of its device; where it is -1, row 0 with `valid=False`."""
    index = ops.reshape(index, (-1,))
    found: dict[str, Nest] = tree.map_structure(lambda leaf: backend.gather(leaf, ops.maximum(index, 0)), dict(rows))
    present = ops.reshape(index >= 0, (-1, *(1,) * (len(found["valid"].shape) - 1)))
    return {**found, "valid": ops.logical_and(found["valid"], present)}


def in_sequences(fields: Mapping[str, Nest], length: int) -> dict[str, Nest]:
    """`[T, B, ...]` -> `[T / length x B, length, ...]`, for each field that has rows: one sequence after another."""

    def cut(leaf: Tensor) -> Tensor:
        pieces = ops.reshape(leaf, (leaf.shape[0] // length, length, *leaf.shape[1:]))
        return backend.flatten(ops.swapaxes(pieces, 1, 2))

    return {name: tree.map_structure(cut, values) for name, values in fields.items() if _has_rows(values)}


def sequences_of(sequences: Mapping[str, Nest], index: Tensor, burn_in: int) -> dict[str, Nest]:
    """Return the rows of the sequences of `index [devices, S]`, as `minibatch_of` does, `[length x S, ...]`.

    `start [length, S]` and `initial_state`, `[S, ...]` each, stay apart. The first `burn_in` rows aren't valid.
    """
    picked = minibatch_of(sequences, index)
    state = picked.pop("initial_state")
    steps = tree.map_structure(lambda leaf: ops.swapaxes(leaf, 0, 1), picked)
    learned = ops.expand_dims(ops.arange(steps["valid"].shape[0]) >= burn_in, 1)
    steps["valid"] = ops.logical_and(steps["valid"], learned)
    rows = {name: tree.map_structure(backend.flatten, values) for name, values in steps.items() if name != "start"}
    return {**rows, "start": steps["start"], "initial_state": state}


def _has_rows(values: Nest) -> bool:
    return all(len(leaf.shape) >= 2 for leaf in tree.flatten(values))


def in_chunks(
    function: Callable[[Nest], tuple[Tensor, ...]],
    rows: Nest,
    numbers: int,
    state: backend.Variables,
    fitting: int = 1,
) -> tuple[Tensor, ...]:
    """Return `function` of rows `[R, ...]`, computed on at most `CHUNK_NUMBERS` numbers at a time to bound memory.

    function: From rows to two float32 vectors with a number for each row; it may assign to variables of `state`.
    numbers: How many numbers a row has. fitting: How many rows are known to fit into a device's memory.
    """
    total = tree.flatten(rows)[0].shape[0] // backend.device_count()
    count = math.ceil(total / max(fitting, CHUNK_NUMBERS // max(1, numbers)))
    if count <= 1:
        return function(rows)
    size = math.ceil(total / count)
    index = np.minimum(np.arange(count * size, dtype=np.int32), total - 1).reshape(count, size)
    index = np.tile(index, backend.device_count())

    def chunk(index: Tensor) -> tuple[Tensor, ...]:
        return function(tree.map_structure(lambda leaf: backend.gather(leaf, index), rows))

    return tuple(backend.flatten(values, total) for values in backend.map_chunks(chunk, index, state))
