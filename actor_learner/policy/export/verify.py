"""Checks a converted graph: random inputs and weights, each weight changed alone, all outputs compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Space

from actor_learner.policy.export.trace import Traced, Tracer
from actor_learner.policy.export.weight_table import patterns
from actor_learner.policy.exported import Array
from actor_learner.policy.graph import Graph
from actor_learner.policy.runtime import LiteRTGraph
from actor_learner.spaces import structure
from actor_learner.spaces.kinds import Box, Discrete, MultiBinary, MultiDiscrete
from actor_learner.spaces.masks import MaskLayout
from actor_learner.system.keras_import import silent_stderr

ROWS = 8
"""At least as many rows are compared."""

_TOLERANCE = 1e-4
_MINIMUM_EFFECT = 30 * _TOLERANCE
_DENSITIES = (0.1, 0.5, 0.9)
"""Of what is allowed in the masks, row by row: those that forbid nearly everything are the hardest."""


def draw_inputs(tracer: Tracer, rows: int) -> list[tuple[Array, ...]]:
    """Random inputs of the step graph, valid ones, for at least `ROWS` observations in batches of `rows`."""
    generator = np.random.default_rng(0)
    return [_draw_batch(tracer, generator, rows) for _ in range(math.ceil(ROWS / rows))]


def _draw_batch(tracer: Tracer, generator: np.random.Generator, rows: int) -> tuple[Array, ...]:
    mask = draw_mask(tracer.spaces.masks, generator, rows)
    leaves = [
        _draw_mask_leaf(leaf, mask)
        if tracer.spaces.has_mask_leaf and leaf.path[0] == structure.MASK_KEY
        else draw_leaf(leaf, generator, rows)
        for leaf in tracer.spaces.observation.leaves
    ]
    uniform, normal = tracer.distribution.noise
    # random() is in [0, 1); sampling needs (0, 1].
    draws = [1 - generator.random((rows, uniform), np.float32), generator.standard_normal((rows, normal), np.float32)]
    noise = np.concatenate(draws, axis=1)
    return (*leaves, noise, mask) if tracer.spaces.masked else (*leaves, noise)


def draw_mask(layout: MaskLayout, generator: np.random.Generator, rows: int) -> Array:
    """Masks, float32 `[rows, M]`, that allow few, half and most of the choices, and always one."""
    density = np.resize(_DENSITIES, (rows, 1))
    groups = [_some_allowed(generator.random((rows, choice.size)), density) for choice in layout.choices]
    return np.concatenate([np.zeros((rows, 0)), *groups], axis=1).astype(np.float32)


def _some_allowed(draws: Array, density: Array) -> Array:
    allowed: Array = (draws < density) | (draws == draws.min(axis=1, keepdims=True))
    return allowed


def _draw_mask_leaf(leaf: structure.Leaf, mask: Array) -> Array:
    """The mask itself where it is one leaf, for networks that read it; a part of a mask allows everything."""
    if leaf.shape == mask.shape[1:]:
        return mask.astype(leaf.dtype)
    return np.ones((len(mask), *leaf.shape), leaf.dtype)


def draw_leaf(leaf: structure.Leaf, generator: np.random.Generator, rows: int) -> Array:
    """Random values `[rows, ...]` of a leaf of observations, as they stand in a trajectory."""
    shape = (rows, *leaf.shape)
    if isinstance(leaf.space, Box) and leaf.dtype.kind == "f":
        normal = generator.standard_normal(shape)
        return np.clip(normal, leaf.space.low, leaf.space.high).astype(leaf.dtype)
    low, high = _integer_bounds(leaf.space, leaf.dtype)
    return generator.integers(low, high, shape, endpoint=True).astype(leaf.dtype)


def _integer_bounds(space: Space[Any], dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Lowest and highest integers to probe with: the space's, where they say something and aren't huge."""
    if isinstance(space, Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, MultiDiscrete):
        return 0, space.nvec.astype(np.int64) - 1
    if isinstance(space, MultiBinary):
        return 0, 1
    assert isinstance(space, Box)
    limits = np.iinfo(dtype)
    if dtype != np.uint8 and (space.low == limits.min).all() and (space.high == limits.max).all():
        return 0, 1  # the dtype's whole range: an index, perhaps
    low, high = (np.clip(bound.astype(np.float64), -255, 255).astype(np.int64) for bound in (space.low, space.high))
    return low, high


