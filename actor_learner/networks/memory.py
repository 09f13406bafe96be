"""Memory as a layer of an ordinary Keras network, from rows to rows.

Outside of `Memories.stepping`, a call is the first step of an episode, from the initial state.
Registered names are in saved networks: they must not change.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops, tree

from actor_learner.networks.unrolling import Scan, unroll_for
from actor_learner.system.fields import refusal
from actor_learner.system.types import Nest, Tensor


class MemoryContractError(ValueError):
    """A layer that remembers isn't as `Memory` says."""


class Memory(layers.Layer):  # type: ignore[misc]
    """The base of layers that remember: `[N, ...]` -> `[N, ...]`, where row i belongs to sequence i.

    A subclass overrides `initial_state` and `step`; otherwise its constructor raises TypeError. All arrays of a state
    are float32 `[N, ...]`. Actors carry the state from one env step to the next. Where an episode starts, the initial
    state takes its place. The learner calls `unroll`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("initial_state", "step"):
            if getattr(type(self), name) is getattr(Memory, name):
                raise TypeError(f"A subclass of al.Memory must have `{name}`. Received: {type(self).__name__} without")

    def initial_state(self, rows: Any) -> Nest:
        """Return the state with which `rows` episodes start: a tensor `[rows, ...]`, or a tuple of them."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Return the output `[N, ...]` for inputs `[N, ...]` and the next state, shaped like `state`."""
        raise NotImplementedError

    def checked_step(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Return the result of `step`. Raises ValueError if that isn't a pair, because two rows could be taken for
        one.
        """
        result = self.step(x, state)
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            received = f"{type(self).__name__}.step, which returns {type(result).__name__}"
            raise MemoryContractError(f"`step` of a memory must return (output, state). Received: {received}")
        if not _is_state(result[1]):
            received = f"{type(self).__name__}.step, which returns {result[1]!r} as the state"
            raise MemoryContractError(f"The state of a memory must be tensors [N, ...]. Received: {received}")
        return result[0], result[1]

    def unroll(self, x: Tensor, state: Nest, start: Tensor) -> tuple[Tensor, Nest]:
        """Return outputs `[T, N, ...]` and the last state, as T calls of `step` give them.

        x: `[T, N, ...]`. state: The state before the first step. start: `[T, N]`, True where an episode starts with
            this step; the state before it is then the initial one. The gradient is that of backpropagation through
            these T steps.
        """
        initial = self.initial_state(x.shape[1])

        def body(state: Nest, inputs: tuple[Tensor, Tensor]) -> tuple[Nest, Tensor]:
            x, start = inputs
            output, state = self.checked_step(x, reset_where(start, initial, state))
            return state, output

        state, output = _scan()(body, state, (x, start))
        return output, state

    def call(self, x: Tensor) -> Tensor:
        if (steps := _steps.get()) is None:
            if _requires_state.get():
                raise RuntimeError(f"Layer {self.name!r} must be called with the state that it goes on from")
            return self.checked_step(x, checked_initial_state(self, _count_rows(x)))[0]
        return steps.call(self, x)

    def compute_output_spec(self, x: Any) -> Any:
        known = keras.KerasTensor((2, *x.shape[1:]), x.dtype)  # steps may need a known number of rows
        output = super().compute_output_spec(known)
        return keras.KerasTensor((x.shape[0], *output.shape[1:]), output.dtype)


def _is_state(state: Nest) -> bool:
    leaves = tree.flatten(state)
    return bool(leaves) and all(len(getattr(leaf, "shape", ())) > 0 for leaf in leaves)


def checked_initial_state(layer: Memory, rows: Any) -> Nest:
    """Return the state with which `rows` episodes start. Raises ValueError where it isn't one of tensors."""
    state = layer.initial_state(rows)
    if not _is_state(state):
        received = f"{type(layer).__name__}.initial_state, which returns {state!r}"
        raise MemoryContractError(
            f"`initial_state` of a memory must return a tensor [rows, ...], or a tuple of them. Received: {received}"
        )
    return state


def _count_rows(x: Tensor) -> Any:
    """Return the number of rows: an int where it is known."""
    return ops.shape(x)[0] if x.shape[0] is None else x.shape[0]


def reset_where(start: Tensor, initial: Nest, state: Nest) -> Nest:
    """Return the initial state in the rows where `start [N]` holds, the state elsewhere."""

    def choose(initial: Tensor, state: Tensor) -> Tensor:
        return ops.where(ops.reshape(start, (-1,) + (1,) * (len(state.shape) - 1)), initial, state)

    return tree.map_structure(choose, initial, state)


@keras.saving.register_keras_serializable(package="actor_learner")
class Recurrent(Memory):
    """A Keras cell, or a list of cells one on top of the other, as a memory: `[N, F]` -> `[N, units]`.

    `al.Recurrent(keras.layers.LSTMCell(64))(x)`. Raises ValueError for anything but cells.
    """

    def __init__(self, cell: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        cells = cell if isinstance(cell, (list, tuple)) else [cell]
        for one in cells or [cell]:
            if isinstance(one, layers.RNN) or not (hasattr(one, "get_initial_state") and hasattr(one, "state_size")):
                raise refusal("cell", "a Keras cell, such as keras.layers.LSTMCell(64), or a list of them", one)
        self.cell = cells[0] if len(cells) == 1 else layers.StackedRNNCells(list(cells))

    def build(self, input_shape: Any) -> None:
        if not self.cell.built:  # by a saved config
            self.cell.build(input_shape)

    def initial_state(self, rows: Any) -> Nest:
        return _float32(self.cell.get_initial_state(batch_size=rows))

    def step(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        output, state = self.cell(x, state)
        return output, _float32(state)

    def unroll(self, x: Tensor, state: Nest, start: Tensor) -> tuple[Tensor, Nest]:
        unroll = unroll_for(self.cell) if type(self) is Recurrent else None  # a subclass may have steps of its own
        return super().unroll(x, state, start) if unroll is None else unroll(self.cell, x, state, start, _scan())

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "cell": keras.saving.serialize_keras_object(self.cell)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Recurrent:
        return cls(**{**config, "cell": keras.saving.deserialize_keras_object(config["cell"])})


@keras.saving.register_keras_serializable(package="actor_learner")
class GateBias(keras.initializers.Initializer):  # type: ignore[misc]
    """Zeros, and `value` for one gate of a cell: with a high bias of the gate that keeps, memory lasts from the start.

    A gate is a part of the last axis, number `gate` of `gates` equal ones; of a matrix, in the first row.
    """

    def __init__(self, value: float, gate: int, gates: int) -> None:
        self.value, self.gate, self.gates = float(value), gate, gates

    def __call__(self, shape: Any, dtype: Any = None) -> Tensor:
        bias = np.zeros(shape, np.float32)
        units = shape[-1] // self.gates
        bias.reshape(-1, shape[-1])[0, self.gate * units : (self.gate + 1) * units] = self.value
        return ops.convert_to_tensor(bias, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"value": self.value, "gate": self.gate, "gates": self.gates}


def _float32(state: Nest) -> Nest:
    return tree.map_structure(lambda leaf: ops.cast(leaf, "float32"), state)


@dataclass(frozen=True)
class StepLayout:
    """The arrangement of the rows of a network's call: T steps of N sequences, as `[T x N, ...]`.

    apart: `(rows, T) -> [T, N, ...]`; together: its inverse.
    """

    scan: Scan
    apart: Callable[[Tensor, int], Tensor]
    together: Callable[[Tensor], Tensor]


@dataclass
class _Steps:
    """The steps that a network's call computes, and the states before and after them, by `id` of the layer."""

    start: Tensor
    states: dict[int, Nest]
    layout: StepLayout | None
    after: dict[int, Nest] = field(default_factory=dict)

    def call(self, layer: Memory, x: Tensor) -> Tensor:
        if id(layer) in self.after:
            raise MemoryContractError(
                f"A layer that remembers can be called once in a network. Received: {layer.name!r} twice"
            )
        state = self.states[id(layer)]
        if self.layout is None:
            output, after = layer.checked_step(
                x, reset_where(self.start, checked_initial_state(layer, _count_rows(x)), state)
            )
        else:
            output, after = layer.unroll(self.layout.apart(x, self.start.shape[0]), state, self.start)
            output = self.layout.together(output)
        self.after[id(layer)] = after
        return output


_steps: contextvars.ContextVar[_Steps | None] = contextvars.ContextVar("memory_steps", default=None)


_requires_state: contextvars.ContextVar[bool] = contextvars.ContextVar("memory_must_go_on", default=False)


@contextlib.contextmanager
def require_state() -> Iterator[None]:
    """Make it an error to call a layer that remembers without a state, as if each row began an episode."""
    token = _requires_state.set(True)
    try:
        yield
    finally:
        _requires_state.reset(token)


def _scan() -> Scan:
    steps = _steps.get()
    assert steps is not None
    assert steps.layout is not None
    return steps.layout.scan


class Memories:
    """The layers of a network that remember, and the state of them all: a tuple of tensors, float32 `[N, ...]` each.

    A layer is known by its place in the network, not by its name. False where a network has none.
    """

    def __init__(self, network: keras.Model) -> None:
        self._layers = [layer for layer in network._flatten_layers(include_self=False) if isinstance(layer, Memory)]

    def __bool__(self) -> bool:
        return bool(self._layers)

    def initial_state(self, rows: int) -> tuple[Tensor, ...]:
        """Return the state with which `rows` episodes start."""
        return tuple(tree.flatten([checked_initial_state(layer, rows) for layer in self._layers]))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of a row of each tensor of the state."""
        return tuple(tuple(leaf.shape[1:]) for leaf in self.initial_state(1))

    @contextlib.contextmanager
    def stepping(
        self, start: Tensor, state: Sequence[Tensor], layout: StepLayout | None = None
    ) -> Iterator[list[Tensor]]:
        """Let a call of the network, whose rows are one step of N sequences, go on from `state`.

        Yields a list that holds the state after the call when the context is left. start: bool `[N]`, where episodes
        start. With a `layout` the call is of T steps, and `start` is `[T, N]`.
        """
        nests = tree.pack_sequence_as([layer.initial_state(1) for layer in self._layers], list(state))
        steps = _Steps(start, dict(zip(map(id, self._layers), nests, strict=True)), layout)
        after: list[Tensor] = []
        token = _steps.set(steps)
        try:
            yield after
        finally:
            _steps.reset(token)
        after += self._checked_leaves(steps.after, state)

    def _checked_leaves(self, after: dict[int, Nest], before: Sequence[Tensor]) -> list[Tensor]:
        """Return the leaves of the layers' states. Raises ValueError where one isn't shaped like the state before."""
        if missing := [layer.name for layer in self._layers if id(layer) not in after]:
            raise MemoryContractError(
                f"Each layer that remembers must be called by the network. Received: not {missing}"
            )
        leaves = tree.flatten([after[id(layer)] for layer in self._layers])
        shapes = [
            [(tuple(leaf.shape), keras.backend.standardize_dtype(leaf.dtype)) for leaf in state]
            for state in (before, leaves)
        ]
        if shapes[0] != shapes[1]:
            raise MemoryContractError(
                f"The state of a layer that remembers must keep its shapes and dtypes, {shapes[0]}, from step to step. "
                f"Received: {shapes[1]} after a step"
            )
        return list(leaves)
