"""Chooses actions with an exported network, without TensorFlow.

An exported network is two LiteRT graphs, `step` and `value`, and a table of the bytes that hold each weight, so that
new weights cost a copy and a new interpreter. A graph that LiteRT can't express is a TensorFlow graph instead; only
then is TensorFlow imported, without a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.algorithms.exploration import Process
from actor_learner.policy.exported import ExportedPolicy, load_graph
from actor_learner.policy.graph import LoadedGraph
from actor_learner.policy.inputs import ObservationReader
from actor_learner.policy.noise import Noise, Seed
from actor_learner.policy.state import State, read_start
from actor_learner.spaces.kinds import Box, middle
from actor_learner.spaces.structure import Leaf
from actor_learner.system.fields import check_count
from actor_learner.system.hub import local_path
from actor_learner.system.policies import named_policies
from actor_learner.system.types import Array, Leaves

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space


class Policy:
    """Chooses actions with an exported network. A seed gives the same actions in any process.

    `act` takes an environment's observations and returns its actions. `step`, `value` and `to_env` serve to write
    Trajectories, which count discrete observations and actions from 0 instead of the space's `start`. All take one
    observation or a batch of any size, and distinguish them by shape; batches of `batch_size` are the fastest.
    Composite observations and actions are nested like their spaces.

    Actors call `step_leaves`, `value_leaves`, `env_action` and `renew_noise`, which take and return tuples of leaves.

    Actions can be masked: `action_mask` is bool `[N, M]`, or a nest that mirrors the action space, as in Gymnasium's
    `sample`. If it is None, a dict observation's entry "action_mask" is used, if there is one.

    Attributes:
        holds_noise: True if an environment keeps its noise for several steps, so that `renew_noise` has an effect.

    Args:
        exported: The result of `export_policy` or `ExportedPolicy.load`.
        seed: An int or a `np.random.SeedSequence` for the noise that actions are sampled with.
        first_stream: Index of the random stream of the first row; each row has its own stream.
        streams: Number of all random streams, over which a ladder of epsilons extends.
        step_graph: A graph that runs in place of the exported step graph.
        exploration: A process of noise, in place of standard normals, for `step` and what samples like it.
    """

    def __init__(
        self,
        exported: ExportedPolicy,
        seed: Seed = 0,
        *,
        first_stream: int = 0,
        streams: int = 1,
        step_graph: LoadedGraph | None = None,
        exploration: Process | None = None,
    ) -> None:
        if not isinstance(exported, ExportedPolicy):
            expected = "`exported` must be an ExportedPolicy; see al.load_policy and al.Policy.from_network"
            raise ValueError(f"{expected}. Received: a {type(exported).__name__}")
        self.exported = exported
        self.batch_size, self.holds_noise = exported.batch_size, exported.noise_hold > 1
        self._warned_of_masks = False
        self.spaces = exported.spaces()
        self._actions = self.spaces.action
        self._to_env = tuple(leaf_to_env(leaf, exported.distribution) for leaf in self._actions.leaves)
        count, leaves = len(self._to_env), len(exported.state_shapes)
        states = tuple(range(count + 1, count + 1 + leaves))
        self._sampled = (*range(count + 1), *states)
        self._modes = (*range(count + 1 + leaves, 2 * count + 1 + leaves), *states)
        self._state = State(exported.state_shapes)
        self._reader = ObservationReader(self.spaces)
        self._everything_allowed = np.ones((exported.batch_size, self.spaces.masks.size), np.float32)
        self.explores = exploration is not None
        self._noise = Noise(exported, seed, first_stream, streams, exploration)
        self._weights = np.array(exported.weights, np.float32)
        self._step_graph = step_graph or load_graph(exported.step_graph, exported, self._weights)
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
        """Export `network` and return a policy that acts with it. See `set_weights`.

        `batch_size` is the number of observations of a usual call. Raises ValueError if `observation_space` is None
        and the network doesn't declare the shapes and dtypes of its inputs.
        """
        from actor_learner.policy.export.exporting import export_policy

        return cls(export_policy(network, action_space, batch_size, observation_space, masked=True), seed)

    def __repr__(self) -> str:
        described = f"Policy({self.spaces.observation_space} -> {self.spaces.action_space})"
        return re.sub(r"dtype=dtype\('(\w+)'\)", r"\1", described)

    @property
    def action_space(self) -> Space[Any]:
        """The space of the actions that `to_env` and `act` return; imports Gymnasium."""
        space: Space[Any] = self.spaces.gymnasium.action_space
        return space

    @property
    def observation_space(self) -> Space[Any]:
        """The space of observations; by default the network's inputs, without bounds. Imports Gymnasium."""
        space: Space[Any] = self.spaces.gymnasium.observation_space
        return space

    def reseed(self, seed: Seed) -> None:
        """Restarts the noise from `seed`."""
        self._noise.reseed(seed)

    @contextlib.contextmanager
    def reseeded(self, seed: Seed) -> Iterator[None]:
        """Sample with noise from `seed`, and without memories, in a `with` block; afterwards both are as before."""
        with self._noise.reseeded(seed), self._state.forgotten():
            yield

    def copied(self) -> Policy:
        """Return a policy with the same weights, and with memories and random numbers of its own."""
        return Policy(dataclasses.replace(self.exported, weights=self._weights))

    def renew_noise(self, rows: Array | None = None) -> None:
        """Make the next step draw new noise for `rows` (bool [N]; None: all), even if `noise_hold` would keep it."""
        self._noise.renew(rows)

    def step(self, observation: Any, action_mask: Any = None, start: Any = None) -> tuple[Any, Array]:
        """Sample actions for a Trajectory; `to_env` converts them for the environment.

        Takes observations [N, ...], or one [...], as in a Trajectory: discrete ones counted from 0. Returns actions
        [N, ...] and their log-probabilities, float32 [N]; without N for a single observation. start: As for `act`.

        Raises ValueError for an observation or mask outside its space, or a row in which nothing is allowed.
        """
        leaves, single = self._reader.read(observation)
        rows = len(leaves[0])
        mask = self._reader.read_mask(observation, action_mask, rows, single)
        if mask is None:
            self.warn_without_mask()
        action, log_prob = self.step_leaves(leaves, mask, read_start(start, rows))
        return self._nest_action(action, single), log_prob[0] if single else log_prob

    def act(
        self,
        observation: Any,
        deterministic: bool = True,
        action_mask: Any = None,
        start: Any = None,
        state: Sequence[Any] | None = None,
    ) -> Any:
        """Return the environment's actions, [N, ...], or one for a single observation [...].

        They are the most probable ones, or samples with `deterministic=False`. Discrete observations are counted from
        their space's `start` (from 0 if the network's inputs define the space).

        A policy with memory goes on from the state after its last call, row by row. start: bool `[N]`, or one bool for
        all rows, True where an episode starts with this observation; `reset` has the same effect beforehand. state:
        Goes on from this state, doesn't touch the policy's own, and returns the actions and the next state. This serves
        servers that keep a state for each session. `initial_state` gives the first state; then `start` must be True.

        Raises ValueError as `step` does, and for NaN, or infinity within finite bounds, in the observation, because a
        graph may then return any action.
        """
        leaves, single = self._reader.read(observation, from_environment=True)
        self._reader.check_numbers(leaves)
        rows = len(leaves[0])
        mask = self._reader.read_mask(observation, action_mask, rows, single)
        if mask is None:
            self.warn_without_mask()
        with self._state.replaced(state, rows, single) as given:
            arguments = leaves, mask, read_start(start, rows)
            if deterministic:
                actions = self.mode_leaves(*arguments)
            else:
                actions, log_prob = self.step_leaves(*arguments)
                if np.isnan(log_prob).any():
                    raise FloatingPointError("the network must give finite numbers. Received: nan as a log-probability")
            action = self.to_env(self._nest_action(actions, single))
        return action if given is None else (action, given.result(single))

    def sample_rows(
        self,
        observation: Any,
        generators: Sequence[np.random.Generator],
        action_mask: Any = None,
        state: Leaves | None = None,
    ) -> tuple[Any, Leaves]:
        """Sample the environment's actions `[N, ...]`, each row by its own generator, and touch no state.

        So an action doesn't depend on the rows beside it. A policy with epsilon takes its best actions. state: `[N,
        ...]` each, to go on from; of zeros where an episode starts. Returns the actions and the next state.

        Raises ValueError as `step` does.
        """
        leaves, _ = self._reader.read(observation, from_environment=True)
        mask = self._reader.read_mask(observation, action_mask, len(generators), single=False)
        action, _, after = self.sample_leaves(leaves, generators, mask, state, explore=False)
        return self.env_action(action), after

    def sample_leaves(
        self,
        leaves: Leaves,
        generators: Sequence[np.random.Generator],
        action_mask: Array | None = None,
        state: Leaves | None = None,
        size: int | None = None,
        explore: bool = True,
    ) -> tuple[Leaves, Array, Leaves]:
        """Sample as `sample_rows` does; return the actions' leaves, their log-probabilities and the next state.

        size: the rows that are computed, of which those beyond are dropped: a multiple of it; None: the usual number.
        explore: False: a policy with epsilon takes its best actions.
        """
        rows, noise = len(generators), self._noise.of_generators(generators, explore=explore)
        spare = -rows % (size or self.batch_size)  # another number of rows would need another interpreter
        noise, *padded = (_padded(leaf, spare) for leaf in (noise, *leaves))
        mask = None if action_mask is None else _padded(action_mask, spare)
        given = None if state is None else tuple(_padded(leaf, spare) for leaf in state)
        with self._state.replaced(given, rows + spare, single=False) as after:
            *action, log_prob = self._run(self._inputs(tuple(padded), noise, mask, None), self._sampled)
        found = () if after is None else tuple(leaf[:rows] for leaf in after.leaves)
        return tuple(leaf[:rows] for leaf in action), log_prob[:rows], found

    def reset(self, rows: Any = None) -> None:
        """Lets an episode start with the next observation in these rows (indices, or bool [N]); None: in all.

        After `reset()`, the next batch may have any number of rows. For a policy without memory, it has no effect.
        """
        self._state.reset(rows)

    def initial_state(self, rows: int | None = None) -> tuple[Array, ...]:
        """Return a state for the first `act(..., start=True, state=...)`: `[rows, ...]` each; None: for one row."""
        shapes = self.exported.state_shapes
        check_count("rows", rows, optional=True)
        return tuple(np.zeros(shape if rows is None else (rows, *shape), np.float32) for shape in shapes)

    def value(self, observation: Any) -> Array:
        """Return values, float32 [N], of observations [N, ...] as `step` takes them; a scalar for a single one.

        Raises ValueError if the network has no value: with SAC and TD3, only critics compute values, and they aren't
        exported.
        """
        if not self.exported.has_value:
            raise ValueError(
                "This policy has no values: its network returns none, and critics aren't exported "
                "(al.Learner.load(checkpoint).critics has them). Received: a network without 'value'"
            )
        leaves, single = self._reader.read(observation)
        value: Array = self.value_leaves(leaves)[0 if single else slice(None)]
        return value

    def to_env(self, action: Any) -> Any:
        """Convert one action of `step`, or a batch, to the environment's; see `leaf_to_env`."""
        return self.env_action(self._actions.flatten(action))

    def step_leaves(
        self, leaves: Leaves, action_mask: Array | None = None, start: Array | None = None
    ) -> tuple[Leaves, Array]:
        """Sample as `step` does, from leaves [N, ...] in the trajectory's dtypes and a mask, bool [N, M].

        start: Bool [N], True where an episode starts; None: nowhere. Checks nothing but that a policy that was exported
        without masks gets none, and that the state is of so many rows (else ValueError).
        """
        inputs = self._inputs(leaves, self._noise.draw(len(leaves[0]), start), action_mask, start)
        *action, log_prob = self._run(inputs, self._sampled)
        return tuple(action), log_prob

    def mode_leaves(self, leaves: Leaves, action_mask: Array | None = None, start: Array | None = None) -> Leaves:
        """Return the most probable actions, as `step_leaves` returns actions; draw no noise but the network's own."""
        if self.exported.draws:
            self._noise.draw(len(leaves[0]))
        noise = self._noise.zeros(len(leaves[0]))
        return tuple(self._run(self._inputs(leaves, noise, action_mask, start), self._modes))

    def _run(self, inputs: Leaves, outputs: tuple[int, ...]) -> list[Array]:
        """Run the step graph; returns its outputs but for the state, which it keeps."""
        found = self._step_graph.run(inputs, outputs)
        return self._state.take(found) if self._state else found

    def value_leaves(self, leaves: Leaves) -> Array:
        """Return values, float32 [N], of leaves [N, ...], which are seen in the present state.

        A network that draws numbers itself sees them with those of the last step.
        """
        rows = len(leaves[0])
        noise = (self._noise.zeros(rows),) if self.exported.draws else ()
        return self._value_graph.run((*leaves, *self._state.inputs(rows), *noise), (0,))[0]

    @property
    def state_leaves(self) -> tuple[Array, ...]:
        """The state after the last step, `[N, ...]` each; nothing without memory."""
        return self._state.leaves

    def env_action(self, leaves: Leaves) -> Any:
        """Convert the leaves of actions to the environment's actions, nested like the action space."""
        if self._actions.plain:
            return self._to_env[0](leaves[0])
        return self._actions.unflatten([to_env(leaf) for to_env, leaf in zip(self._to_env, leaves, strict=True)])

    def set_weights(self, weights: Sequence[Any] | Array) -> None:
        """Replace the weights by the arrays of `network.get_weights()`, or by one float32 vector of them all.

        Raises ValueError if their number or a shape differs from the exported network's.
        """
        np.copyto(self._weights, self.exported.as_vector(weights))
        self._step_graph.renew()
        self._value_graph.discard()

    def warn_without_mask(self, remedy: str = "pass `action_mask=` with each observation") -> None:
        """Warn, once, that a policy acts without the masks that it was trained with."""
        if self.exported.trained_with_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            text = "This policy was trained with action masks and acts without one, so it may choose forbidden actions"
            warnings.warn(f"{text}: {remedy}. Received: action_mask=None", UserWarning, stacklevel=3)

    def _nest_action(self, action: Leaves, single: bool) -> Any:
        return self._actions.unflatten([leaf[0] for leaf in action] if single else action)

    def _inputs(self, leaves: Leaves, noise: Array, action_mask: Array | None, start: Array | None) -> Leaves:
        if self._state:
            leaves = (*leaves, *self._state.inputs(len(noise), start))
        if not self.exported.masked:
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