class Probe:
    """What TensorFlow gives for random inputs and weights, and for each weight changed alone."""

    def __init__(self, reference: Traced, inputs: Sequence[tuple[Array, ...]], network: keras.Model) -> None:
        self._reference = reference
        self._inputs = inputs
        self._current = [np.asarray(weight.numpy(), np.float32) for weight in network.weights]
        self._floating = [keras.backend.is_float_dtype(weight.dtype) for weight in network.weights]
        self._generator = np.random.default_rng(1)
        self._base, self._expected = self._choose_base()
        self._changed: dict[int, tuple[Array, list[Array], bool]] = {}

    def _choose_base(self) -> tuple[list[Array], list[Array]]:
        """Random weights: at an initialization with zeros in it, a wrong weight could go unseen."""
        for spread in (1.0, 0.1, 0.01):
            base = [self._random(index, spread) for index in range(len(self._current))]
            expected = self._run_reference(base)
            if all(np.isfinite(output).all() for output in expected):
                break
        return base, expected

    def _random(self, index: int, spread: float = 1.0) -> Array:
        """Another value of a weight, of a usual size; what is positive stays so (variances, say)."""
        current = self._current[index]
        if not self._floating[index] or not current.size:
            return current
        noise = self._generator.standard_normal(current.shape).astype(np.float32)
        if current.ndim > 1 and spread == 1.0:
            value = noise * (1.0 / math.sqrt(max(1, math.prod(current.shape[:-1]))))
        else:
            value = current + noise * np.float32(0.3 * spread)
        positive = (current >= 0).all() and (current > 0).any()
        return np.asarray(np.abs(value) if positive else value, np.float32)

    def _run_reference(self, weights: Sequence[Any]) -> list[Array]:
        tensors = [tf.constant(weight) for weight in weights]
        batches = [self._reference.function(*map(tf.constant, batch), *tensors) for batch in self._inputs]
        return [np.concatenate([output.numpy() for output in outputs]) for outputs in zip(*batches, strict=True)]

    def failing_weights(self, graph: Graph, traced: Traced) -> set[int]:
        """The weights whose change the graph doesn't follow in all outputs, as far as these can tell."""
        runner = _Runner(graph, self._base, traced)
        if not agree(self._expected, runner.outputs(self._inputs)):
            return self._responsible_weights(graph, traced)
        failed = set()
        for index in traced.used:
            if not self._floating[index]:
                continue
            changed, expected, telling = self._change(index)
            outputs = runner.outputs(self._inputs, {index: changed})
            if not agree(expected, outputs) or not (telling or index in graph.inputs):
                failed.add(index)
        return failed

    def _change(self, index: int) -> tuple[Array, list[Array], bool]:
        """(another value of a weight, the outputs with it, whether they differ enough to tell a stale weight)."""
        if index not in self._changed:
            for _ in range(3):
                changed = self._random(index)
                expected = self._run_reference([*self._base[:index], changed, *self._base[index + 1 :]])
                telling = not agree(self._expected, expected, _MINIMUM_EFFECT, floats_only=True)
                if telling:
                    break
            self._changed[index] = changed, expected, telling
        return self._changed[index]

    def _responsible_weights(self, graph: Graph, traced: Traced) -> set[int]:
        """Which weights make the outputs wrong: goes from the patterns, where a graph is right, to the base."""
        weights = patterns([weight.shape for weight in self._current])
        for index in set(range(len(weights))) - traced.used | set(graph.inputs):
            weights[index] = self._base[index]
        runner = _Runner(graph, weights, traced)
        failed = set()
        for index in sorted(traced.used - set(graph.inputs), reverse=True):
            pattern, weights[index] = weights[index], self._base[index]
            if not agree(self._run_reference(weights), runner.outputs(self._inputs, {index: weights[index]})):
                failed.add(index)
                weights[index] = pattern
            else:
                runner.keep(index, weights[index])
        return failed or set(traced.used)

    def is_resizable(self, graph: Graph, traced: Traced) -> bool:
        """Whether the graph gives the same at a smaller and at a larger batch size."""
        rows = [np.concatenate(arrays) for arrays in zip(*self._inputs, strict=True)]
        runner = _Runner(graph, self._base, traced)
        for size in (1 if traced.rows > 1 else 2, traced.rows + 1):
            picked = np.arange(size) % len(rows[0])
            try:
                with silent_stderr():
                    outputs = runner.resized_outputs(tuple(array[picked] for array in rows))
            except (RuntimeError, ValueError):
                return False
            if not agree([expected[picked] for expected in self._expected], outputs):
                return False
        return True


