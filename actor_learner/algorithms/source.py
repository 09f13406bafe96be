"""The source of an update's minibatches: which rows, in which order, and how many."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from actor_learner.system.types import Array

_MIN_ROWS_PER_CALL = 8192
"""From so many rows on, a call for each epoch is faster than one call for all, up to 1.5 times."""


@dataclass(frozen=True)
class ShuffledEpochs:
    """Several passes over a batch, each in a random order. minibatch_size: None takes the batch whole.

    sequence_length: Above 1, minibatches are of whole sequences: an index counts pieces of so many rows of a column.
    """

    epochs: int = 1
    minibatch_size: int | None = None
    sequence_length: int = 1

    def check_batch(self, steps: int, columns: int) -> None:
        """Warn of what doesn't fit a learner's first batch."""
        size = self.minibatch_size
        if size is not None and size > steps * columns:
            warnings.warn(
                f"`minibatch_size` is larger than a batch of {steps} x {columns} rows, which is taken whole. "
                f"Received: minibatch_size={size}",
                stacklevel=5,
            )

    def shape(self, batch_rows: int) -> tuple[int, int]:
        """Return the most minibatches of an update from so many rows, and the rows (or sequences) of each."""
        count = batch_rows // self.sequence_length
        size = count if self.minibatch_size is None else min(self.minibatch_size // self.sequence_length, count)
        return self.epochs * math.ceil(count / size), size

    def order(self, valid: Array, rng: np.random.Generator) -> tuple[Array, int]:
        """Cut a random order of the valid rows into minibatches, for each epoch; the last one may not be full.

        valid: `[T, B]` of the batch. Returns row indices `[minibatches, minibatch_size]`, -1 for none, and how many
        minibatches are learned.
        """
        pieces = valid.reshape(-1, self.sequence_length, valid.shape[1]).any(axis=1)
        rows = np.flatnonzero(pieces.reshape(-1))  # of 64 bits, which NumPy permutes fastest
        order = np.full(self.shape(valid.size), -1, np.int32)
        per_epoch = math.ceil(rows.size / order.shape[1])
        epochs = order[: self.epochs * per_epoch].reshape(self.epochs, per_epoch * order.shape[1])
        if rows.size < _MIN_ROWS_PER_CALL:
            epochs[:, : rows.size] = rng.permuted(np.tile(rows, (self.epochs, 1)), axis=1)
        else:
            for epoch in epochs:
                epoch[: rows.size] = rng.permutation(rows)  # the same order
        return order, self.epochs * per_epoch

    def share(self, devices: int) -> ShuffledEpochs:
        """Return epochs of a device's part of each minibatch. Raises ValueError if they can't be shared evenly."""
        size = self.minibatch_size
        if size is not None and size % devices:
            received = f"minibatch_size={size}, devices={devices}"
            raise ValueError(f"`minibatch_size` must be a multiple of the devices. Received: {received}")
        return self if size is None else replace(self, minibatch_size=size // devices)

    def longest_sequence(self, steps: int) -> int:
        """Return the longest divisor of `steps` that a minibatch can hold; all of them where only single rows fit."""
        most = steps if self.minibatch_size is None else min(steps, self.minibatch_size)
        return next((length for length in range(most, 1, -1) if steps % length == 0), steps)

    def of_sequences(self, length: int) -> ShuffledEpochs:
        """Return epochs of sequences of so many rows. Raises ValueError if a minibatch can't hold one."""
        if self.minibatch_size is not None and self.minibatch_size < length:
            raise ValueError(
                f"`minibatch_size` must be at least a sequence of {length} rows, since the network has memory; "
                f"`sequence_length` makes sequences shorter. Received: minibatch_size={self.minibatch_size}"
            )
        return replace(self, sequence_length=length)
