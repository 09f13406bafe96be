"""Batches as nests of tensors: what stands in invalid rows, rows side by side, and minibatches of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from actor_learner.spaces.trajectory import Trajectory

Tensor = Any
Nest = Any
"""A tensor, or dicts and tuples of these."""

CHUNK_NUMBERS = 2**22
"""How many numbers of observations enter the network at once where no gradient is needed: 150 Atari frame stacks."""


_LARGE = 2**22
"""Numbers of which a copy is worth a look at whether it is needed, which XLA can't fuse."""


def tensors(trajectory: Trajectory) -> dict[str, Nest]:
    """The fields that are there, each copied once to the device, in its own dtype."""
    fields = {name: value for name, value in trajectory._asdict().items() if value is not None}
    del fields["policy_version"]
    if "env_index" not in fields:
        fields["env_index"] = np.arange(trajectory.reward.shape[1], dtype=np.int32)
    converted: dict[str, Nest] = tf.nest.map_structure(tf.constant, fields)
    return converted


def without_invalid(batch: Mapping[str, Nest]) -> dict[str, Nest]:
    """Harmless constants in place of what stands in invalid rows: 0 x NaN is NaN in a gradient."""
    valid = batch["valid"]
    result = dict(batch)
    # The bootstrap row is acted on next, so it is valid whatever the row before it was.
    seen = ops.concatenate([valid, ops.ones_like(valid[:1])], axis=0)
    result["observation"] = _keep(batch["observation"], seen)
    for name in ("action", "reward", "behaviour_log_prob", "truncation_value"):
        result[name] = _keep(batch[name], valid)
    if "action_mask" in batch:
        result["action_mask"] = ops.logical_or(batch["action_mask"], ops.logical_not(valid)[..., None])
    return result


def _keep(values: Nest, valid: Tensor) -> Nest:
    """Zeros where `valid [T, B]` is False."""

    def zeroed(leaf: Tensor) -> Tensor:
        rows = ops.reshape(valid, (*valid.shape, *(1,) * (len(leaf.shape) - 2)))
        return ops.where(rows, leaf, ops.cast(0, leaf.dtype))

    def keep(leaf: Tensor) -> Tensor:
        if math.prod(leaf.shape) < _LARGE:
            return zeroed(leaf)
        return tf.cond(tf.reduce_all(valid), lambda: leaf, lambda: zeroed(leaf))

    return tf.nest.map_structure(keep, values)


def with_bootstrap_row(values: Nest) -> Nest:
    """`[T, B, ...]` -> `[T + 1, B, ...]`, the last row twice: something to stand beside the bootstrap observation."""
    return tf.nest.map_structure(lambda leaf: ops.concatenate([leaf, leaf[-1:]], axis=0), values)


def without_bootstrap_row(values: Nest) -> Nest:
    """`[T + 1, B, ...]` -> `[T, B, ...]`."""
    return tf.nest.map_structure(lambda leaf: leaf[:-1], values)


def side_by_side(fields: Mapping[str, Nest]) -> dict[str, Nest]:
    """`[T, B, ...]` -> `[T x B, ...]`, for each field that has rows."""

    def flat(leaf: Tensor) -> Tensor:
        return ops.reshape(leaf, (math.prod(leaf.shape[:2]), *leaf.shape[2:]))

    return {
        name: tf.nest.map_structure(flat, values)
        for name, values in fields.items()
        if all(len(leaf.shape) >= 2 for leaf in tf.nest.flatten(values))
    }


def minibatch_of(rows: Mapping[str, Nest], index: Tensor) -> dict[str, Nest]:
    """The rows of `index [M]`; where it is -1, row 0 with `valid=False`."""
    present = index >= 0
    index = tf.maximum(index, 0)
    minibatch: dict[str, Nest] = tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), dict(rows))
    minibatch["valid"] = tf.logical_and(minibatch["valid"], present)
    return minibatch


def in_chunks(function: Callable[[Nest], tuple[Tensor, ...]], rows: Nest, numbers: int) -> tuple[Tensor, ...]:
    """`function` of rows `[R, ...]`, at most `CHUNK_NUMBERS` numbers at a time, so that memory stays bounded.

    function: from rows to float32 vectors with a number for each; numbers: how many a row has.
    """
    total = tf.nest.flatten(rows)[0].shape[0]
    count = math.ceil(total / max(1, CHUNK_NUMBERS // max(1, numbers)))
    if count <= 1:
        return function(rows)
    size = math.ceil(total / count)
    index = np.minimum(np.arange(count * size, dtype=np.int32), total - 1).reshape(count, size)

    def chunk(index: Tensor) -> tuple[Tensor, ...]:
        return function(tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), rows))

    vector = tf.TensorSpec((size,), tf.float32)
    chunks = tf.map_fn(chunk, tf.constant(index), fn_output_signature=(vector, vector), parallel_iterations=1)
    return tuple(ops.reshape(values, (count * size,))[:total] for values in chunks)
