"""Acts with an exported network: observations in, actions and log-probabilities out. No TensorFlow.

An exported network is two LiteRT graphs, `step` and `value`, and a table that says which of their bytes
hold which weight, so that new weights cost a copy and a new interpreter. Where LiteRT can't express a
graph, it is a TensorFlow graph instead, and only then TensorFlow is imported, with no GPU visible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner import spaces
from actor_learner.policy.exported import ExportedPolicy, flatten_weights
from actor_learner.policy.graphs import LoadedGraph, load_graph

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

Array = np.ndarray[Any, Any]

ACTION, LOG_PROB, MODE = 0, 1, 2
"""Positions of the step graph's outputs, which the parameters follow. The value graph has one, the value."""


class Policy:
    """Chooses actions with an exported network. A seed gives the same actions in any process.

    Observations are as in a Trajectory: a Discrete one is counted from 0. One observation or a batch of
    any size, told apart by shape; a batch of `batch_size` observations is the fastest.

    Args:
        exported: What `export_policy` made, or `ExportedPolicy.load` read.
        seed: An int or a `np.random.SeedSequence`, for the noise that actions are drawn with.
    """

    def __init__(self, exported: ExportedPolicy, seed: int | np.random.SeedSequence | None = 0) -> None:
        if not isinstance(exported, ExportedPolicy):
            raise ValueError(
                "`exported` must be an ExportedPolicy; see al.load_policy and al.Policy.from_network. "
                f"Received: a {type(exported).__name__}"
            )
        self.exported = exported
        self.batch_size = exported.batch_size
        self._observation_dtype = np.dtype(exported.observation_dtype)
        self._batch_shape = (exported.batch_size, *exported.observation_shape)
        self._noise_shape = (exported.batch_size, *exported.noise_shape)
        self._draws = np.empty(self._noise_shape, np.float32)
        self._noise = np.zeros(self._noise_shape, np.float32)
        self._held: Array | None = None
        self._to_env = _to_env_function(exported.action_space)
        self._weights = np.array(exported.weights, np.float32)
        self._step_graph = load_graph(exported.step_graph, exported, self._weights)
        self._value_graph = load_graph(exported.value_graph, exported, self._weights)
        self.reseed(seed)

    @classmethod
    def from_network(
        cls,
        network: keras.Model,
        action_space: Space[Any],
        seed: int | np.random.SeedSequence | None = 0,
        *,
        batch_size: int = 1,
        observation_space: Space[Any] | None = None,
    ) -> Policy:
        """Exports `network` and acts with it; needs TensorFlow. `set_weights` renews the weights.

        `batch_size` is the number of observations that a call usually has. `observation_space` may be left
        out where the network says its input's shape and dtype. Raises ValueError where it is needed.
        """
        from actor_learner.policy.export import export_policy

        return cls(export_policy(network, action_space, batch_size, observation_space), seed)

    @property
    def action_space(self) -> Space[Any]:
        """The action space that `to_env` and `act` give actions of."""
        return spaces.from_json(self.exported.action_space)

    def reseed(self, seed: int | np.random.SeedSequence | None) -> None:
        """Starts the noise anew, from `seed`."""
        # Named, since numpy may change what default_rng stands for.
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self.renew_noise()

    def renew_noise(self, rows: Array | None = None) -> None:
        """Lets the next step draw new noise for `rows` (bool [N]; None: all), where `noise_hold` would keep it."""
        if rows is None:
            self._held = None
        elif self._held is not None:
            self._ages[rows] = self.exported.noise_hold

    def step(self, observation: Any, action_mask: Any = None) -> tuple[Array, Array]:
        """Samples actions: what goes into a Trajectory, and what `to_env` takes.

        Args:
            observation: [N, ...], or one observation [...].
            action_mask: None (masks aren't supported yet).

        Returns:
            action [N, ...] and its log-probability, float32 [N]; without N for a single observation.
        """
        if action_mask is not None:
            raise _no_masks(action_mask)
        if type(observation) is np.ndarray and observation.shape == self._batch_shape:
            if observation.dtype != self._observation_dtype:
                observation = observation.astype(self._observation_dtype)
            action, log_prob = self._step_graph.run((observation, self._draw_batch()), (ACTION, LOG_PROB))
            return action, log_prob
        rows, single = self._rows(observation)
        action, log_prob = self._run(self._step_graph, (rows, self._draw(len(rows))), (ACTION, LOG_PROB))
        return (action[0], log_prob[0]) if single else (action, log_prob)

    def act(self, observation: Any, deterministic: bool = True, action_mask: Any = None) -> Any:
        """Actions that the environment gets, [N, ...], or one for a single observation [...].

        The most probable ones, or, with `deterministic=False`, samples. Raises ValueError for NaN in the
        observation, from which a graph may give any number as action.
        """
        if np.isnan(np.asarray(observation, self._observation_dtype)).any():
            raise ValueError("`observation` must hold numbers. Received: NaN")
        if not deterministic:
            return self.to_env(self.step(observation, action_mask)[0])
        if action_mask is not None:
            raise _no_masks(action_mask)
        rows, single = self._rows(observation)
        noise = np.zeros((len(rows), *self.exported.noise_shape), np.float32)
        (mode,) = self._run(self._step_graph, (rows, noise), (MODE,))
        return self.to_env(mode[0] if single else mode)

    def value(self, observation: Any) -> Array:
        """Values, float32 [N], of observations [N, ...]; a scalar for a single one."""
        rows, single = self._rows(observation)
        (value,) = self._run(self._value_graph, (rows,), (0,))
        result: Array = value[0] if single else value
        return result

    def to_env(self, action: Any) -> Any:
        """What the environment gets for actions as `step` gives them, one or a batch.

        Discrete: counted from the space's `start`. Box: clipped to the bounds. In the space's dtype.
        """
        return self._to_env(action)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Renews the weights: the arrays that `network.get_weights()` gives.

        Raises ValueError if their number or a shape differs from the exported network's.
        """
        shapes, names = self.exported.weight_shapes, self.exported.weight_names
        if len(weights) != len(shapes):
            raise ValueError(
                f"`weights` must be the {len(shapes)} arrays of `network.get_weights()`. "
                f"Received: {len(weights)} arrays"
            )
        for index, (array, shape, name) in enumerate(zip(weights, shapes, names, strict=True)):
            if np.shape(array) != shape:
                raise ValueError(
                    f"`weights[{index}]` ({name}) must have shape {shape}. Received: shape={np.shape(array)}"
                )
        self.set_flat_weights(flatten_weights(weights))

    def set_flat_weights(self, weights: Array) -> None:
        """Renews the weights from one vector: `network.get_weights()`, each raveled, as float32.

        Raises ValueError if its shape differs from the exported network's.
        """
        if weights.shape != self._weights.shape:
            raise ValueError(f"`weights` must have shape {self._weights.shape}. Received: shape={weights.shape}")
        np.copyto(self._weights, weights, casting="same_kind")
        self._step_graph.renew()
        self._value_graph.discard()

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """Observations as [N, ...] in the trajectory's dtype, and whether it was a single one."""
        rows = np.asarray(observation, self._observation_dtype)
        shape = self._batch_shape[1:]
        if rows.shape == shape:
            return rows[None], True
        if rows.shape[1:] != shape or rows.ndim != len(shape) + 1:
            raise ValueError(
                f"`observation` must have shape {shape}, or (N, ...) of these. Received: shape={rows.shape}"
            )
        return rows, False

    def _draw(self, rows: int) -> Array:
        """New noise for any number of environments."""
        if self.exported.noise_hold > 1:
            return self._draw_held(rows)
        shape = (rows, *self.exported.noise_shape)
        if self.exported.noise == "uniform":
            return np.float32(1) - self._generator.random(shape, np.float32)
        return self._generator.standard_normal(shape, np.float32)

    def _draw_batch(self) -> Array:
        """New noise for `batch_size` environments, in memory that the next draw overwrites."""
        if self.exported.noise == "uniform":
            # random() is in [0, 1); sampling needs (0, 1].
            self._generator.random(None, np.float32, self._draws)
            return np.subtract(1.0, self._draws, self._noise)
        if self.exported.noise_hold > 1:
            return self._draw_held(self.batch_size)
        return self._generator.standard_normal(None, np.float32, self._noise)

    def _draw_held(self, rows: int) -> Array:
        """Standard normals, each environment's kept for `noise_hold` steps."""
        hold = self.exported.noise_hold
        if self._held is None or len(self._held) != rows:
            self._held = np.empty((rows, *self.exported.noise_shape), np.float32)
            self._ages = np.full(rows, hold)
        due = self._ages >= hold
        self._held[due] = self._generator.standard_normal((int(due.sum()), *self.exported.noise_shape), np.float32)
        self._ages[due] = 0
        self._ages += 1
        return self._held

    def _run(self, graph: LoadedGraph, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs a graph at any batch size."""
        rows = len(inputs[0])
        if rows == self.batch_size:
            return graph.run(inputs, outputs)
        if graph.resizable and rows:
            return graph.run_resized(inputs, outputs)
        return _run_in_chunks(graph, inputs, outputs, self.batch_size)


def _no_masks(action_mask: Any) -> ValueError:
    return ValueError(f"`action_mask` must be None: masks aren't supported yet. Received: {np.shape(action_mask)}")


def load_policy(directory: str | os.PathLike[str], seed: int | np.random.SeedSequence | None = 0) -> Policy:
    """The policy of a run directory, or of the `policy` folder in it. Needs no TensorFlow.

    Raises ValueError if there is none.
    """
    inner = Path(directory) / "policy"
    return Policy(ExportedPolicy.load(inner if (inner / "policy.json").is_file() else directory), seed)


def _to_env_function(action_space: dict[str, Any]) -> Any:
    """`Policy.to_env` for a described space, with what it needs looked up once."""
    dtype = np.dtype(action_space["dtype"])
    if action_space["type"] == "Discrete":
        start = dtype.type(action_space["start"])
        return lambda action: np.add(action, start, dtype=dtype)
    low, high = (
        spaces.bound_from_json(action_space[side], tuple(action_space["shape"]), dtype) for side in ("low", "high")
    )
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda action: np.asarray(action, dtype)
    return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)


def _run_in_chunks(
    graph: LoadedGraph, inputs: tuple[Array, ...], outputs: tuple[int, ...], batch_size: int
) -> list[Array]:
    """Runs any number of rows in pieces of the exported batch size, the last one padded with zeros."""
    rows = len(inputs[0])
    chunks = []
    for start in range(0, max(rows, 1), batch_size):
        piece = tuple(_padded(array[start : start + batch_size], batch_size) for array in inputs)
        chunks.append(graph.run(piece, outputs))
    return [np.concatenate(arrays)[:rows] for arrays in zip(*chunks, strict=True)]


def _padded(rows: Array, batch_size: int) -> Array:
    if len(rows) == batch_size:
        return rows
    return np.concatenate([rows, np.zeros((batch_size - len(rows), *rows.shape[1:]), rows.dtype)])
