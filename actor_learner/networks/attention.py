"""Attention over the last steps of an episode, as a memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from actor_learner.networks.layers import VarianceScaling
from actor_learner.networks.memory import Memory
from actor_learner.system.fields import HEADS, check_count, check_heads
from actor_learner.system.types import Tensor

State = tuple[Tensor, Tensor]

_HIDDEN_SCORE = 3e4  # float16 holds it
_EPSILON = 1e-5
_FIRST_GATE = -2.0  # the block begins close to the identity, which steadies the first updates (arXiv:1910.06764, 3.2)
_HIDDEN_FACTOR = 2  # of the hidden layer, relative to the block


@keras.saving.register_keras_serializable(package="actor_learner")
class AttentionMemory(Memory):
    """A transformer block over this step and the last `window` ones of the episode: `[N, F]` -> `[N, size]`.

    Layer normalization comes before attention and before the dense layers. At first, learned gates let almost nothing
    of both through, as in GTrXL (arXiv:1910.06764). A bias for each head and age encodes positions. The state holds
    keys and values of the window, so that a step costs one query.

    Args:
        window: Number of steps that are remembered; older steps are forgotten.
        heads: Heads of attention, which share `size`.
        size: Columns of the output.
        seed: Seed of the first weights; None: Keras's.

    Raises ValueError for impossible sizes.
    """

    def __init__(
        self, window: int = 32, heads: int = HEADS, size: int = 64, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.window, self.heads = check_count("window", window), check_count("heads", heads)
        self.size, self.seed = check_count("size", size), seed
        check_heads("size", size, heads)
        check_count("seed", seed, 0, optional=True)

    def build(self, input_shape: Any) -> None:
        size, hidden = self.size, _HIDDEN_FACTOR * self.size
        seeds = itertools.repeat(None) if self.seed is None else itertools.count(self.seed)

        def weight(name: str, *shape: int, initializer: Any = None) -> Any:
            initializer = initializer or VarianceScaling(1.0, "fan_avg", "uniform", seed=next(seeds))
            return self.add_weight(name=name, shape=shape, initializer=initializer)

        self.embedding = weight("embedding", input_shape[-1], size)
        self.embedding_bias = weight("embedding_bias", size, initializer="zeros")
        self.query = weight("query", size, size)
        self.key_value = weight("key_value", size, 2 * size)
        self.output_kernel = weight("output", size, size)
        self.age_bias = weight("age_bias", self.heads, self.window + 1, initializer="zeros")
        self.hidden_kernel = weight("hidden", size, hidden)
        self.hidden_bias = weight("hidden_bias", hidden, initializer="zeros")
        self.dense_kernel = weight("dense", hidden, size)
        self.dense_bias = weight("dense_bias", size, initializer="zeros")
        self.first_scale = weight("first_scale", size, initializer="ones")
        self.second_scale = weight("second_scale", size, initializer="ones")
        gate = keras.initializers.Constant(_FIRST_GATE)
        self.first_gate = weight("first_gate", size, initializer=gate)
        self.second_gate = weight("second_gate", size, initializer=gate)

    def initial_state(self, rows: Any) -> State:
        """Return zeros: keys and values `[rows, window, 2 size]`, and the number of them that count `[rows, 1]`."""
        return ops.zeros((rows, self.window, 2 * self.size)), ops.zeros((rows, 1))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        # As products and sums over columns: LiteRT's batched products cost several times as much.
        cache, length = state
        window, size, heads = self.window, self.size, self.heads
        x, query, key_value = self._project(x)
        cache = ops.concatenate([ops.cast(cache, x.dtype), ops.expand_dims(key_value, 1)], axis=1)
        key, value = cache[:, :, :size], cache[:, :, size:]
        of_head = np.repeat(np.eye(heads, dtype=np.float32), size // heads, axis=0)  # [size, heads]
        product = ops.reshape(key * ops.expand_dims(query, 1), (-1, size))
        scores = ops.matmul(product, ops.cast(of_head / math.sqrt(size // heads), x.dtype))
        scores = ops.reshape(scores, (-1, window + 1, heads)) + ops.transpose(self.age_bias)
        age = np.arange(window, -1, -1, dtype=np.float32)
        hidden = ops.cast(age > length, x.dtype)
        weights = ops.softmax(scores - _HIDDEN_SCORE * ops.expand_dims(hidden, -1), axis=1)
        wide = ops.matmul(ops.reshape(weights, (-1, heads)), ops.cast(of_head.T, x.dtype))
        attention = ops.sum(ops.reshape(wide, (-1, window + 1, size)) * value, axis=1)
        kept = ops.cast(cache[:, 1:], "float32"), ops.minimum(length + 1.0, float(window))
        return self._block_output(x, attention), kept

    def unroll(self, x: Tensor, state: State, start: Tensor) -> tuple[Tensor, State]:
        """Return the result of `Memory.unroll`, computed for all steps at once.

        Long sequences are split into blocks of the window's length; each block sees itself and the block before it.
        """
        cache, length = state
        steps, rows, _ = x.shape
        window, size, heads, each = self.window, self.size, self.heads, self.size // self.heads
        in_blocks = math.ceil(steps / window) * 2 * window**2 < steps * (steps + window)  # the numbers of scores
        block = window if in_blocks else steps
        blocks = math.ceil(steps / block)
        rest = blocks * block - steps  # rows of zeros that fill the last block
        x, query, key_value = self._project(ops.reshape(x, (steps * rows, x.shape[-1])))
        key_value = ops.swapaxes(ops.reshape(key_value, (steps, rows, 2 * size)), 0, 1)
        cache = ops.concatenate([ops.cast(cache, x.dtype), key_value], axis=1)  # [rows, window + steps, 2 size]
        seen = ops.pad(cache, [(0, 0), (0, rest), (0, 0)]) if rest else cache
        if blocks == 1:
            seen = ops.expand_dims(seen, 1)
        else:
            seen = ops.reshape(seen, (rows, blocks + 1, window, 2 * size))
            seen = ops.concatenate([seen[:, :-1], seen[:, 1:]], axis=2)  # [rows, blocks, window + block, 2 size]
        apart = ops.reshape(seen, (rows, blocks, window + block, 2, heads, each))
        key = ops.transpose(apart[:, :, :, 0], (0, 3, 1, 4, 2))
        value = ops.transpose(apart[:, :, :, 1], (0, 3, 1, 2, 4))
        query = ops.reshape(query, (steps, rows, heads, each))
        query = ops.pad(query, [(0, rest), (0, 0), (0, 0), (0, 0)]) if rest else query
        query = ops.reshape(ops.transpose(query, (1, 2, 0, 3)), (rows, heads, blocks, block, each))
        since = steps_since_start(length[:, 0], start)
        before = ops.pad(since, [(0, rest), (0, 0)]) if rest else since
        before = ops.reshape(ops.transpose(before), (rows, 1, blocks, block, 1))
        age = np.arange(block)[:, None] + window - np.arange(window + block)[None]  # 0 is the step itself
        inside = (age >= 0) & (age <= window)
        bias = ops.take(self.age_bias, np.where(inside, window - age, 0).astype(np.int32), axis=1)
        counts = ops.logical_and(inside, age.astype(np.float32) <= before)
        scores = ops.matmul(query, key) / math.sqrt(each) + ops.expand_dims(bias, 1)
        scores = scores - _HIDDEN_SCORE * ops.cast(ops.logical_not(counts), x.dtype)
        attention = ops.matmul(ops.softmax(scores), value)  # [rows, heads, blocks, block, each]
        attention = ops.reshape(attention, (rows, heads, blocks * block, each))[:, :, :steps]
        attention = ops.reshape(ops.transpose(attention, (2, 0, 1, 3)), (steps * rows, size))
        length = ops.expand_dims(ops.minimum(since[-1] + 1.0, float(self.window)), -1)
        kept = ops.cast(np.arange(self.window - 1, -1, -1, dtype=np.float32) < length, "float32")
        last = ops.cast(cache[:, steps:], "float32") * ops.expand_dims(kept, -1)
        return ops.reshape(self._block_output(x, attention), (steps, rows, size)), (last, length)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embedding of inputs `[N, F]`, their query, and their key and value."""
        x = ops.matmul(x, self.embedding) + self.embedding_bias
        normalized = _normalize(x, self.first_scale)
        return x, ops.matmul(normalized, self.query), ops.matmul(normalized, self.key_value)

    def _block_output(self, x: Tensor, attention: Tensor) -> Tensor:
        """Return the block's output `[N, size]` for embeddings and what they attended to."""
        x = x + ops.sigmoid(self.first_gate) * ops.matmul(attention, self.output_kernel)
        hidden = ops.relu(ops.matmul(_normalize(x, self.second_scale), self.hidden_kernel) + self.hidden_bias)
        return x + ops.sigmoid(self.second_gate) * (ops.matmul(hidden, self.dense_kernel) + self.dense_bias)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "window": self.window,
            "heads": self.heads,
            "size": self.size,
            "seed": self.seed,
        }


def _normalize(x: Tensor, scale: Tensor) -> Tensor:
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred * ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + _EPSILON) * scale


def steps_since_start(length: Tensor, start: Tensor) -> Tensor:
    """Return `[T, N]`: how many steps of its episode each step has before it, of those that are remembered.

    length: `[N]`, of the first step, if no episode starts with it. start: `[T, N]`, True where one does.
    """
    steps = start.shape[0]
    step = np.arange(steps, dtype=np.float32)[:, None]
    last = ops.where(start, step, -1.0)
    for shift in (2**power for power in range((steps - 1).bit_length())):  # a running maximum
        earlier = ops.pad(last[:-shift], [(shift, 0), (0, 0)], constant_values=-1.0)
        last = ops.maximum(last, earlier)
    return ops.where(last >= 0, step - last, step + length)