def _padded(array: Array, spare: int) -> Array:
    """Append so many copies of the last row."""
    return np.concatenate([array, np.repeat(array[-1:], spare, axis=0)]) if spare else array


def load_policy(directory: str | os.PathLike[str], seed: Seed = 0) -> Policy:
    """Load the policy of a run directory, or of the `policy` folder in it, without TensorFlow.

    directory: a path, or "hf://owner/name" or "hf://owner/name@revision" of the Hugging Face Hub. Or a checkpoint of a
        run that has ended, "RUN@best", "RUN@latest", "RUN@114" or its folder, whose network Keras reads.

    Raises ValueError if there is none; with the Hub, ImportError if huggingface_hub isn't installed, and OSError if a
    download fails.
    """
    folder = local_path(directory)
    inner = folder / "policy"
    if not has_policy(folder) and (several := named_policies(folder)):
        raise ValueError(f"{several}. Received: directory={str(directory)!r}")
    if is_checkpoint(folder):
        return Policy(checkpoint_policy(folder), seed)
    return Policy(ExportedPolicy.load(inner if (inner / "policy.json").is_file() else folder), seed)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of a run that has exported its policy."""
    return (folder / "run.json").is_file() and has_policy(folder.parent.parent)


def checkpoint_policy(folder: Path) -> ExportedPolicy:
    """Return the policy that a run exported, with the weights of a checkpoint's network."""
    from actor_learner.networks.contract import policy_of
    from actor_learner.networks.saving import load_network

    exported, network = ExportedPolicy.load(folder.parent.parent / "policy"), load_network(folder)
    return exported.with_weights(policy_of(network, exported.spaces().observation))


