"""Arrays for the device, packed: small ones lie side by side in one vector, because each transfer takes its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops, tree

from actor_learner.system.types import Array, Nest, Tensor

MAX_BYTES = 2**16
"""Larger arrays travel alone: a further copy on the host would take longer than a transfer of their own."""

_WORD = 4  # bytes


class _Leaf(NamedTuple):
    """An array's place. dtype: NumPy's, or the backend's. start: Its first word in the vector, -1 where it is alone."""

    shape: tuple[int, ...]
    dtype: Any  # whose name would take two microseconds
    start: int


class Packed(NamedTuple):
    """Nests of arrays.

    arrays: The vector of words, int32, if there are small ones, then the arrays that are alone. names: Of the fields of
    each nest, which tell arguments with equal shapes apart.
    """

    arrays: Sequence[Any]
    leaves: tuple[_Leaf, ...]
    names: tuple[tuple[str, ...], ...]
    nests: Sequence[Nest]


def pack(nests: Sequence[Nest], device_dtype: Callable[[Any], np.dtype[Any]]) -> Packed:
    """Put the small NumPy arrays and scalars of nests side by side. Tensors stay alone.

    device_dtype: Returns the dtype that an array of some dtype has on the device.
    """
    names = tuple(tuple(sorted(nest)) if isinstance(nest, dict) else () for nest in nests)
    leaves: list[_Leaf] = []
    small: list[tuple[Any, np.dtype[Any], int, int]] = []  # with its first byte, and that after its last
    alone: list[Any] = []
    end = 0
    for array in tree.flatten(nests):
        if not isinstance(array, np.ndarray | np.generic):
            leaves.append(_Leaf(tuple(array.shape), array.dtype, -1))
            alone.append(array)
            continue
        dtype = device_dtype(array.dtype)
        size = array.size * dtype.itemsize
        if size > MAX_BYTES:
            leaves.append(_Leaf(array.shape, dtype, -1))
            alone.append(array.astype(dtype, copy=False))
            continue
        leaves.append(_Leaf(array.shape, dtype, end))
        small.append((array, dtype, end * _WORD, end * _WORD + size))
        end += -(-size // _WORD)
    if not small:
        return Packed(alone, tuple(leaves), names, nests)
    words = np.empty(end, np.int32)
    memory = words.view(np.uint8)
    for array, dtype, first, last in small:
        memory[first:last].view(dtype).reshape(array.shape)[...] = array
    return Packed([words, *alone], tuple(leaves), names, nests)


def arrays_of(arguments: Sequence[Nest | Packed]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the arrays of arguments, and a key that arguments with the same graph have in common."""
    arrays: list[Any] = []
    key: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Packed):
            arrays.extend(argument.arrays)
            key.append((argument.names, argument.leaves))
        else:
            found = tree.flatten(argument)
            arrays.extend(found)
            key.extend((array.shape, array.dtype) for array in found)
    return arrays, tuple(key)


def of_arrays(
    function: Callable[..., Any], arguments: Sequence[Nest | Packed], bitcast: Callable[[Tensor, str], Tensor]
) -> Callable[[Sequence[Tensor]], Any]:
    """Return `function` of arguments like these as a function of their arrays, to be traced.

    bitcast: Returns a tensor's bits as those of a dtype, one axis more where that is smaller, one less where larger.
    """
    like = [
        argument._replace(arrays=[None] * len(argument.arrays), nests=emptied(argument.nests))
        if isinstance(argument, Packed)
        else emptied(argument)
        for argument in arguments
    ]

    def of_arrays(arrays: Sequence[Tensor]) -> Any:
        remaining = iter(arrays)
        return function(*(_filled(argument, remaining, bitcast) for argument in like))

    return of_arrays


def emptied(nest: Nest) -> Nest:
    """Return a nest of the same structure that keeps no array alive."""
    return tree.map_structure(lambda _: 0, nest)


def _filled(like: Nest | Packed, arrays: Iterator[Tensor], bitcast: Callable[[Tensor, str], Tensor]) -> Nest:
    """Return a nest like this one, of the next arrays."""
    if not isinstance(like, Packed):
        return tree.pack_sequence_as(like, list(itertools.islice(arrays, len(tree.flatten(like)))))
    words = next(arrays) if any(leaf.start >= 0 for leaf in like.leaves) else None
    leaves = [next(arrays) if leaf.start < 0 else _cut(words, leaf, bitcast) for leaf in like.leaves]
    return tree.pack_sequence_as(like.nests, leaves)


def _cut(words: Tensor, leaf: _Leaf, bitcast: Callable[[Tensor, str], Tensor]) -> Tensor:
    """Return a small array."""
    dtype = np.dtype(np.uint8) if leaf.dtype == np.bool_ else leaf.dtype
    count = math.prod(leaf.shape)
    piece = words[leaf.start : leaf.start + -(-count * dtype.itemsize // _WORD)]
    if dtype.itemsize > _WORD:
        piece = ops.reshape(piece, (-1, dtype.itemsize // _WORD))
    values = ops.reshape(bitcast(piece, dtype.name), (-1,))[:count]
    return ops.cast(ops.reshape(values, leaf.shape), leaf.dtype.name)


def split_weights(
    vector: Array, shapes: Sequence[tuple[int, ...]], reshape: Callable[[Any, tuple[int, ...]], Any] = np.reshape
) -> list[Array]:
    """Return the arrays of these shapes that were raveled into a vector, as views on it. reshape: That of its kind."""
    ends = itertools.accumulate(map(math.prod, shapes), initial=0)
    return [
        reshape(vector[start:end], shape) for (start, end), shape in zip(itertools.pairwise(ends), shapes, strict=True)
    ]
