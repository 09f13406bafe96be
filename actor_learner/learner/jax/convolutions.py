"""Convolutions in the form that XLA computes fastest, on CPUs and on GPUs.

On CPUs XLA has a fast path for convolutions in one order of dimensions: batch, space, channels. It brings others into
this order, but not those in a loop (`ConvCanonicalization` looks at a program's entry alone), where the gradients that
JAX writes down in another order take twenty times as long.

The units of GPUs that multiply matrices take eight channels at once. Where there are fewer, as in the first layer of an
image network, cuDNN computes on other units. There, the pixels within a stride become channels.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
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
    with _replaced(convolution, _convolve):
        yield


@contextlib.contextmanager
def with_enough_channels() -> Iterator[None]:
    """Write down convolutions with strides over few channels as ones without strides, in code that is traced meanwhile.

    That is exact, but for the order of sums. The strides must divide the window.
    """
    with _replaced(lax, _convolve_blocks):
        yield


@contextlib.contextmanager
def _replaced(module: Any, convolve: Callable[..., Tensor]) -> Iterator[None]:
    """Replace a module's `conv_general_dilated` by `convolve`, whose fifth argument names the dimensions in full."""

    def conv_general_dilated(
        lhs: Tensor,
        rhs: Tensor,
        window_strides: Sequence[int],
        padding: Any,
        lhs_dilation: Any = None,
        rhs_dilation: Any = None,
        dimension_numbers: Any = None,
        **options: Any,
    ) -> Tensor:
        numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        options |= {"lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation}
        return convolve(lhs, rhs, window_strides, padding, numbers, **options)

    with _one_at_a_time, mock.patch.object(module, "conv_general_dilated", conv_general_dilated):
        yield


def _convolve(
    lhs: Tensor, rhs: Tensor, strides: Sequence[int], padding: Any, numbers: lax.ConvDimensionNumbers, **options: Any
) -> Tensor:
    """Transpose the operands before, and the result after."""
    (batch, channels, *space), (outputs, inputs, *window) = numbers.lhs_spec, numbers.rhs_spec
    rank = len(space)
    last = (0, rank + 1, *range(1, rank + 1))
    result = _conv_general_dilated(
        jnp.transpose(lhs, (batch, *space, channels)),
        jnp.transpose(rhs, (*window, inputs, outputs)),
        strides,
        padding,
        dimension_numbers=lax.ConvDimensionNumbers(last, (rank + 1, rank, *range(rank)), last),
        **options,
    )
    batch, channels, *space = numbers.out_spec
    return jnp.transpose(result, np.argsort((batch, *space, channels)).tolist())


def _convolve_blocks(
    lhs: Tensor, rhs: Tensor, strides: Sequence[int], padding: Any, numbers: lax.ConvDimensionNumbers, **options: Any
) -> Tensor:
    """Make blocks of pixels, as large as the strides, pixels of more channels."""
    (_, channels, *space), (_, inputs, *window) = numbers.lhs_spec, numbers.rhs_spec
    sizes = [rhs.shape[axis] for axis in window]
    dilations = [*(options["lhs_dilation"] or ()), *(options["rhs_dilation"] or ())]
    factors = {*dilations, options.get("feature_group_count", 1)}
    divides = not any(size % stride for size, stride in zip(sizes, strides, strict=True))
    if lhs.shape[channels] >= _MIN_CHANNELS or max(strides) == 1 or not divides or max(factors) > 1:
        return _conv_general_dilated(lhs, rhs, strides, padding, dimension_numbers=numbers, **options)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads([lhs.shape[axis] for axis in space], sizes, strides, padding)
    edges = [(0, 0, 0)] * lhs.ndim
    for axis, (before, after), size, stride in zip(space, padding, sizes, strides, strict=True):
        rest = (lhs.shape[axis] + before + after - size) % stride  # pixels that no window reaches
        edges[axis] = (before, after - rest, 0)
    padded = lax.pad(lhs, jnp.zeros((), lhs.dtype), edges)
    blocks, kernels = _blocks(padded, space, channels, strides), _blocks(rhs, window, inputs, strides)
    return _convolve(blocks, kernels, [1] * len(space), "VALID", numbers, **options)


def _blocks(array: Tensor, axes: Sequence[int], channels: int, strides: Sequence[int]) -> Tensor:
    """Return an array that is shorter along some axes, by the strides, and has all values of each block as channels."""
    within = dict(zip(axes, strides, strict=True))
    parts = [(n // within[axis], within[axis]) if axis in within else (n,) for axis, n in enumerate(array.shape)]
    places = list(itertools.accumulate(map(len, parts), initial=0))
    order = list(places[:-1])
    order[channels:channels] = [places[axis] + 1 for axis in axes]
    shape = [part[0] for part in parts]
    shape[channels] *= math.prod(strides)
    return jnp.reshape(jnp.transpose(jnp.reshape(array, list(itertools.chain(*parts))), order), shape)