def has_policy(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an exported policy, as that of a run does."""
    return any(os.path.isfile(os.path.join(folder, *inner, "policy.json")) for inner in ((), ("policy",)))


def leaf_to_env(leaf: Leaf, distribution: str) -> Callable[[Any], Any]:
    """Return the function that converts one leaf of an action or of a batch of actions.

    Discrete and MultiDiscrete actions are counted from the space's `start`. Box actions are clipped to the bounds;
    those of the distribution "squashed" become low + (tanh(u) + 1) / 2 x (high - low). All get the space's dtype.

    The function raises FloatingPointError for a Box action that isn't finite.
    """
    dtype = np.dtype(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        # np.add returns a number for a single action, and environments use it as a key.
        start = np.asarray(0 if leaf.start is None else leaf.start, dtype)
        return lambda action: np.add(action, start, dtype=dtype, casting="unsafe")  # from int32, also to unsigned ones
    convert = _box_to_env(leaf.space, dtype, distribution)

    def convert_finite(action: Any) -> Any:
        answer = convert(action)
        finite = np.isfinite(answer)
        if b"\0" in finite.tobytes():  # faster than finite.all()
            received = np.asarray(action)[~finite][0]
            raise FloatingPointError(f"the network must give finite numbers. Received: {received} in an action")
        return answer

    return convert_finite


def _box_to_env(space: Any, dtype: np.dtype[Any], distribution: str) -> Callable[[Any], Any]:
    low, high = space.low, space.high
    if distribution == "squashed":
        centre, scale = middle(space)  # rounding may step over a bound
        return lambda action: np.clip(centre + scale * np.tanh(np.asarray(action, dtype)), low, high)
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda action: np.asarray(action, dtype)
    return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)
