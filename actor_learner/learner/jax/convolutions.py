"""Convolutions whose gradients XLA computes as fast in a loop as outside of one.

On CPUs XLA has a fast path for convolutions in one order of dimensions: batch, space, channels. It brings others into
this order, but not those in a loop (`ConvCanonicalization` looks at a program's entry alone), where the gradients that
JAX writes down in another order take twenty times as long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import convolution

from actor_learner.system.types import Tensor


@contextlib.contextmanager
def in_canonical_order() -> Iterator[None]:
    """Write down the gradients of convolutions in XLA's own order of dimensions, in code that is traced meanwhile."""
    with mock.patch.object(convolution, "conv_general_dilated", _convolve):
        yield


def _convolve(
    lhs: Tensor,
    rhs: Tensor,
    window_strides: Any,
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
    canonical = lax.ConvDimensionNumbers(last, (rank + 1, rank, *range(rank)), last)
    result = lax.conv_general_dilated(
        jnp.transpose(lhs, (batch, *space, channels)),
        jnp.transpose(rhs, (*window, inputs, outputs)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        canonical,
        **options,
    )
    batch, channels, *space = numbers.out_spec
    return jnp.transpose(result, np.argsort((batch, *space, channels)).tolist())