class _Runner:
    """A LiteRT graph with weights that are changed one at a time."""

    def __init__(self, graph: Graph, weights: Sequence[Array], traced: Traced) -> None:
        self._weights = [weight.copy() for weight in weights]
        self._graph = LiteRTGraph(graph, self._weights, [spec.name for spec in traced.inputs])
        self._rows = traced.rows
        self._positions = tuple(range(len(traced.function.outputs)))

    def outputs(self, batches: Sequence[tuple[Array, ...]], changed: dict[int, Array] | None = None) -> list[Array]:
        """The outputs for some batches, with weights changed for this call."""
        saved = {index: self._weights[index].copy() for index in changed or {}}
        for index, weight in (changed or {}).items():
            self.keep(index, weight)
        self._graph.discard()
        results = [self._run(batch) for batch in batches]
        for index, weight in saved.items():
            self.keep(index, weight)
        return [np.concatenate(outputs) for outputs in zip(*results, strict=True)]

    def keep(self, index: int, weight: Array) -> None:
        """Changes a weight for good."""
        self._weights[index][...] = weight

    def _run(self, batch: tuple[Array, ...]) -> list[Array]:
        """A batch may have fewer rows than the graph, which then gets them repeatedly."""
        rows = len(batch[0])
        repeated = tuple(np.resize(array, (self._rows, *array.shape[1:])) for array in batch)
        return [output[:rows] for output in self._graph.run(repeated, self._positions)]

    def resized_outputs(self, batch: tuple[Array, ...]) -> list[Array]:
        """The outputs at the batch's own size."""
        return self._graph.run_resized(batch, self._positions)


def agree(
    expected: Sequence[Array], outputs: Sequence[Array], tolerance: float = _TOLERANCE, *, floats_only: bool = False
) -> bool:
    """Whether outputs are the same but for rounding.

    Rounding may turn a rare draw into the next action: three quarters of the rows must agree in their
    integers, and these rows in their floats.
    """
    if any(a.shape != b.shape for a, b in zip(expected, outputs, strict=True)):
        return False
    same = np.ones(len(expected[0]), bool)
    for a, b in zip(expected, outputs, strict=True):
        if np.issubdtype(a.dtype, np.integer):
            same &= (a == b).reshape(len(a), -1).all(axis=1)
    if floats_only:
        same[:] = True
    elif same.mean() < 0.75:
        return False
    return all(
        _close(a[same], b[same], tolerance)
        for a, b in zip(expected, outputs, strict=True)
        if np.issubdtype(a.dtype, np.floating)
    )


def _close(a: Array, b: Array, tolerance: float) -> bool:
    scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True))
