"""Compares a converted graph with the network: random inputs and weights, each weight changed alone, all outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from actor_learner.networks.step import PolicyStep
from actor_learner.policy.export.traced import Traced
from actor_learner.policy.export.weight_table import patterns
from actor_learner.policy.graph import Graph, LiteRTGraph
from actor_learner.spaces.kinds import Box
from actor_learner.spaces.masks import MaskLayout
from actor_learner.spaces.structure import MASK_KEY, Leaf, choice_counts
from actor_learner.system.keras_import import silent_stderr
from actor_learner.system.types import Array

MIN_ROWS = 8  # the least number to compare
_STATE_STEPS = 3  # after which states are compared
_TOLERANCE = 1e-4
_MIN_EFFECT = 30 * _TOLERANCE
_DENSITIES = (0.1, 0.5, 0.9)
"""Fractions of allowed choices, row by row: masks that forbid nearly everything are the hardest."""


def draw_inputs(policy: PolicyStep, rows: int, step: Traced | None = None) -> list[tuple[Array, ...]]:
    """Draws valid inputs of the step graph for at least `MIN_ROWS` observations, in batches of `rows`.

    step: The traced step for so many rows, needed for a network with memory: its states are those after some steps.
    """
    generator = np.random.default_rng(0)
    batches = [_draw_batch(policy, generator, rows) for _ in range(math.ceil(MIN_ROWS / rows))]
    return batches if step is None else [_with_state(policy, generator, batch, step) for batch in batches]


def _with_state(
    policy: PolicyStep, generator: np.random.Generator, batch: tuple[Array, ...], step: Traced
) -> tuple[Array, ...]:
    """Return inputs in the state after `_STATE_STEPS` steps; some rows start an episode then."""
    weights = [np.asarray(weight, np.float32) for weight in policy.network.get_weights()]
    seen, rows = len(policy.spaces.observation.leaves), len(batch[0])
    start = np.ones((rows, 1), np.float32)
    state = [np.zeros((rows, *shape), np.float32) for shape in policy.state_shapes]
    first = len(policy.spaces.action.leaves) + 1
    for _ in range(_STATE_STEPS):
        leaves, draws = batch[:seen], batch[seen:]
        outputs = step.run((*leaves, start, *state, *draws), weights)
        state = outputs[first : first + len(state)]
        start = (generator.random((rows, 1)) < 0.25).astype(np.float32)
        batch = _draw_batch(policy, generator, rows)
    return (*batch[:seen], start, *state, *batch[seen:])


def _draw_batch(policy: PolicyStep, generator: np.random.Generator, rows: int) -> tuple[Array, ...]:
    """Draws the inputs of a step but for the start and the state."""
    mask = draw_mask(policy.spaces.masks, generator, rows)
    leaves: list[Array] = []
    for leaf in policy.spaces.observation.leaves:
        if not (policy.spaces.has_mask_leaf and leaf.path[0] == MASK_KEY):
            leaves.append(draw_leaf(leaf, generator, rows))
        elif leaf.shape == mask.shape[1:]:  # holds the whole mask, which a network may read
            leaves.append(mask.astype(leaf.dtype))
        else:
            leaves.append(np.ones((rows, *leaf.shape), leaf.dtype))
    uniform, normal = policy.distribution.noise
    # random() is in [0, 1); sampling needs (0, 1].
    draws = [1 - generator.random((rows, uniform), np.float32), generator.standard_normal((rows, normal), np.float32)]
    noise = np.concatenate([*draws, np.full((rows, int(policy.draws)), 0.5, np.float32)], axis=1)
    return (*leaves, noise, mask) if policy.spaces.masked else (*leaves, noise)


def draw_mask(layout: MaskLayout, generator: np.random.Generator, rows: int) -> Array:
    """Draws masks, float32 `[rows, M]`, that allow few, half and most of the choices, and always one."""
    density = np.resize(_DENSITIES, (rows, 1))
    columns = [np.zeros((rows, 0))]
    for choice in layout.choices:
        draws = generator.random((rows, choice.size))
        columns.append((draws < density) | (draws == draws.min(axis=1, keepdims=True)))
    return np.concatenate(columns, axis=1).astype(np.float32)


def draw_leaf(leaf: Leaf, generator: np.random.Generator, rows: int) -> Array:
    """Draws values `[rows, ...]` of a leaf of observations, as in a trajectory."""
    space, shape = leaf.space, (rows, *leaf.shape)
    if isinstance(space, Box) and leaf.dtype.kind == "f":
        return np.clip(generator.standard_normal(shape), space.low, space.high).astype(leaf.dtype)
    low, high = _integer_bounds(leaf)
    return generator.integers(low, high, shape, endpoint=True).astype(leaf.dtype)


def _integer_bounds(leaf: Leaf) -> tuple[Any, Any]:
    """Return the lowest and highest integers to probe with: the space's, if it bounds them and they are small."""
    space = leaf.space
    if counts := choice_counts(space):
        return 0, np.reshape(counts, leaf.shape) - 1
    limits = np.iinfo(leaf.dtype)
    unbounded = isinstance(space, Box) and (space.low == limits.min).all() and (space.high == limits.max).all()
    if not isinstance(space, Box) or (unbounded and leaf.dtype != np.uint8):
        return 0, 1  # bits; or integers without bounds, which may be indices
    low, high = (np.clip(bound.astype(np.float64), -255, 255).astype(np.int64) for bound in (space.low, space.high))
    return low, high


