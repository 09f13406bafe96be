"""Finds the bytes of a converted graph that hold each weight of a network.

Each weight is converted as a constant of unique bit patterns. Those identify the weight in the flatbuffer's buffers,
and its transposition there. A weight that the converter multiplied by a constant is recognized too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from actor_learner.policy.graph import Constant
from actor_learner.system.types import Array

# Patterns are positive floats from 1/32 on. The odd start keeps a network's own constants (such as 1/32) from looking
# like a weight. A distance of 8 units in the last place keeps patterns distinct after multiplication by a constant.
_FIRST_PATTERN = 0x3D00_0003
_PATTERN_STEP = 8


def patterns(shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return an array for each weight: float32 values whose bits occur nowhere else."""
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    return [pattern_values(end - math.prod(shape), end).reshape(shape) for end, shape in zip(ends, shapes, strict=True)]


def pattern_values(start: int, end: int) -> Array:
    return (_FIRST_PATTERN + _PATTERN_STEP * np.arange(start, end, dtype=np.int64)).astype(np.uint32).view(np.float32)


def find_constants(content: bytes, shapes: Sequence[tuple[int, ...]], sought: Iterable[int]) -> tuple[Constant, ...]:
    """Find the buffers of a flatbuffer that hold a whole weight of `sought`, transposed or times a constant."""
    starts = np.cumsum([0, *(math.prod(shape) for shape in shapes)], dtype=np.int64)
    sought = set(sought)
    found, rest = [], []
    for offset, bits in _buffers(content):
        index, remainder = np.divmod(bits.astype(np.int64) - _FIRST_PATTERN, _PATTERN_STEP)
        if remainder.any() or index.min() < 0 or index.max() >= starts[-1]:
            rest.append((offset, bits.view(np.float32)))
            continue
        weight = int(np.searchsorted(starts, index[0], "right")) - 1
        if weight in sought and math.prod(shapes[weight]) == len(bits):
            permutation = permutation_of(index - starts[weight], shapes[weight])
            if permutation is not None:
                found.append(Constant(weight, offset, permutation, 1.0))
    # Weights that were not found come first: multiplied weights of the same shape may look alike.
    missing = sought - {constant.weight for constant in found}
    candidates = [weight for weight in (*sorted(missing), *sorted(sought - missing)) if len(shapes[weight]) > 1]
    for offset, values in rest:
        for weight in candidates:
            if starts[weight + 1] - starts[weight] == len(values):
                pattern = pattern_values(starts[weight], starts[weight + 1])
                if match := scaled_by(values, pattern, shapes[weight]):
                    found.append(Constant(weight, offset, *match))
                    break
    return tuple(found)


def _buffers(content: bytes) -> Iterator[tuple[int, Array]]:
    """Yield (offset, contents as uint32) of each buffer that can hold floats."""
    model = schema.Model.GetRootAsModel(content, 0)
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    for number in range(model.BuffersLength()):
        data = model.Buffers(number).DataAsNumpy()
        if isinstance(data, np.ndarray) and data.size and data.size % 4 == 0:
            offset = data.__array_interface__["data"][0] - start
            yield offset, np.frombuffer(content, np.uint32, data.size // 4, offset)


def output_names_of(content: bytes) -> list[str]:
    """Return the names of a flatbuffer's outputs, in its order."""
    graph = schema.Model.GetRootAsModel(content, 0).Subgraphs(0)
    return [graph.Tensors(graph.Outputs(place)).Name().decode() for place in range(graph.OutputsLength())]


def permutation_of(index: Array, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the transposition of an array of `shape` that puts element `index[k]` at place k, if there is one."""
    order = np.arange(len(index)).reshape(shape)
    for permutation in itertools.permutations(range(len(shape))):
        if np.array_equal(order.transpose(permutation).reshape(-1), index):
            return permutation
    return None


def scaled_by(values: Array, pattern: Array, shape: tuple[int, ...]) -> tuple[tuple[int, ...], float] | None:
    """Return (transposition, factor) if `values` are a weight's pattern, transposed and times a constant."""
    nearest = values.max() if values[0] < 0 else values.min()
    factor = float(nearest) / float(pattern[0])
    if not math.isfinite(factor) or factor == 0.0:
        return None
    with np.errstate(all="ignore"):
        unscaled = (values / factor).astype(np.float32).view(np.uint32).astype(np.int64)
    first = int(pattern[:1].view(np.uint32)[0])
    permutation = permutation_of((unscaled - first + _PATTERN_STEP // 2) // _PATTERN_STEP, shape)
    if permutation is None:
        return None
    ratios = values.astype(np.float64) / pattern.reshape(shape).transpose(permutation).reshape(-1)
    return permutation, float(np.float32(ratios.mean()))
