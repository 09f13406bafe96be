"""The cost of a minibatch, and whether it is worth more than one core."""

from __future__ import annotations

import math

import keras

SMALL_FLOPS = 6e7
"""A minibatch of dense layers that costs more is dominated by arithmetic; on a CPU, oneDNN is then ahead of XLA."""


def is_small(minibatch_flops: float) -> bool:
    """Return whether dispatch outweighs arithmetic in a minibatch of dense layers: then one core is enough, too."""
    return minibatch_flops <= SMALL_FLOPS


def units(network: keras.Model) -> int:
    """Return how many numbers the layers of one row's forward pass give; of convolutions, those at one place."""
    return sum(weight.shape[-1] for weight in network.weights if len(weight.shape) >= 2)


def multiplications(network: keras.Model) -> int:
    """Return the multiplications of one row's forward pass, taken as the number of matrix elements."""
    return sum(math.prod(weight.shape) for weight in network.weights if len(weight.shape) >= 2)
