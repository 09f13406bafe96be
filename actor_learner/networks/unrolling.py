"""LSTM and GRU over many steps, with gradients written out.

Each is what a scan of the cell's own steps computes, in less time: the input's product for all steps is one product
outside of the scan, and so is the recurrent kernel's gradient, which a scan's own gradient adds up step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from actor_learner.system.types import Tensor

State = Any
"""A tensor, or a tuple or list of these."""

Scan = Callable[[Callable[[State, Any], tuple[State, Any]], State, Any], tuple[State, Any]]
"""`(body, state, inputs) -> (last state, outputs [T, ...])`, where `body(state, inputs[t])` returns a state of the same
shapes and an output, for each step `t` of `inputs [T, ...]`."""
Unroll = Callable[[Any, Tensor, State, Tensor, Scan], tuple[Tensor, State]]


def unroll_for(cell: Any) -> Unroll | None:
    """Return `(cell, x, state, start, scan) -> (outputs, last state)` for a cell; None where its own steps are needed.

    Shapes are those of `Memory.unroll`; the state is as the cell has it.
    """
    unroll = _UNROLLS.get(type(cell))
    plain = (
        unroll is not None
        and cell.activation is keras.activations.tanh
        and cell.recurrent_activation is keras.activations.sigmoid
        and not (cell.dropout or cell.recurrent_dropout)
        and cell.compute_dtype == "float32"
        and getattr(cell, "reset_after", True)
    )
    return unroll if plain else None


def _unroll_lstm(cell: Any, x: Tensor, state: State, start: Tensor, scan: Scan) -> tuple[Tensor, State]:
    """Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000), as in `keras.layers.LSTMCell`."""
    rows, units = x.shape[1], cell.units
    projected = _project(x, cell.kernel, cell.bias)
    begins = ops.expand_dims(start, -1)

    def unroll(projected: Tensor, kernel: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Any]:
        def step(state: State, inputs: State) -> tuple[State, State]:
            projected, begins = inputs
            h, c = (ops.where(begins, 0.0, leaf) for leaf in state)
            i, f, g, o = ops.split(projected + ops.matmul(h, kernel), 4, axis=-1)
            i, f, g, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(g), ops.sigmoid(o)
            c = f * c + i * g
            h = o * ops.tanh(c)
            return (h, c), (ops.concatenate([h, c], -1), ops.concatenate([i, f, g, o], -1))

        _, (states, gates) = scan(step, (h, c), (projected, begins))

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            (upstream,) = arguments if upstream is None else (upstream,)
            before = ops.concatenate([ops.expand_dims(ops.concatenate([h, c], -1), 0), states[:-1]], axis=0)
            before = ops.where(begins, 0.0, before)

            def back(state: State, inputs: State) -> tuple[State, Tensor]:
                dh, dc = state
                upstream, gates, before, after, begins = inputs
                i, f, g, o = ops.split(gates, 4, axis=-1)
                tanh = ops.tanh(after[:, units:])
                dh = dh + upstream[:, :units]
                dc = dc + upstream[:, units:] + dh * o * (1 - tanh * tanh)
                d = ops.concatenate(
                    [
                        dc * g * i * (1 - i),
                        dc * before[:, units:] * f * (1 - f),
                        dc * i * (1 - g * g),
                        dh * tanh * o * (1 - o),
                    ],
                    -1,
                )
                dh, dc = ops.matmul(d, ops.transpose(kernel)), dc * f
                return (ops.where(begins, 0.0, dh), ops.where(begins, 0.0, dc)), d

            zero = ops.zeros((rows, units))
            inputs = (upstream, gates, before, states, begins)
            (dh, dc), d = scan(back, (zero, zero), tuple(ops.flip(leaf, 0) for leaf in inputs))
            d = ops.flip(d, 0)
            return d, _product_of_steps(before[:, :, :units], d), dh, dc

        return states, gradient

    states = ops.custom_gradient(unroll)(projected, _as_tensor(cell.recurrent_kernel), *state)
    h, c = states[:, :, :units], states[:, :, units:]
    return h, [h[-1], c[-1]]


def _unroll_gru(cell: Any, x: Tensor, state: State, start: Tensor, scan: Scan) -> tuple[Tensor, State]:
    """Cho et al. (2014) with the reset gate after the product, as in `keras.layers.GRUCell`."""
    rows, units = x.shape[1], cell.units
    bias, recurrent_bias = (None, ops.zeros(3 * units)) if cell.bias is None else (cell.bias[0], cell.bias[1])
    projected = _project(x, cell.kernel, bias)
    begins = ops.expand_dims(start, -1)

    def unroll(projected: Tensor, kernel: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, Any]:
        def step(h: Tensor, inputs: State) -> tuple[Tensor, State]:
            projected, begins = inputs
            h = ops.where(begins, 0.0, h)
            recurrent = ops.matmul(h, kernel) + bias
            gates = ops.sigmoid(projected[:, : 2 * units] + recurrent[:, : 2 * units])
            z, r = gates[:, :units], gates[:, units:]
            kept = recurrent[:, 2 * units :]
            g = ops.tanh(projected[:, 2 * units :] + r * kept)
            h = z * h + (1 - z) * g
            return h, (h, ops.concatenate([gates, g, kept], -1))

        _, (states, gates) = scan(step, h, (projected, begins))

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            (upstream,) = arguments if upstream is None else (upstream,)
            before = ops.where(begins, 0.0, ops.concatenate([ops.expand_dims(h, 0), states[:-1]], axis=0))

            def back(dh: Tensor, inputs: State) -> tuple[Tensor, Tensor]:
                upstream, gates, before, begins = inputs
                z, r, g, kept = ops.split(gates, 4, axis=-1)
                dh = dh + upstream
                dg = dh * (1 - z) * (1 - g * g)
                first = ops.concatenate([dh * (before - g) * z * (1 - z), dg * kept * r * (1 - r)], -1)
                d = ops.concatenate([first, dg * r], -1)
                dh = dh * z + ops.matmul(d, ops.transpose(kernel))
                return ops.where(begins, 0.0, dh), ops.concatenate([d, dg], -1)

            inputs = (upstream, gates, before, begins)
            dh, d = scan(back, ops.zeros((rows, units)), tuple(ops.flip(leaf, 0) for leaf in inputs))
            d = ops.flip(d, 0)
            d, dg = d[:, :, : 3 * units], d[:, :, 3 * units :]
            projected = ops.concatenate([d[:, :, : 2 * units], dg], -1)
            return projected, _product_of_steps(before, d), ops.sum(d, axis=(0, 1)), dh

        return states, gradient

    states = ops.custom_gradient(unroll)(projected, _as_tensor(cell.recurrent_kernel), recurrent_bias, *state)
    return states, [states[-1]]


_UNROLLS: dict[type, Unroll] = {layers.LSTMCell: _unroll_lstm, layers.GRUCell: _unroll_gru}


def _as_tensor(weight: Any) -> Tensor:
    """Return a weight as a tensor, so that a function of it needs no gradient for a variable."""
    return weight * 1.0


def _project(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x kernel + bias` `[T, N, M]` for `x [T, N, F]`, in one product."""
    product = ops.tensordot(x, kernel, 1)
    return product if bias is None else product + bias


def _product_of_steps(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of `a[t, n] b[t, n]^T` `[A, B]` over all rows of `a [T, N, A]` and `b [T, N, B]`.

    Not of rows side by side: where several devices share the sequences, each adds up its own.
    """
    return ops.tensordot(a, b, [[0, 1], [0, 1]])
