"""The learner: turns a trajectory batch into an update of a Keras network, in one compiled graph."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Space
from keras import ops

from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.schedules import is_schedule
from actor_learner.learner import backend
from actor_learner.learner.batch import tensors
from actor_learner.learner.rewards import RewardScaling
from actor_learner.learner.state import load_learner, write_learner
from actor_learner.learner.update import Update, computes_in_low_precision
from actor_learner.networks.contract import (
    CHECKED_ROWS,
    check_contract,
    named_leaves,
    network_distribution,
    normalization_layers,
    normalized_leaf,
    training_dependent_layers,
)
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory, map_leaves
from actor_learner.spaces.validate import validate_trajectory
from actor_learner.system.fields import check_count
from actor_learner.system.files import write_folder_atomically

Tensor = Any
Array = np.ndarray[Any, Any]


class Learner:
    """Updates `network` from trajectories, whoever made them.

    `update` mutates the network's weights, its optimizer (`network.optimizer`, set here) and the
    learner's own counters and statistics; nothing else does. The update, from advantages to the
    last optimizer step, is one compiled graph.

    Args:
        network: a Keras model that keeps the network contract (see `actor_learner.networks`).
        algorithm: hyperparameters and loss, for instance `al.PPO()`.
        action_space: the Gymnasium space that `parameters` describe a distribution over.
        total_steps: env steps of the whole run; needed by schedules of what remains.
        seed: of the order in which rows enter minibatches.
        device: "cpu", "gpu" or "auto" (a GPU where TensorFlow sees one).

    Raises:
        ValueError: a schedule without `total_steps`, an unknown device, "gpu" without one.
    """

    def __init__(
        self,
        network: keras.Model,
        algorithm: Algorithm,
        *,
        action_space: Space[Any],
        total_steps: int | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        _check_arguments(network, algorithm)
        self.spaces = Spaces(None, action_space)
        check_count("seed", seed, 0)
        check_count("total_steps", total_steps, optional=True)
        algorithm.check_total_steps(total_steps)
        self.network = network
        self.algorithm = algorithm
        self.action_space = action_space
        self.total_steps = total_steps
        self.device = backend.resolve_device(device)
        self.env_steps = 0
        self.updates = 0
        self.begun = 0
        self.not_finite: tuple[str, ...] = ()
        network_distribution(network, self.spaces)  # one that doesn't fit the space is refused here
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0x1EA24E4]))
        self._normalization = normalization_layers(network)
        self._reward_scaling: RewardScaling | None = None
        self._update: Update | None = None
        self._compiled: backend.Compiled | None = None
        self._read_vector: Callable[[], Array] | None = None
        self._prefetched: tuple[Trajectory, dict[str, Any]] | None = None
        self._observed: dict[str, tuple[int, ...]] = {}
        self._ready = False
        with backend.device(self.device):
            self.optimizer = algorithm.make_optimizer()
            network.optimizer = self.optimizer
            self._trainable = list(network.trainable_variables) if network.built else None
            if self._trainable is not None:
                self.optimizer.build(self._trainable)

    def get_weights(self) -> list[Array]:
        """Return what `network.get_weights()` returns: for `ActorPool.publish` or `Policy.set_weights`."""
        if self._vector_reader() is None or not self._is_float32:
            return list(self.network.get_weights())
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        parts = np.split(self.flat_weights(), ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def flat_weights(self) -> Array:
        """Return the weights as one new float32 vector, in the order of `network.weights`, for `ActorPool.publish`.

        Raises ValueError if the network isn't built yet.
        """
        if (read := self._vector_reader()) is None:
            raise ValueError("A network has weights once it is built: by a call, or by the first update.")
        return read()

    def _vector_reader(self) -> Callable[[], Array] | None:
        """Return what reads all weights in one copy from the device; None while the network isn't built."""
        if self._read_vector is None and self.network.built:
            weights = self.network.weights
            self._shapes = [tuple(weight.shape) for weight in weights]
            self._is_float32 = all(weight.dtype == "float32" for weight in weights)
            with backend.device(self.device):
                self._read_vector = backend.vector_reader(weights)
        return self._read_vector

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """One update from a batch. Returns metrics; those that have no value this time are absent.

        The first batch of a network with `ObservationNormalization` only sets its statistics.

        An update is undone if a metric, a weight, a variable of the optimizer, a statistic, or what the new network
        gives for some of the rows is NaN or infinite: network, optimizer and learner are then as they were before, and
        the metrics are those of the attempt, with "undone": 1.0 among them. `not_finite` names the metrics and parts
        ("weights", "optimizer", "statistics", "outputs"). There are no new weights to publish then.

        Raises:
            ValueError: a batch that doesn't fit the network, or layers whose `trainable` was changed.
        """
        prefetched = self._take_prefetched(trajectory)
        trajectory = self._checked(trajectory)
        valid = trajectory.valid
        random_state = self._rng.bit_generator.state
        order, num_minibatches = self._minibatch_order(valid)
        assert self._compiled is not None
        with backend.device(self.device):
            values, finite = self._compiled(*self._arguments(trajectory, order, num_minibatches, prefetched))
        result = self._read_metrics(values, learned=num_minibatches > 0)
        self.not_finite = self._names_of(finite) if "undone" in result else ()
        if self.not_finite:
            self._rng.bit_generator.state = random_state
            return result
        self.env_steps += int(valid.sum())
        self.updates += 1
        if (rate := self.algorithm.adapted_learning_rate(result["learning_rate"], result)) is not None:
            self.optimizer.learning_rate = np.float32(rate)
        return result

    def prefetch(self, trajectory: Trajectory) -> None:
        """Copies a batch to the device, for the next update that begins: if it is of this batch, it takes these copies.

        In another thread while `update` runs (`begun` counts those that have begun), and to its end before the next one
        begins. Nothing is learned.

        Raises:
            ValueError: a batch that breaks its space; the update would say so, too.
        """
        conformed = validate_trajectory(trajectory, self.spaces)
        with backend.device(self.device):
            self._prefetched = trajectory, tensors(conformed)

    def trace(self, trajectory: Trajectory) -> tuple[str, ...]:
        """The metrics that `update` gives for such a batch, whose values don't matter: nothing is learned.

        What is traced for that is what `update` runs later.
        """
        trajectory = self._checked(trajectory)
        nothing = np.full(self._order_shape(trajectory.valid.size), -1, np.int32)
        assert self._compiled is not None
        with backend.device(self.device):
            self._compiled.trace(*self._arguments(trajectory, nothing, 0))
        assert self._update is not None
        return tuple(name for name in self._update.metric_names if name != "undone")

    def _checked(self, trajectory: Trajectory) -> Trajectory:
        """The batch in its dtypes; the first one is what the update is compiled for."""
        trajectory = validate_trajectory(trajectory, self.spaces)
        if self._compiled is None:
            self._prepare(trajectory)
        self._check_batch(trajectory)
        self._check_trainable()
        return trajectory

    def _take_prefetched(self, trajectory: Trajectory) -> dict[str, Any] | None:
        """The copies of this very batch, if it was prefetched; older ones are dropped."""
        prefetched, self._prefetched = self._prefetched, None
        self.begun += 1
        return prefetched[1] if prefetched is not None and prefetched[0].reward is trajectory.reward else None

    def _arguments(
        self,
        trajectory: Trajectory,
        order: Array,
        num_minibatches: int,
        prefetched: dict[str, Any] | None = None,
    ) -> tuple[Any, ...]:
        """What the compiled update takes. prefetched: the batch's tensors, if they are there already."""
        scheduled = self._scheduled_values(trajectory.valid.size)
        numbers = (order, np.int32(num_minibatches), {name: np.float32(value) for name, value in scheduled.items()})
        return self._tensors(trajectory, prefetched), *backend.to_device(numbers)

    def _tensors(self, trajectory: Trajectory, prefetched: dict[str, Any] | None = None) -> dict[str, Any]:
        """The batch on the device; in mixed precision also which columns the present weights have collected.

        With one publish for each update, their version is the number of updates.
        """
        batch = prefetched or tensors(trajectory)
        if computes_in_low_precision(self.network):
            batch["on_policy"] = backend.to_device(np.asarray(trajectory.policy_version) == self.updates)
        return batch

    def _read_metrics(self, values: Tensor, learned: bool) -> dict[str, float]:
        """Those that have a value, by name; "undone" is one of them only where the update is."""
        assert self._update is not None
        result = dict(zip(self._update.metric_names, map(float, ops.convert_to_numpy(values)), strict=True))
        if not result["undone"]:
            del result["undone"]
        if not learned:
            always = ("explained_variance", "learning_rate", "undone")
            result = {name: value for name, value in result.items() if name in always}
        if math.isnan(result["explained_variance"]):
            del result["explained_variance"]
        return result

    def _names_of(self, finite: Tensor) -> tuple[str, ...]:
        """What isn't, of the things that are checked."""
        assert self._update is not None
        return tuple(itertools.compress(self._update.checked_names, ~ops.convert_to_numpy(finite)))

    def _progress_remaining(self, batch_rows: int) -> float:
        """1 - (k - 1) / N at update k of the N that `total_steps` takes; rows that only reset don't count as steps."""
        if not self.total_steps:
            return 1.0
        return max(0.0, 1.0 - self.env_steps / batch_rows / math.ceil(self.total_steps / batch_rows))

    def _scheduled_values(self, batch_rows: int) -> dict[str, float]:
        """What the update is given: the learning rate only where a schedule writes it.

        A constant was written when the optimizer was made, so that callbacks may change it since.
        """
        schedule = self.algorithm.scheduled_values(
            progress_remaining=self._progress_remaining(batch_rows), env_steps=self.env_steps
        )
        if self.algorithm.clones_optimizer or not is_schedule(self.algorithm.learning_rate):
            schedule.pop("learning_rate", None)
        return schedule

    def _minibatch_order(self, valid: Array) -> tuple[Array, int]:
        """Row indices `[epochs x minibatches, minibatch_size]` and how many minibatches are to be learned.

        Each epoch is a random order with the invalid rows last, cut into minibatches; those without a
        valid row are left out, and the last one is filled up with rows that don't count (index -1).
        """
        rows = np.flatnonzero(valid.reshape(-1)).astype(np.int32)
        order = np.full(self._order_shape(valid.size), -1, np.int32)
        size, epochs = order.shape[1], self.algorithm.epochs
        if not self._statistics_ready():
            return order, 0
        per_epoch = math.ceil(rows.size / size)
        for epoch in range(epochs):
            order[epoch * per_epoch : (epoch + 1) * per_epoch].reshape(-1)[: rows.size] = self._rng.permutation(rows)
        return order, epochs * per_epoch

    def _order_shape(self, batch_rows: int) -> tuple[int, int]:
        size = self._minibatch_rows(batch_rows)
        return self.algorithm.epochs * math.ceil(batch_rows / size), size

    def _minibatch_rows(self, batch_rows: int) -> int:
        size = self.algorithm.minibatch_size
        return batch_rows if size is None else min(size, batch_rows)

    def _statistics_ready(self) -> bool:
        """Whether the normalization layers have seen a batch (or there are none); asks the device until they have."""
        self._ready = self._ready or all(float(ops.convert_to_numpy(layer.count)) > 0 for layer in self._normalization)
        return self._ready

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes network, optimizer, statistics, counters and random state into `directory`, for `load`.

        The directory is replaced as a whole, or stays as it was; see `saving.write_folder_atomically`.

        Raises:
            OSError: the disk is full or can't be written.
            FileExistsError: the directory holds something that `save` didn't write.
            ValueError: the network isn't built yet.
        """
        write_folder_atomically(directory, lambda folder: write_learner(self, folder))

    @property
    def compiled_with_xla(self) -> bool | None:
        """Whether XLA compiles the update; None before the first batch."""
        return self._compiled.with_xla if self._compiled else None

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        algorithm: Algorithm | None = None,
        network: keras.Model | None = None,
        device: str = "auto",
    ) -> Learner:
        """The learner that `save` wrote: its next update is what the saved one's would have been.

        Args:
            directory: where it was saved.
            algorithm: needed where hyperparameters were callables or objects, or the class isn't of this package.
            network: needed where Keras couldn't save the network whole; gets the weights.
            device: as for `Learner`.

        Raises:
            ValueError: no learner there, one that was damaged, or one of the above is needed.
        """
        return load_learner(cls, directory, algorithm=algorithm, network=network, device=device)

    def _prepare(self, trajectory: Trajectory) -> None:
        """Checks the first batch against the network, then chooses how the update is compiled."""
        steps, columns = trajectory.reward.shape
        self.algorithm.check_unroll_length(steps)
        rows = steps * columns
        size = self.algorithm.minibatch_size
        if size is not None and size > rows:
            warnings.warn(
                f"`minibatch_size` is larger than a batch of {steps} x {columns} rows, which is taken whole. "
                f"Received: minibatch_size={size}",
                UserWarning,
                stacklevel=3,
            )
        self._check_network(trajectory.observation)
        self._observed = _row_shapes(trajectory.observation)
        if self._trainable is None:
            self._trainable = list(self.network.trainable_variables)
            self.optimizer.build(self._trainable)
        if self.algorithm.normalize_reward and self._reward_scaling is None:
            self._reward_scaling = RewardScaling(_num_environments(trajectory), self.algorithm.gamma)
        flops = 6.0 * backend.multiplications(self.network) * self._minibatch_rows(rows)
        self._compile(backend.use_xla(self.network, self.device, flops))

    def _compile(self, with_xla: bool) -> None:
        assert self._trainable is not None
        if not with_xla:
            backend.fuse(self.optimizer)
        self._update = Update(
            self.network, self.algorithm, self.spaces, self.optimizer, self._trainable, self._reward_scaling
        )
        self._compiled = backend.Compiled(self._update, self._update.state, with_xla=with_xla)

    def _check_network(self, observation: Any) -> None:
        """Calls the network once, which builds it, and compares what it gives with what is needed."""
        zeros = map_leaves(lambda leaf: np.zeros((CHECKED_ROWS, *leaf.shape[2:]), leaf.dtype), observation)
        check_contract(self.network, zeros, self.spaces)
        if names := training_dependent_layers(self.network):
            warnings.warn(
                f"Layers {names} are called with training=False while learning too, so that learner and actors "
                "agree: dropout does nothing, batch statistics stay as they are.",
                UserWarning,
                stacklevel=4,
            )
        for layer in self._normalization:
            shape = normalized_leaf(layer, zeros).shape[1:]
            if layer.mean.shape != shape:
                raise ValueError(
                    "ObservationNormalization must be the first layer: its statistics are those of observations, "
                    f"of shape {shape}. Received: a layer for shape {tuple(layer.mean.shape)}"
                )
        backend.check_placement(self.network, self.device)

    def _check_batch(self, trajectory: Trajectory) -> None:
        """What later batches must have in common with the first one."""
        if (shapes := _row_shapes(trajectory.observation)) != self._observed:
            raise ValueError(
                f"`observation` must have rows of shape {_describe_shapes(self._observed)}. "
                f"Received: {_describe_shapes(shapes)}"
            )
        if self._reward_scaling is None:
            return
        known, found = self._reward_scaling.discounted_return.shape[0], _num_environments(trajectory)
        if found > known:
            raise ValueError(
                f"With normalize_reward=True every batch must come from the {known} environments of the first. "
                f"Received: {found}"
            )

    def _check_trainable(self) -> None:
        now = self.network.trainable_variables
        assert self._trainable is not None
        if len(now) != len(self._trainable) or any(a is not b for a, b in zip(now, self._trainable, strict=True)):
            raise ValueError(
                "Which layers are trainable must not change after the Learner was built; build a new Learner. "
                f"Received: {len(now)} trainable weights, {len(self._trainable)} when it was built"
            )


def _row_shapes(observation: Any) -> dict[str, tuple[int, ...]]:
    """Shape of one row of each leaf."""
    return {name: leaf.shape[2:] for name, leaf in named_leaves(observation).items()}


def _describe_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return str(shapes.get("", shapes))


def _num_environments(trajectory: Trajectory) -> int:
    columns = int(trajectory.reward.shape[1])
    return columns if trajectory.env_index is None else max(columns, int(trajectory.env_index.max()) + 1)


def _check_arguments(network: Any, algorithm: Any) -> None:
    if not isinstance(network, keras.Model):
        raise ValueError(f"`network` must be a keras.Model. Received: network={network!r}")
    if isinstance(algorithm, type) or not hasattr(algorithm, "loss"):
        raise ValueError(f"`algorithm` must be an instance, such as al.PPO(). Received: algorithm={algorithm!r}")