class Probe:
    """The network's outputs for random inputs and weights, and for each weight changed alone."""

    def __init__(self, reference: Traced, inputs: Sequence[tuple[Array, ...]], network: keras.Model) -> None:
        self._reference, self._inputs = reference, inputs
        self._current = [np.asarray(weight, np.float32) for weight in network.get_weights()]
        self._floating = [keras.backend.is_float_dtype(weight.dtype) for weight in network.weights]
        self._generator = np.random.default_rng(1)
        self._base, self._expected = self._choose_base()
        self._changed: dict[int, tuple[Array, list[Array], bool]] = {}

    def _choose_base(self) -> tuple[list[Array], list[Array]]:
        """Draws random weights: zeros of an initialization could hide a wrong weight."""
        for spread in (1.0, 0.1, 0.01):
            base = [self._draw_weight(index, spread) for index in range(len(self._current))]
            expected = self._run_reference(base)
            if all(np.isfinite(output).all() for output in expected):
                break
        return base, expected

    def _draw_weight(self, index: int, spread: float = 1.0) -> Array:
        """Draws another value of a weight, of a usual size; positive weights (such as variances) stay positive."""
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

    def _run_reference(self, weights: Sequence[Array]) -> list[Array]:
        batches = [self._reference.run(batch, weights) for batch in self._inputs]
        return [np.concatenate(outputs) for outputs in zip(*batches, strict=True)]

    def failing_weights(self, graph: Graph, traced: Traced) -> set[int]:
        """Return the weights whose change the graph doesn't follow in all outputs, as far as these show it."""
        runner = _Runner(graph, traced)
        if not agree(self._expected, runner.outputs(self._inputs, self._base)):
            return self._responsible_weights(graph, traced)
        failed = set()
        for index in [index for index in traced.used if self._floating[index]]:
            changed, expected, shows = self._change_weight(index)
            outputs = runner.outputs(self._inputs, self._replace_in_base(index, changed))
            if not agree(expected, outputs) or not (shows or index in graph.inputs):
                failed.add(index)
        return failed

    def _replace_in_base(self, index: int, weight: Array) -> list[Array]:
        return [*self._base[:index], weight, *self._base[index + 1 :]]

    def _change_weight(self, index: int) -> tuple[Array, list[Array], bool]:
        """Return (another value of a weight, the outputs with it, True if they differ enough to show a stale one)."""
        if index not in self._changed:
            for _ in range(3):
                changed = self._draw_weight(index)
                expected = self._run_reference(self._replace_in_base(index, changed))
                shows = not agree(self._expected, expected, _MIN_EFFECT, floats_only=True)
                if shows:
                    break
            self._changed[index] = changed, expected, shows
        return self._changed[index]

    def _responsible_weights(self, graph: Graph, traced: Traced) -> set[int]:
        """Return the weights that make the outputs wrong: changes one after the other from its pattern to the base.

        A graph whose weights are the patterns is right.
        """
        weights = patterns([weight.shape for weight in self._current])
        for index in set(range(len(weights))) - traced.used | set(graph.inputs):
            weights[index] = self._base[index]
        runner = _Runner(graph, traced)
        failed = set()
        for index in sorted(traced.used - set(graph.inputs), reverse=True):
            pattern, weights[index] = weights[index], self._base[index]
            if not agree(self._run_reference(weights), runner.outputs(self._inputs, weights)):
                failed.add(index)
                weights[index] = pattern
        return failed or set(traced.used)

    def is_resizable(self, graph: Graph, traced: Traced) -> bool:
        """Return True if the graph computes the same at a smaller and at a larger batch size."""
        rows = [np.concatenate(arrays) for arrays in zip(*self._inputs, strict=True)]
        runner = _Runner(dataclasses.replace(graph, resizable=True), traced)
        for size in (1 if traced.rows > 1 else 2, traced.rows + 1):
            picked = np.arange(size) % len(rows[0])
            try:
                with silent_stderr():
                    outputs = runner.outputs([tuple(array[picked] for array in rows)], self._base)
            except (RuntimeError, ValueError):
                return False
            if not agree([expected[picked] for expected in self._expected], outputs):
                return False
        return True


class _Runner:
    """A LiteRT graph, run with any weights."""

    def __init__(self, graph: Graph, traced: Traced) -> None:
        self._weights = [np.zeros(spec.shape, np.float32) for spec in traced.weights]
        self._graph = LiteRTGraph(graph, self._weights, [spec.name for spec in traced.inputs], traced.rows)
        self._positions = tuple(range(traced.outputs))

    def outputs(self, batches: Sequence[tuple[Array, ...]], weights: Sequence[Array]) -> list[Array]:
        for view, weight in zip(self._weights, weights, strict=True):
            np.copyto(view, weight)
        self._graph.discard()
        results = [self._graph.run(batch, self._positions) for batch in batches]
        return [np.concatenate(outputs) for outputs in zip(*results, strict=True)]


def agree(
    expected: Sequence[Array], outputs: Sequence[Array], tolerance: float = _TOLERANCE, *, floats_only: bool = False
) -> bool:
    """Return True if outputs differ by rounding only.

    Rounding may turn a rare draw into the next action: three quarters of the rows must agree in their integers, and
    these rows in their floats.
    """
    pairs = list(zip(expected, outputs, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return False
    same = np.ones(len(expected[0]), bool)
    for a, b in pairs:
        if np.issubdtype(a.dtype, np.integer) and not floats_only:
            same &= (a == b).reshape(len(a), -1).all(axis=1)
    floats = [(a[same], b[same]) for a, b in pairs if np.issubdtype(a.dtype, np.floating)]
    return bool(same.mean() >= 0.75) and all(_close(a, b, tolerance) for a, b in floats)


def _close(a: Array, b: Array, tolerance: float) -> bool:
    scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True))
