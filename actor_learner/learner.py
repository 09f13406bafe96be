"""The learner: turns a trajectory batch into an update of a Keras network, in one compiled graph.

The only module that depends on Keras's backend (gradients, compilation, devices).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Space
from keras import ops

from actor_learner import algorithms, spaces
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.schedules import is_schedule
from actor_learner.conform import conform
from actor_learner.cores import available_cores
from actor_learner.networks import (
    all_layers,
    call_network,
    check_contract,
    network_distribution,
    normalization_layers,
    training_dependent_layers,
)
from actor_learner.returns import explained_variance
from actor_learner.rewards import RewardScaling, clip_reward
from actor_learner.saving import load_network, save_network, write_atomically
from actor_learner.trajectory import Trajectory

Tensor = Any

STATE_FORMAT = 1

XLA_MAXIMUM_FLOPS = 6e7
"""On a CPU, a minibatch that costs more runs without XLA: arithmetic dominates, where oneDNN is ahead."""


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
        _check_arguments(network, algorithm, action_space)
        for name, value, least in (("seed", seed, 0), ("total_steps", 1 if total_steps is None else total_steps, 1)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                raise ValueError(f"`{name}` must be an integer of at least {least}. Received: {name}={value!r}")
        algorithm.check_total_steps(total_steps)
        self.network = network
        self.algorithm = algorithm
        self.action_space = action_space
        self.total_steps = total_steps
        self.device = resolve_device(device)
        self.env_steps = 0
        self.updates = 0
        self._distribution = network_distribution(network, action_space)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0x1EA24E4]))
        self._normalization = normalization_layers(network)
        self._reward_scaling: RewardScaling | None = None
        self._compiled: Any = None
        self._observation_shape: tuple[int, ...] = ()
        self.compiled_with_xla: bool | None = None
        with tf.device(self.device):
            self.optimizer = algorithm.make_optimizer()
            network.optimizer = self.optimizer
            self._trainable = list(network.trainable_variables) if network.built else None
            if self._trainable is not None:
                self.optimizer.build(self._trainable)

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """What `network.get_weights()` gives: for `ActorPool.publish` or `Policy.set_weights`."""
        weights: list[np.ndarray[Any, Any]] = self.network.get_weights()
        return weights

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """One update from a batch. Returns metrics; those that have no value this time are absent.

        The first batch of a network with `ObservationNormalization` only sets its statistics.

        Raises:
            ValueError: a batch that doesn't fit the network, or layers whose `trainable` was changed.
        """
        trajectory = conform(trajectory, self.action_space)
        valid = trajectory.valid
        if self._compiled is None:
            self._prepare(trajectory)
        self._check_batch(trajectory)
        self._check_trainable()
        schedule = self.algorithm.scheduled_values(
            progress_remaining=self._progress_remaining(valid.size), env_steps=self.env_steps
        )
        self._write_learning_rate(schedule)
        order, num_minibatches = self._minibatch_order(valid)
        with tf.device(self.device):
            metrics = self._compiled(
                _tensors(trajectory),
                tf.constant(order),
                tf.constant(num_minibatches, tf.int32),
                {name: tf.constant(value, tf.float32) for name, value in schedule.items()},
            )
        self.env_steps += int(valid.sum())
        self.updates += 1
        return self._read_metrics(metrics, learned=num_minibatches > 0)

    def _read_metrics(self, metrics: Mapping[str, Tensor], learned: bool) -> dict[str, float]:
        names = sorted(metrics)
        values = tf.stack([metrics[name] for name in names]).numpy()
        result = {name: float(value) for name, value in zip(names, values, strict=True)}
        if not learned:
            result = {"explained_variance": result["explained_variance"]}
        if math.isnan(result["explained_variance"]):
            del result["explained_variance"]
        result["learning_rate"] = float(ops.convert_to_numpy(self.optimizer.learning_rate))
        return result

    def _progress_remaining(self, batch_rows: int) -> float:
        """1 - (k - 1) / N at update k of the N that `total_steps` takes; rows that only reset don't count as steps."""
        if not self.total_steps:
            return 1.0
        return max(0.0, 1.0 - self.env_steps / batch_rows / math.ceil(self.total_steps / batch_rows))

    def _write_learning_rate(self, schedule: dict[str, float]) -> None:
        """A constant was written when the optimizer was made, so that callbacks may change it since."""
        rate = schedule.pop("learning_rate", None)
        if rate is not None and self.algorithm.optimizer is None and is_schedule(self.algorithm.learning_rate):
            self.optimizer.learning_rate = rate

    def _minibatch_order(self, valid: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
        """Row indices `[epochs x minibatches, minibatch_size]` and how many minibatches are to be learned.

        Each epoch is a random order with the invalid rows last, cut into minibatches; those without a
        valid row are left out, and the last one is filled up with rows that don't count (index -1).
        """
        rows = np.flatnonzero(valid.reshape(-1)).astype(np.int32)
        size = self._minibatch_rows(valid.size)
        epochs = self.algorithm.epochs
        order = np.full((epochs * math.ceil(valid.size / size), size), -1, np.int32)
        if not self._statistics_ready():
            return order, 0
        per_epoch = math.ceil(rows.size / size)
        for epoch in range(epochs):
            order[epoch * per_epoch : (epoch + 1) * per_epoch].reshape(-1)[: rows.size] = self._rng.permutation(rows)
        return order, epochs * per_epoch

    def _minibatch_rows(self, batch_rows: int) -> int:
        size = self.algorithm.minibatch_size
        return batch_rows if size is None else min(size, batch_rows)

    def _statistics_ready(self) -> bool:
        """Whether the normalization layers have seen a batch (or there are none)."""
        return all(float(ops.convert_to_numpy(layer.count)) > 0 for layer in self._normalization)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes network, optimizer, statistics, counters and random state into `directory`, for `load`.

        Each file is whole or isn't there. Raises OSError if the disk is full or can't be written.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_network(self.network, directory)
        arrays = {f"optimizer/{i}": ops.convert_to_numpy(v) for i, v in enumerate(self.optimizer.variables)}
        if self._reward_scaling is not None:
            for i, variable in enumerate(self._reward_scaling.variables):
                arrays[f"reward_scaling/{i}"] = ops.convert_to_numpy(variable)
        state = {
            "format": STATE_FORMAT,
            "algorithm": algorithms.to_json(self.algorithm),
            "action_space": spaces.to_json(self.action_space),
            "total_steps": self.total_steps,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "random_state": self._rng.bit_generator.state,
        }
        write_atomically(directory / "learner.npz", lambda file: _write_arrays(file, arrays))
        write_atomically(directory / "learner.json", lambda file: file.write_text(json.dumps(state, indent=2)))

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
            ValueError: no learner there, or one of the above is needed.
        """
        file = Path(directory) / "learner.json"
        if not file.exists():
            raise ValueError(f"There is no learner (learner.json) there. Received: directory={str(directory)!r}")
        state = json.loads(file.read_text())
        learner = cls(
            load_network(directory, network),
            algorithm or algorithms.from_json(state["algorithm"]),
            action_space=spaces.from_json(state["action_space"]),
            total_steps=state["total_steps"],
            device=device,
        )
        learner.env_steps, learner.updates = state["env_steps"], state["updates"]
        learner._rng.bit_generator.state = state["random_state"]
        with np.load(Path(directory) / "learner.npz", allow_pickle=False) as arrays:
            learner._restore(arrays)
        return learner

    def _restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if "reward_scaling/0" in arrays:
            self._reward_scaling = RewardScaling(arrays["reward_scaling/0"].size, self.algorithm.gamma)
            for index, variable in enumerate(self._reward_scaling.variables):
                variable.assign(arrays[f"reward_scaling/{index}"])
        for index, variable in enumerate(self.optimizer.variables):
            variable.assign(arrays[f"optimizer/{index}"])

    # What follows runs once, or is traced into the compiled update.

    def _prepare(self, trajectory: Trajectory) -> None:
        """Checks the first batch against the network, then chooses how the update is compiled."""
        steps, columns = trajectory.reward.shape
        rows = steps * columns
        size = self.algorithm.minibatch_size
        if size is not None and size > rows:
            warnings.warn(
                f"`minibatch_size` is larger than a batch of {steps} x {columns} rows, which is taken whole. "
                f"Received: minibatch_size={size}",
                UserWarning,
                stacklevel=3,
            )
        self._check_network(trajectory.observation.shape[2:], trajectory.observation.dtype)
        self._observation_shape = trajectory.observation.shape[2:]
        if self._trainable is None:
            self._trainable = list(self.network.trainable_variables)
            self.optimizer.build(self._trainable)
        if self.algorithm.normalize_reward and self._reward_scaling is None:
            self._reward_scaling = RewardScaling(_num_environments(trajectory), self.algorithm.gamma)
        flops = 6.0 * _multiplications(self.network) * self._minibatch_rows(rows)
        self.compiled_with_xla = use_xla(self.network, self.device, flops)
        self._compiled = tf.function(self._update, jit_compile=self.compiled_with_xla, autograph=False)

    def _check_network(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Calls the network once, which builds it, and compares what it gives with what is needed."""
        check_contract(self.network, shape, dtype, self.action_space)
        if names := training_dependent_layers(self.network):
            warnings.warn(
                f"Layers {names} are called with training=False while learning too, so that learner and actors "
                "agree: dropout does nothing, batch statistics stay as they are.",
                UserWarning,
                stacklevel=4,
            )
        for layer in self._normalization:
            if layer.mean.shape != shape:
                raise ValueError(
                    "ObservationNormalization must be the first layer: its statistics are those of observations, "
                    f"of shape {shape}. Received: a layer for shape {tuple(layer.mean.shape)}"
                )
        if "CPU" in self.device and any("GPU" in weight.value.device for weight in self.network.weights):
            raise ValueError(
                "`device='cpu'` needs a network on the CPU; build it under `tf.device('CPU')`. "
                "Received: weights on a GPU"
            )

    def _check_batch(self, trajectory: Trajectory) -> None:
        """What later batches must have in common with the first one."""
        shape = trajectory.observation.shape[2:]
        if shape != self._observation_shape:
            raise ValueError(f"`observation` must have rows of shape {self._observation_shape}. Received: {shape}")
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

    def _update(
        self, batch: dict[str, Tensor], order: Tensor, num_minibatches: Tensor, schedule: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The whole update, from raw batch to metrics."""
        algorithm = self.algorithm.at(schedule)
        batch = _without_invalid(batch)
        batch["reward"] = self._scaled_reward(batch)
        value = self._values(batch["observation"])
        targets = algorithm.targets(batch, value)
        rows = _flatten({**batch, "observation": batch["observation"][:-1], "value": value[:-1], **targets})
        metrics: dict[str, Tensor] = self._learn(algorithm, rows, order, num_minibatches)
        for layer in self._normalization:
            layer.update(rows["observation"], rows["valid"])
        metrics["explained_variance"] = explained_variance(rows["value"], rows["return"], rows["valid"])
        return metrics

    def _scaled_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        reward = clip_reward(batch["reward"], self.algorithm.clip_reward)
        if self._reward_scaling is None:
            return reward
        ended = ops.logical_or(batch["terminated"], batch["truncated"])
        return self._reward_scaling.scale(reward, ended, batch["valid"], batch["env_index"])

    def _values(self, observation: Tensor) -> Tensor:
        """`[T + 1, B, ...]` -> values `[T + 1, B]`."""
        flat = _flatten({"observation": observation})["observation"]
        return ops.reshape(call_network(self.network, flat)["value"], observation.shape[:2])

    def _learn(self, algorithm: Algorithm, rows: dict[str, Tensor], order: Tensor, num_minibatches: Tensor) -> Any:
        """Steps through the minibatches; metrics are means over them, the one that exceeds `target_kl` included."""
        target_kl = getattr(algorithm, "target_kl", None)
        names = self._metric_names(algorithm, rows, order)
        if target_kl is not None and "approx_kl" not in names:
            raise ValueError(f"`target_kl` needs a loss that reports `approx_kl`. Received: a loss with {names}")

        def step(index: Tensor, stopped: Tensor, sums: Tensor, taken: Tensor) -> tuple[Tensor, ...]:
            gradients, metrics = self._gradients(algorithm, _minibatch(rows, order[index]))
            exceeded = tf.constant(False) if target_kl is None else metrics["approx_kl"] > 1.5 * target_kl
            if target_kl is None:
                self._apply(gradients)
            else:
                tf.cond(exceeded, lambda: tf.constant(0), lambda: self._apply(gradients))
            values = tf.stack([tf.cast(metrics[name], tf.float32) for name in names])
            return index + 1, exceeded, sums + values, taken + 1.0

        _, _, sums, taken = tf.while_loop(
            lambda index, stopped, sums, taken: tf.logical_and(index < num_minibatches, tf.logical_not(stopped)),
            step,
            (tf.constant(0), tf.constant(False), tf.zeros(len(names)), tf.constant(0.0)),
        )
        means = sums / tf.maximum(taken, 1.0)
        return {name: means[index] for index, name in enumerate(names)}

    def _metric_names(self, algorithm: Algorithm, rows: dict[str, Tensor], order: Tensor) -> list[str]:
        """The names of what the loss reports, found by tracing it in a graph that is thrown away."""
        names: list[str] = []

        def probe(rows: dict[str, Tensor], order: Tensor) -> Tensor:
            names.extend(self._loss(algorithm.at(_constants), _minibatch(rows, order[0]))[1])
            return tf.constant(0)

        _constants = {name: 1.0 for name in algorithm.SCHEDULED if getattr(algorithm, name) is not None}
        tf.function(probe, autograph=False).get_concrete_function(
            *tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), (rows, order))
        )
        return sorted([*names, "gradient_norm"])

    def _loss(self, algorithm: Algorithm, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = call_network(self.network, minibatch["observation"])
        outputs["log_prob"] = self._distribution.log_prob(outputs["parameters"], minibatch["action"])
        outputs["entropy"] = self._distribution.entropy(outputs["parameters"])
        loss, metrics = algorithm.loss(outputs, minibatch)
        if self.network.losses:
            loss = loss + ops.sum(ops.stack(self.network.losses))
        return loss, {**metrics, "loss": loss}

    def _gradients(
        self, algorithm: Algorithm, minibatch: dict[str, Tensor]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        with tf.GradientTape() as tape:
            loss, metrics = self._loss(algorithm, minibatch)
        gradients = tape.gradient(loss, self._trainable)
        norm = tf.linalg.global_norm([gradient for gradient in gradients if gradient is not None])
        return gradients, {**metrics, "gradient_norm": norm}

    def _apply(self, gradients: list[Tensor | None]) -> Tensor:
        """One optimizer step on the weights that have a gradient (a head that the loss ignores has none)."""
        assert self._trainable is not None
        pairs = [(g, v) for g, v in zip(gradients, self._trainable, strict=True) if g is not None]
        self.optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
        return tf.constant(0)


def _tensors(trajectory: Trajectory) -> dict[str, Tensor]:
    """The fields that are there, each copied once to the device."""
    fields = {name: value for name, value in trajectory._asdict().items() if value is not None}
    fields.pop("policy_version", None)
    if "env_index" not in fields:
        fields["env_index"] = np.arange(trajectory.reward.shape[1], dtype=np.int32)
    return {name: tf.constant(value) for name, value in fields.items()}


def _num_environments(trajectory: Trajectory) -> int:
    columns = int(trajectory.reward.shape[1])
    return columns if trajectory.env_index is None else max(columns, int(trajectory.env_index.max()) + 1)


def _without_invalid(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in place of what stands in invalid rows: 0 x NaN is NaN in a gradient."""
    valid = batch["valid"]
    result = dict(batch)
    observation = batch["observation"]
    # The bootstrap row is acted on next, so it is valid whatever the row before it was.
    seen = ops.concatenate([valid, ops.ones_like(valid[:1])], axis=0)
    result["observation"] = _keep(observation, seen)
    for name in ("action", "reward", "behaviour_log_prob", "truncation_value"):
        result[name] = _keep(batch[name], valid)
    return result


def _keep(values: Tensor, valid: Tensor) -> Tensor:
    mask = ops.reshape(valid, (*valid.shape, *(1,) * (len(values.shape) - 2)))
    return ops.where(mask, values, ops.zeros_like(values))


def _flatten(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`[T, B, ...]` -> `[T x B, ...]`, for each field that has rows."""
    return {
        name: ops.reshape(values, (math.prod(values.shape[:2]), *values.shape[2:]))
        for name, values in fields.items()
        if len(values.shape) >= 2
    }


def _minibatch(rows: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """The rows of `index [M]`; where it is -1, row 0 with `valid=False`."""
    present = index >= 0
    index = tf.maximum(index, 0)
    minibatch = {name: tf.gather(values, index) for name, values in rows.items()}
    minibatch["valid"] = tf.logical_and(minibatch["valid"], present)
    return minibatch


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _check_arguments(network: Any, algorithm: Any, action_space: Any) -> None:
    if not isinstance(network, keras.Model):
        raise ValueError(f"`network` must be a keras.Model. Received: network={network!r}")
    if isinstance(algorithm, type) or not hasattr(algorithm, "loss"):
        raise ValueError(f"`algorithm` must be an instance, such as al.PPO(). Received: algorithm={algorithm!r}")
    spaces.check_action_space(action_space)


def resolve_device(device: str) -> str:
    """TensorFlow's name of the device that "auto", "cpu" or "gpu" stands for.

    Raises ValueError for any other name, and for "gpu" where TensorFlow sees none.
    """
    if device not in ("auto", "cpu", "gpu"):
        raise ValueError(f"`device` must be 'auto', 'cpu' or 'gpu'. Received: device={device!r}")
    gpus = tf.config.list_physical_devices("GPU") if device != "cpu" else []
    if device == "gpu" and not gpus:
        raise ValueError(
            "`device='gpu'` needs a GPU that TensorFlow sees (pip install 'actor-learner[cuda]'). Received: none"
        )
    for gpu in gpus:
        with contextlib.suppress(RuntimeError):  # TensorFlow has started already, with the caller's own settings.
            tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:  # Actors compute in full float32; the learner must agree with their log-probabilities.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return "/GPU:0" if gpus else "/CPU:0"


def warn_of_threads(free_cores: int) -> None:
    """Warns if TensorFlow would compute on more cores than actors that go on meanwhile leave it."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get(_THREADS) or 0)
    if (threads or available_cores()) > free_cores:
        warnings.warn(
            "TensorFlow's threads and the actors want the same cores, which slows both; before TensorFlow is "
            f"imported, set {_THREADS}={free_cores}. Received: {threads or 'all'} threads, {available_cores()} cores",
            UserWarning,
            stacklevel=2,
        )


_THREADS = "TF_NUM_INTRAOP_THREADS"


def use_xla(network: keras.Model, device: str, minibatch_flops: float) -> bool:
    """The rule by which the update is compiled: XLA on GPUs; on CPUs where dispatch outweighs arithmetic.

    XLA's CPU convolution gradients are many times slower than TensorFlow's, and for large minibatches
    oneDNN's products are faster. A rule rather than a timing: the two differ in the last bits, and a run
    must repeat.
    """
    if "GPU" in device:
        return True
    convolves = any("Conv" in type(layer).__name__ for layer in all_layers(network))
    return not convolves and minibatch_flops <= XLA_MAXIMUM_FLOPS


def _multiplications(network: keras.Model) -> int:
    """Multiplications of one forward pass of one row, taken as the number of matrix elements."""
    return sum(math.prod(weight.shape) for weight in network.weights if len(weight.shape) >= 2)
