"""Acts with an exported network: observations in, actions and log-probabilities out. No TensorFlow.

An exported network is two LiteRT graphs, `step` and `value`, and a table that says which of their bytes
hold which weight, so that new weights cost a copy and a new interpreter. Where LiteRT can't express a
graph, it is a TensorFlow graph instead, and only then TensorFlow is imported, with no GPU visible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.policy.actions import leaf_to_env
from actor_learner.policy.exported import Array, ExportedPolicy
from actor_learner.policy.inputs import ObservationReader
from actor_learner.policy.noise import Noise, Seed
from actor_learner.policy.runtime import LoadedGraph, load_graph

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

Leaves = tuple[Array, ...]


class Policy:
    """Chooses actions with an exported network. A seed gives the same actions in any process.

    `act` stands between an environment's observations and its actions. `step`, `value` and `to_env` are for making
    Trajectories, in which discrete observations and actions are counted from 0; for spaces without a `start` that is
    the same. One observation or a batch of any size, told apart by shape; a batch of `batch_size` observations is the
    fastest. Composite observations and actions are dicts and tuples as their spaces are; inside the project they are
    tuples of leaves (`step_leaves`).

    Actions can be masked: `action_mask` is bool `[N, M]`, or a nest that mirrors the action space, as Gymnasium's
    `sample` takes it. Where it is None, the entry "action_mask" of a dict observation is read, if there is one.

    Args:
        exported: What `export_policy` made, or `ExportedPolicy.load` read.
        seed: An int or a `np.random.SeedSequence`, for the noise that actions are drawn with.
    """

    def __init__(self, exported: ExportedPolicy, seed: Seed = 0) -> None:
        if not isinstance(exported, ExportedPolicy):
            raise ValueError(
                "`exported` must be an ExportedPolicy; see al.load_policy and al.Policy.from_network. "
                f"Received: a {type(exported).__name__}"
            )
        self.exported = exported
        self.batch_size = exported.batch_size
        self.spaces = exported.spaces()
        self._actions = self.spaces.action
        self._plain = self._actions.plain
        self._to_env = tuple(leaf_to_env(leaf, exported.distribution) for leaf in self._actions.leaves)
        count = len(self._to_env)
        self._sampled, self._modes = tuple(range(count + 1)), tuple(range(count + 1, 2 * count + 1))
        self._masked = exported.masked
        self._reader = ObservationReader(self.spaces)
        self._everything_allowed = np.ones((exported.batch_size, self.spaces.masks.size), np.float32)
        self._noise = Noise(exported, seed)
        self._weights = np.array(exported.weights, np.float32)
        self._step_graph = load_graph(exported.step_graph, exported, self._weights)
        self._value_graph = load_graph(exported.value_graph, exported, self._weights)

    @classmethod
    def from_network(
        cls,
        network: keras.Model,
        action_space: Space[Any],
        seed: Seed = 0,
        *,
        batch_size: int = 1,
        observation_space: Space[Any] | None = None,
    ) -> Policy:
        """Exports `network` and acts with it; needs TensorFlow. `set_weights` renews the weights.

        `batch_size` is the number of observations that a call usually has. `observation_space` may be left
        out where the network says its inputs' shapes and dtypes. Raises ValueError where it is needed.
        """
        from actor_learner.policy.export.litert import export_policy

        return cls(export_policy(network, action_space, batch_size, observation_space, masked=True), seed)

    def __repr__(self) -> str:
        described = self.spaces.observation_space, self.spaces.action_space
        short = [re.sub(r"dtype=dtype\('(\w+)'\)", r"\1", str(space)) for space in described]
        return f"Policy({' -> '.join(short)})"

    @property
    def action_space(self) -> Space[Any]:
        """The action space that `to_env` and `act` give actions of; imports Gymnasium."""
        space: Space[Any] = self.spaces.gymnasium.action_space
        return space

    @property
    def observation_space(self) -> Space[Any]:
        """The space of observations; where export was not told, one without bounds, of the network's inputs."""
        space: Space[Any] = self.spaces.gymnasium.observation_space
        return space

    def reseed(self, seed: Seed) -> None:
        """Starts the noise anew, from `seed`."""
        self._noise.reseed(seed)

    @property
    def holds_noise(self) -> bool:
        """True where an environment keeps its noise for several steps, so that `renew_noise` has an effect."""
        return self.exported.noise_hold > 1

    def renew_noise(self, rows: Array | None = None) -> None:
        """Lets the next step draw new noise for `rows` (bool [N]; None: all), where `noise_hold` would keep it."""
        self._noise.renew(rows)

    def step(self, observation: Any, action_mask: Any = None) -> tuple[Any, Array]:
        """Samples actions: what goes into a Trajectory, and what `to_env` takes.

        Args:
            observation: [N, ...], or one observation [...], as in a Trajectory: discrete ones counted from 0.
            action_mask: [N, M], or [M] for a single observation; what an action may be.

        Returns:
            action [N, ...] and its log-probability, float32 [N]; without N for a single observation.

        Raises:
            ValueError: an observation or mask that isn't of its space, or a row in which nothing is allowed.
        """
        leaves, single = self._reader.read(observation)
        action, log_prob = self.step_leaves(leaves, self._read_mask(observation, action_mask, leaves, single))
        return self._nested(action, single), log_prob[0] if single else log_prob

    def act(self, observation: Any, deterministic: bool = True, action_mask: Any = None) -> Any:
        """Actions that the environment gets, [N, ...], or one for a single observation [...].

        Takes what the environment gives: discrete observations are counted from their space's `start` (from 0 where
        export was not told the observation space).

        The most probable ones, or, with `deterministic=False`, samples. Raises ValueError as `step` does, and for NaN
        in the observation, from which a graph may give any number as action.
        """
        leaves, single = self._reader.read(observation, from_environment=True)
        self._reader.check_numbers(leaves)
        mask = self._read_mask(observation, action_mask, leaves, single)
        action = self.mode_leaves(leaves, mask) if deterministic else self.step_leaves(leaves, mask)[0]
        return self.to_env(self._nested(action, single))

    def value(self, observation: Any) -> Array:
        """Values, float32 [N], of observations [N, ...] as `step` takes them; a scalar for a single one."""
        leaves, single = self._reader.read(observation)
        value = self.value_leaves(leaves)
        result: Array = value[0] if single else value
        return result

    def to_env(self, action: Any) -> Any:
        """What the environment gets for actions as `step` gives them, one or a batch.

        Discrete, MultiDiscrete: counted from the space's `start`. Box: clipped to the bounds, or squashed into them. In
        the spaces' dtypes.
        """
        return self.env_action(self._actions.flatten(action))

    def step_leaves(self, leaves: Leaves, action_mask: Array | None = None) -> tuple[Leaves, Array]:
        """`step` on leaves [N, ...] in the trajectory's dtypes and a mask, bool [N, M]; nothing is checked.

        Raises ValueError only for a mask where the policy was exported without.
        """
        rows = len(leaves[0])
        noise = self._noise.draw_batch() if rows == self.batch_size else self._noise.draw(rows)
        *action, log_prob = self._run(self._step_graph, self._inputs(leaves, noise, action_mask), self._sampled)
        return tuple(action), log_prob

    def mode_leaves(self, leaves: Leaves, action_mask: Array | None = None) -> Leaves:
        """The most probable actions, as `step_leaves` gives actions; draws nothing."""
        noise = np.zeros((len(leaves[0]), self.exported.noise_uniform + self.exported.noise_normal), np.float32)
        return tuple(self._run(self._step_graph, self._inputs(leaves, noise, action_mask), self._modes))

    def value_leaves(self, leaves: Leaves) -> Array:
        """`value` on leaves [N, ...]."""
        return self._run(self._value_graph, leaves, (0,))[0]

    def env_action(self, leaves: Leaves) -> Any:
        """`to_env` on the leaves of actions, as `step_leaves` gives them: nested as the action space is."""
        if self._plain:
            return self._to_env[0](leaves[0])
        return self._actions.unflatten([to_env(leaf) for to_env, leaf in zip(self._to_env, leaves, strict=True)])

    def set_weights(self, weights: Sequence[Any] | Array) -> None:
        """Renew the weights: the arrays that `network.get_weights()` returns, or one float32 vector of them all.

        Raises ValueError if their number or a shape differs from the exported network's.
        """
        self.set_flat_weights(self.exported.as_vector(weights))

    def set_flat_weights(self, weights: Array) -> None:
        """Renew the weights from one vector: `network.get_weights()`, each raveled, as float32.

        Raises ValueError if its shape differs from the exported network's.
        """
        if weights.shape != self._weights.shape:
            raise ValueError(f"`weights` must have shape {self._weights.shape}. Received: shape={weights.shape}")
        np.copyto(self._weights, weights, casting="same_kind")
        self._step_graph.renew()
        self._value_graph.discard()

    def _read_mask(self, observation: Any, action_mask: Any, leaves: Leaves, single: bool) -> Array | None:
        if action_mask is None and not isinstance(observation, dict):
            return None
        return self._reader.read_mask(observation, action_mask, len(leaves[0]), single)

    def _nested(self, action: Leaves, single: bool) -> Any:
        if self._plain:
            return action[0][0] if single else action[0]
        return self._actions.unflatten([leaf[0] for leaf in action] if single else action)

    def _inputs(self, leaves: Leaves, noise: Array, action_mask: Array | None) -> Leaves:
        """Of the step graph."""
        if not self._masked:
            if action_mask is None:
                return (*leaves, noise)
            raise ValueError(
                "`action_mask` must be None for a policy that was exported without masks; see "
                f"`export_policy(..., masked=True)`. Received: a mask of shape {action_mask.shape}"
            )
        if action_mask is not None:
            return (*leaves, noise, action_mask.astype(np.float32))
        if len(noise) == self.batch_size:
            return (*leaves, noise, self._everything_allowed)
        return (*leaves, noise, np.ones((len(noise), self._everything_allowed.shape[1]), np.float32))

    def _run(self, graph: LoadedGraph, inputs: Leaves, outputs: tuple[int, ...]) -> list[Array]:
        """Runs a graph at any batch size."""
        rows = len(inputs[0])
        if rows == self.batch_size:
            return graph.run(inputs, outputs)
        if graph.resizable and rows:
            return graph.run_resized(inputs, outputs)
        return _run_in_chunks(graph, inputs, outputs, self.batch_size)


def load_policy(directory: str | os.PathLike[str], seed: Seed = 0) -> Policy:
    """The policy of a run directory, or of the `policy` folder in it. Needs no TensorFlow.

    Raises ValueError if there is none.
    """
    inner = Path(directory) / "policy"
    return Policy(ExportedPolicy.load(inner if (inner / "policy.json").is_file() else directory), seed)


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
