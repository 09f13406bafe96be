"""Convolutions in the form that XLA computes fastest, on CPUs and on GPUs.

On CPUs XLA has a fast path for convolutions in one order of dimensions: batch, space, channels. It brings others into
this order, but not those in a loop (`ConvCanonicalization` looks at a program's entry alone), where the gradients that
JAX writes down in another order take twenty times as long.

The units of GPUs that multiply matrices take eight channels at once. Where there are fewer, as in the first layer of an
image network, cuDNN computes on other units. There, the pixels within a stride become channels.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import convolution

from actor_learner.system.types import Tensor

_MIN_CHANNELS = 8
_conv_general_dilated = lax.conv_general_dilated
_one_at_a_time = threading.RLock()
"""Threads that replaced the function of the whole process at the same time could leave it replaced."""


@contextlib.contextmanager
def in_canonical_order() -> Iterator[None]:
    """Write down the gradients of convolutions in XLA's own order of dimensions, in code that is traced meanwhile."""
    with _one_at_a_time, mock.patch.object(convolution, "conv_general_dilated", _convolve):
        yield


@contextlib.contextmanager
def with_enough_channels() -> Iterator[None]:
    """Write down convolutions with strides over few channels as ones without strides, in code that is traced meanwhile.

    That is exact, but for the order of sums. The strides must divide the window.
    """
    with _one_at_a_time, mock.patch.object(lax, "conv_general_dilated", _convolve_blocks):
        yield


def _convolve(
    lhs: Tensor,
    rhs: Tensor,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    **options: Any,
) -> Tensor:
    """Replace `lax.conv_general_dilated`: transposes its operands before, and its result after."""
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    (batch, channels, *space), (outputs, inputs, *window) = numbers.lhs_spec, numbers.rhs_spec
    rank = len(space)
    last = (0, rank + 1, *range(1, rank + 1))
    result = _conv_general_dilated(
        jnp.transpose(lhs, (batch, *space, channels)),
        jnp.transpose(rhs, (*window, inputs, outputs)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        lax.ConvDimensionNumbers(last, (rank + 1, rank, *range(rank)), last),
        **options,
    )
    batch, channels, *space = numbers.out_spec
    return jnp.transpose(result, np.argsort((batch, *space, channels)).tolist())


def _convolve_blocks(
    lhs: Tensor,
    rhs: Tensor,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    **options: Any,
) -> Tensor:
    """Replace `lax.conv_general_dilated`: blocks of pixels, as large as the strides, become pixels of more channels."""
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    (_, channels, *space), (_, _, *window) = numbers.lhs_spec, numbers.rhs_spec
    sizes, strides = [rhs.shape[axis] for axis in window], list(window_strides)
    factors = {*(lhs_dilation or ()), *(rhs_dilation or ()), options.get("feature_group_count", 1)}
    divides = not any(size % stride for size, stride in zip(sizes, strides, strict=True))
    if lhs.shape[channels] >= _MIN_CHANNELS or max(strides) == 1 or not divides or max(factors) > 1:
        dilations = lhs_dilation, rhs_dilation
        return _conv_general_dilated(lhs, rhs, window_strides, padding, *dilations, dimension_numbers, **options)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads([lhs.shape[axis] for axis in space], sizes, strides, padding)
    for axis, (before, after), size, stride in zip(space, padding, sizes, strides, strict=True):
        rest = (lhs.shape[axis] + before + after - size) % stride  # pixels that no window reaches
        edges = [(0, 0, 0)] * lhs.ndim
        edges[axis] = (before, after - rest, 0)
        lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), edges)
    blocks, kernels = _blocks(lhs, space, channels, strides), _blocks(rhs, window, numbers.rhs_spec[1], strides)
    return _convolve(blocks, kernels, [1] * len(space), "VALID", dimension_numbers=numbers, **options)


def _blocks(array: Tensor, axes: Sequence[int], channels: int, strides: Sequence[int]) -> Tensor:
    """Return an array that is shorter along some axes, by the strides, and has all values of each block as channels."""
    rank, rest = len(axes), [axis for axis in range(array.ndim) if axis not in (*axes, channels)]
    last = jnp.transpose(array, (*rest, *axes, channels))
    outer = [length // stride for length, stride in zip(last.shape[-rank - 1 : -1], strides, strict=True)]
    apart = [part for pair in zip(outer, strides, strict=True) for part in pair]
    first = len(rest)
    split = jnp.reshape(last, (*last.shape[:first], *apart, last.shape[-1]))
    order = [*range(first), *range(first, first + 2 * rank, 2), *range(first + 1, first + 2 * rank, 2), split.ndim - 1]
    merged = jnp.reshape(
        jnp.transpose(split, order), (*last.shape[:first], *outer, math.prod(strides) * last.shape[-1])
    )
    return jnp.transpose(merged, np.argsort((*rest, *axes, channels)).tolist())
