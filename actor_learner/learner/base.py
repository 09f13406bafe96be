"""The learner: turns a trajectory batch into an update of a Keras network, in one compiled graph."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from gymnasium.spaces import Space
from keras import ops, tree

from actor_learner.algorithms import optimizers
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.algorithms.off_policy.base import OffPolicy
from actor_learner.config.pool_checks import check_sequences, check_tf32
from actor_learner.learner import backend
from actor_learner.learner.ahead import Guess, OrderAhead
from actor_learner.learner.batch import num_environments, packed, packed_fields, sent
from actor_learner.learner.cost import multiplications
from actor_learner.learner.models import kinds_in_training
from actor_learner.learner.owned import Owned, check_apart, trained
from actor_learner.learner.packing import Packed, split_weights
from actor_learner.learner.rewards import NO_RETURNS, ReturnStatistics, RewardScaling
from actor_learner.learner.state import SEEDS, SavedLearner, read_learner, restore, write_learner
from actor_learner.learner.steps import Snapshot
from actor_learner.learner.update import Update
from actor_learner.networks import contract
from actor_learner.networks.memory import Memories
from actor_learner.replay.buffer import ReplayBuffer
from actor_learner.replay.hindsight import ComputeReward
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import choices
from actor_learner.spaces.trajectory import DeviceTrajectory, Trajectory, map_leaves
from actor_learner.spaces.validate import check_masks_reach, validate_trajectory
from actor_learner.system.fields import check_count, check_flag
from actor_learner.system.files import Entry, write_folder_atomically
from actor_learner.system.keras_import import check_floatx
from actor_learner.system.policies import ONLY_POLICY
from actor_learner.system.types import Array, Nest, Tensor


class _Prefetched(NamedTuple):
    """A batch whose fields are on the device. log_prob: a copy of its own, by which it is known again."""

    trajectory: Trajectory
    log_prob: Array
    fields: Packed


_Settings = tuple[dict[str, Array], dict[str, np.float32]]  # of columns, and of schedules


class _BegunUpdate(NamedTuple):
    """An update that the device computes. random_states: before it and after it."""

    trajectory: Trajectory
    settings: _Settings
    random_states: tuple[Any, Any]
    num_minibatches: int
    computed: Any


class Learner:
    """Updates `network` from trajectories of any origin.

    With an algorithm that has a replay buffer, `Learner(...)` makes a `ReplayLearner`, which is a subclass.

    `update` mutates the network's weights, its optimizer (`network.optimizer`, set here) and the learner's own counters
    and statistics; nothing else does. The update, from advantages to the last optimizer step, is one compiled graph.

    Args:
        network: a Keras model that keeps the network contract (see `actor_learner.networks.contract`).
        algorithm: hyperparameters and loss, for instance `al.PPO()`.
        action_space: the Gymnasium space of actions, whose distribution `parameters` describe.
        total_steps: env steps of the whole run, and gradient steps that are taken offline; schedules of the remaining
            progress need it.
        seed: seed of the order in which rows enter minibatches.
        device: "cpu", "gpu" or "auto" (a GPU if the backend sees one).
        devices: number of devices that share each update, on JAX only. Each has the same number of columns of a batch,
            and takes its part of each minibatch from them. Gradients, metrics and statistics are those of all devices.
        tf32: compute products of float32 in TF32, which rounds factors to 10 bits of mantissa, on an NVIDIA GPU.
        sequence_length: env steps of the sequences from which a network with memory learns, beginning with the states
            before the update. None: whole columns, or the longest equal parts that a minibatch holds. It must divide
            the batch's steps.
        burn_in: rows at the beginning of each sequence without a loss, which only bring the state up to date.
        observation_space: the Gymnasium space of observations, which an off-policy algorithm needs.
        critics: callable(observation_space, action_space) -> keras.Model, for an algorithm with critics; called once
            for each. A model maps (observation, action `[N, d]`, within -1 and 1) to a value `[N, 1]`, or, for a
            Discrete space, the observation to values `[N, n]`. None: `default_critic`.
        buffer: the replay buffer of an off-policy algorithm, which may hold rows already; None: a new one.
        compute_reward: with `hindsight`, the function of `al.Hindsight` for a new buffer.
        diagnose: measure each layer in each update: metrics `diagnose/...`. The weights stay the same.
        return_statistics: mean, variance and count of the discounted returns to start from, with `normalize_reward`.

    Raises:
        ValueError: a schedule has no `total_steps`; the device is unknown; "gpu" or `tf32` finds no GPU; there are
            fewer devices, or `minibatch_size` can't be shared by so many; or the network computes in float16.
    """

    algorithm: Any
    buffer: ReplayBuffer | None = None
    offline_steps: int = 0
    """Gradient steps that were taken without env steps, by `ReplayLearner.learn`."""

    of_replay: ClassVar[type[Learner]]
    """`ReplayLearner`; `learner.learner` says so, because its module imports this one."""

    def __new__(cls, network: Any = None, algorithm: Any = None, **options: Any) -> Learner:
        """Return a learner of this class, but a `ReplayLearner` where a `Learner` itself is to have a replay buffer.

        It isn't a function, so that every learner is a `Learner` to `isinstance`, and either class can be subclassed.
        """
        replays = getattr(algorithm, "REPLAYS", False)
        kind = Learner.of_replay if replays and cls is Learner else cls
        if replays and not issubclass(kind, Learner.of_replay):
            raise TypeError(f"{cls.__name__} can't learn by {type(algorithm).__name__}: subclass ReplayLearner for it")
        return super().__new__(kind)

    def __init__(
        self,
        network: keras.Model,
        algorithm: Algorithm | OffPolicy,
        *,
        action_space: Space[Any],
        total_steps: int | None = None,
        seed: int = 0,
        device: str = "auto",
        devices: int = 1,
        tf32: bool = False,
        sequence_length: int | None = None,
        burn_in: int = 0,
        observation_space: Space[Any] | None = None,
        critics: Callable[[Any, Any], keras.Model] | None = None,
        buffer: ReplayBuffer | None = None,
        return_statistics: ReturnStatistics = NO_RETURNS,
        compute_reward: ComputeReward | None = None,
        diagnose: bool = False,
    ) -> None:
        check_floatx()
        contract.refuse_float16(contract.require_model(network))
        if not isinstance(algorithm, Hyperparameters):
            raise ValueError(f"`algorithm` must be an instance, such as al.PPO(). Received: algorithm={algorithm!r}")
        self.spaces = Spaces(observation_space, action_space)
        self._seed = check_count("seed", seed, 0)
        check_count("devices", devices)
        check_count("total_steps", total_steps, optional=True)
        self.sequence_length = check_count("sequence_length", sequence_length, optional=True)
        self.burn_in = check_count("burn_in", burn_in, 0)
        algorithm.check_total_steps(total_steps)
        self.network = network
        self.algorithm = algorithm
        self.compute_reward = compute_reward
        self.action_space = action_space
        self.total_steps = total_steps
        self.device = backend.resolve_device(device, devices)
        self._draws_ahead = "GPU" in self.device  # whose updates leave the host's cores idle
        self._order_ahead: OrderAhead | None = None
        self.diagnose = check_flag("diagnose", diagnose)
        self.tf32 = check_flag("tf32", tf32)
        if tf32:
            check_tf32(self.device)
        self.devices = devices
        self.env_steps = 0
        self.updates = 0
        self.begun = 0
        self.meanwhile: Callable[[], object] = bool  # called while the device computes an update, with its weights
        self.not_finite: tuple[str, ...] = ()
        algorithm.check_action_space(self.spaces.action)
        contract.network_distribution(network, self.spaces)  # refuses one that doesn't fit the space
        distribution = contract.distribution_and_hold(network)[0]
        if distribution != "gaussian" or not (algorithm.TAKES_CHOICES and choices(action_space)):
            algorithm.check_distribution(distribution)
        self._greedy = distribution == "greedy"
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0x1EA24E4]))
        self._normalization = contract.normalization_layers(network)
        self._compiled: backend.Compiled | None = None
        self._read_vector: Callable[[], Tensor] | None = None
        self._prefetched: _Prefetched | None = None
        self._ahead = Guess[_BegunUpdate]()
        self._row_shapes: dict[str, tuple[int, ...]] = {}
        self._state_shapes: tuple[tuple[int, ...], ...] = ()
        self._return_statistics = return_statistics
        self._place(network)
        with self._on_device():
            self._owned = Owned(algorithm, self.spaces)
        for model in self._owned.models.values():
            self._place(model)
        if self._owned.parts:
            self.algorithm = algorithm = algorithm.at({"_own": self._owned.parts})
        self._prepare_source(critics, buffer)
        compiled = network.optimizer if getattr(network, "compiled", False) else None
        with self._on_device():
            self.optimizer = network.optimizer = algorithm.make_optimizer()
        own_step = not type(network).train_step.__module__.startswith("keras.")  # of the class, or of one above it
        if (compiled is not None and not algorithm.clones_optimizer) or own_step:
            given = type(compiled or network).__name__
            warnings.warn(
                f"The algorithm's loss and optimizer ({type(self.optimizer).__name__}) learn, not those that the "
                "network was compiled with, nor its `train_step`: al.PPO(optimizer=...) gives another optimizer. "
                f"Received: network={network.name!r}, {given}",
                stacklevel=3,
            )
        self._trainable: list[keras.Variable] | None = None
        if network.built:
            self._begin()

    def _begin(self) -> None:
        """Build the optimizer for a network that is built, set its first epsilon, and tell the algorithm its layers."""
        self._trainable = list(self.network.trainable_variables)
        parts = {name: trained(part) for name, part in self._owned.parts.items()}
        check_apart({"the network": self._trainable, **parts})
        with self._on_device():
            optimizers.check_excluded(self.optimizer, self._trainable)
            optimizers.build(self.optimizer, self._trainable)
        self._set_epsilon()
        self.algorithm.check_layers(contract.all_layers(self.network))

    def _prepare_source(self, critics: Any, buffer: Any) -> None:
        """Prepare where the rows of minibatches come from: each batch itself."""
        for name, value in (("critics", critics), ("buffer", buffer), ("compute_reward", self.compute_reward)):
            if value is not None:
                kind = type(self.algorithm).__name__
                raise ValueError(f"`{name}` is for off-policy algorithms. Received: {name}={value!r} with {kind}")
        self._source = self.algorithm.source()
        self._share = self._source.share(self.devices)
        self._reward_scaling: RewardScaling | None = None
        self._update: Update | None = None
        self._has_statistics = False
        self._sequence_rows = 1  # of a network with memory

    def _on_device(self) -> Any:
        return backend.device(self.device, self.devices)

    def _place(self, network: keras.Model) -> None:
        """Move a built network to the learner's device, or refuse it; several devices get copies at each update."""
        if network.built and self.devices == 1:
            backend.place(network, self.device)

    @property
    def members(self) -> dict[str, Learner]:
        """The learners of a run by their policies' names: this one."""
        return {ONLY_POLICY: self}

    def get_weights(self) -> list[Array]:
        """Return what `network.get_weights()` returns: for `ActorPool.publish` or `Policy.set_weights`."""
        if self._vector_reader() is None or not self._is_float32:
            return list(self.network.get_weights())
        return split_weights(self.flat_weights(), self._weight_shapes)

    def flat_weights(self) -> Array:
        """Return the weights as one new float32 vector, in the order of `network.weights`, for `ActorPool.publish`.

        Raises ValueError if the network isn't built yet.
        """
        return backend.to_numpy(self.device_weights())

    def device_weights(self) -> Tensor:
        """Return what `flat_weights` returns, on the device; on JAX, the same tensor while no weight was assigned."""
        if (read := self._vector_reader()) is None:
            raise ValueError("A network has weights once it is built: by a call, or by the first update.")
        with backend.device(self.device):
            return read()

    def _vector_reader(self) -> Callable[[], Tensor] | None:
        """Return a function that joins all weights on the device; None while the network isn't built."""
        if self._read_vector is None and self.network.built:
            weights = self.network.weights
            self._weight_shapes = [tuple(weight.shape) for weight in weights]
            self._is_float32 = all(weight.dtype == "float32" for weight in weights)
            with self._on_device():
                self._read_vector = backend.vector_reader(weights)
        return self._read_vector

    def update(self, trajectory: Trajectory, *, on_policy: Any = False) -> dict[str, float]:
        """Update once from a batch. Returns metrics, without those that have no value in this update.

        The first batch of a network with `ObservationNormalization` only sets its statistics.

        An update is undone if a metric, a weight, a variable of the optimizer, a statistic, or an output of the new
        network for some of the rows is NaN or infinite. Network, optimizer and learner are then as before the update,
        and there are no new weights to publish. The metrics are those of the attempt, with "undone": 1.0. `not_finite`
        names the metrics and parts ("weights", "optimizer", "statistics", "outputs").

        on_policy: True if the present weights chose the actions, or bool `[B]` for each column. In mixed precision and
            in TF32, the learner then computes their log-probabilities itself, because the actors' are computed in
            float32.

        Raises:
            ValueError: a batch that doesn't fit the network, one without a valid row, or layers whose `trainable` was
                changed.
            MemoryError: the device has too little memory for the update.
        """
        prefetched = self._take_prefetched(trajectory)
        trajectory, update, compiled = self._prepare(trajectory)
        env_steps = valid_rows(trajectory.valid)
        before = self._rng.bit_generator.state, self.env_steps, self.updates
        epsilon: dict[str, float] = {}

        def go_on() -> None:
            epsilon.update(self._set_epsilon())
            self.meanwhile()

        result = {"undone": 1.0}
        try:
            with self._explaining_memory_errors(trajectory.valid.shape), self._on_device():
                begun = self._ahead.take(lambda begun: self._fits(begun, trajectory, on_policy))
                begun = begun or self._begin_update(trajectory, on_policy, prefetched)
                self._rng.bit_generator.state = begun.random_states[1]
                self.env_steps += env_steps  # as the variables: `meanwhile` sees all as after the update
                self.updates += 1
                values, finite = compiled.finish(begun.computed, meanwhile=go_on)
                result = _read_metrics(update, values, learned=begun.num_minibatches > 0)
        finally:
            if "undone" in result:
                self._rng.bit_generator.state, self.env_steps, self.updates = before
                self._set_epsilon()
        if "undone" in result:
            self.not_finite = tuple(itertools.compress(update.checked_names, ~backend.to_numpy(finite)))
            return result
        self.not_finite = ()
        result |= epsilon
        if (rate := self.algorithm.adapted_learning_rate(result["learning_rate"], result)) is not None:
            with backend.device(self.device):
                self.optimizer.learning_rate = np.float32(rate)
        return result

    def update_ahead(self, trajectory: Trajectory, on_policy: Any = False) -> None:
        """Have the device compute the update of a batch that it still collects, before `update` is called with it.

        Nothing changes until then. If something was assigned meanwhile, or a field is another, what was begun is
        dropped. Call it from `meanwhile`, with what `ActorPool.act_ahead` returns. With a schedule that is a function,
        which counts on one call for each update, nothing is begun.
        """
        if self._has_statistics and not self.algorithm.has_function_schedule:
            with self._explaining_memory_errors(trajectory.valid.shape), self._on_device():
                self._ahead.begin(lambda: self._begin_update(trajectory, on_policy))

    def _begin_update(self, trajectory: Trajectory, on_policy: Any, prefetched: Packed | None = None) -> _BegunUpdate:
        """Have the device compute an update. On JAX, nothing changes until it is finished."""
        assert self._compiled is not None
        before = self._rng.bit_generator.state
        order, num_minibatches = self._minibatch_order(trajectory.valid)
        random_states = before, self._rng.bit_generator.state
        self._rng.bit_generator.state = before
        settings = self._settings(trajectory, on_policy)
        arguments = self._arguments(trajectory, order, num_minibatches, settings, prefetched)
        return _BegunUpdate(trajectory, settings, random_states, num_minibatches, self._compiled.begin(*arguments))

    def _fits(self, begun: _BegunUpdate, trajectory: Trajectory, on_policy: Any) -> bool:
        """Return whether the update that was begun is the one that would begin now."""
        assert self._compiled is not None
        same_order = begun.random_states[0] == self._rng.bit_generator.state
        then = begun.settings, begun.trajectory._asdict() | {"policy_version": None}
        now = self._settings(trajectory, on_policy), trajectory._asdict() | {"policy_version": None}
        return same_order and _are_same(then, now) and self._compiled.fits(begun.computed)

    def prefetch(self, trajectory: Trajectory) -> None:
        """Copy a batch to the device. If the next update is of this batch, it uses the copy.

        Call it in another thread while `update` runs (`begun` counts the updates that have begun). It must return
        before the next update begins. Nothing is learned.

        Raises:
            ValueError: a batch that breaks its space; the update would refuse it, too.
            MemoryError: the device has too little memory for this batch beside the present one.
        """
        conformed = validate_trajectory(trajectory, self.spaces)
        with self._explaining_memory_errors(trajectory.reward.shape), self._on_device():
            fields = sent(packed_fields(conformed, greedy=self._greedy))
            self._prefetched = _Prefetched(trajectory, trajectory.behaviour_log_prob.copy(), fields)

    @contextlib.contextmanager
    def _explaining_memory_errors(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Raise MemoryError with the settings that matter where the body needs more memory than the device has.

        shape: (steps, columns) of the batch.
        """
        try:
            yield
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
            steps, columns = shape
            settings = {
                "minibatch_size": self.algorithm.minibatch_rows(steps * columns),
                "unroll_length": steps,
                "num_envs": columns,
                "precision": self.precision,
            }
            received = ", ".join(f"{name}={value}" for name, value in settings.items())
            or_bfloat16 = "" if contract.computes_in(self.network, "bfloat16") else ", or use precision='bfloat16'"
            raise MemoryError(
                f"The {self.device[1:4]}'s memory is too small for this update: lower `minibatch_size`, or num_envs x "
                f"unroll_length{or_bfloat16}. Received: {received}"
            ) from error

    @property
    def precision(self) -> str:
        """The precision of the network's computations: "float32", "tf32" or "bfloat16"."""
        return "tf32" if self.tf32 else str(self.network.compute_dtype)

    def trace(self, trajectory: Trajectory) -> tuple[str, ...]:
        """Return the names of the metrics that `update` gives for such a batch; the batch's values don't matter.

        Nothing is learned. `update` later runs the graph that is traced here.
        """
        trajectory, update, compiled = self._prepare(trajectory)
        order = self._no_order(trajectory.valid)
        with self._on_device():
            compiled.trace(*self._arguments(trajectory, order, 0, self._settings(trajectory, False)))
        return (*(name for name in update.metric_names if name != "undone"), *self._set_epsilon())

    @property
    def steps(self) -> int:
        """The env steps so far, and the gradient steps that were taken offline: what `total_steps` counts."""
        return self.env_steps + self.offline_steps

    def _progress_remaining(self) -> float:
        return 1.0 if not self.total_steps else max(0.0, 1.0 - self.steps / self.total_steps)

    def extend(self, total_steps: int) -> None:
        """Let the run have so many steps, by which epsilon and schedules go from now on."""
        self.total_steps = total_steps
        self._set_epsilon()

    def _set_epsilon(self) -> dict[str, float]:
        """Set the probability of random actions, which is published with the weights. Returns the metric."""
        epsilon = self.algorithm.epsilon(self.env_steps, self._progress_remaining())
        if epsilon is None:
            return {}
        with self._on_device():
            contract.set_epsilon(self.network, epsilon)
        return {"epsilon": epsilon}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write network, optimizer, statistics, counters and random state into `directory`, for `load`.

        The directory is replaced as a whole, or stays as it was; see `system.files.write_folder_atomically`.

        Raises:
            OSError: the disk is full or can't be written.
            FileExistsError: the directory holds files that `save` didn't write.
            ValueError: the network isn't built yet.
        """
        write_folder_atomically(directory, self.write_files)

    def write_files(self, folder: Path) -> None:
        """Write the files of `save` into a folder that is being filled, for `write_folder_atomically`."""
        write_learner(self._saved(), folder)

    def write_checkpoint(self, folder: Path, earlier: Path | None, *, with_buffer: bool) -> Mapping[str, Entry]:
        """Write the files from which a run goes on into a folder that is being filled.

        earlier: the checkpoint before, whose files are linked where they hold the same. with_buffer: whether a replay
        buffer is among them. Returns the manifest's entries of links.
        """
        self.write_files(folder)
        return {}

    def _saved(self, **others: Any) -> SavedLearner:
        return SavedLearner(
            network=self.network,
            algorithm=self.algorithm,
            action_space=self.action_space,
            total_steps=self.total_steps,
            sequence_length=self.sequence_length,
            burn_in=self.burn_in,
            env_steps=self.env_steps,
            updates=self.updates,
            random_state=self._rng.bit_generator,
            arrays={name: backend.to_numpy(variable.value) for name, variable in self._saved_variables().items()},
            **{"observation_space": self.spaces.observation_space if self._owned.parts else None, **others},
        )

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        algorithm: Algorithm | OffPolicy | None = None,
        network: keras.Model | None = None,
        device: str = "auto",
        devices: int = 1,
        tf32: bool = False,
        critics: Callable[[Any, Any], keras.Model] | None = None,
        compute_reward: ComputeReward | None = None,
        diagnose: bool = False,
    ) -> Learner:
        """Return the learner that `save` wrote. Its next update equals the saved learner's next update.

        Args:
            directory: where it was saved.
            algorithm: needed if hyperparameters were callables or objects, or the class isn't part of this package.
                With another learning rate than the saved one, the optimizer gets it.
            network: needed if Keras couldn't save the network whole; it gets the weights.
            device: as for `Learner`.
            devices: as for `Learner`; with another number than the saved learner's, rows are taken in another order.
            tf32: as for `Learner`.
            critics: needed if Keras couldn't save them whole.
            compute_reward: needed with `hindsight`, as for `Learner`.
            diagnose: as for `Learner`.

        Raises:
            ValueError: the directory holds no learner, or a damaged one, or one of the above arguments is needed.
        """
        with backend.device(backend.resolve_device(device)):
            saved = read_learner(directory, algorithm=algorithm, network=network, critics=critics)
        loaded = iter(saved.critics)
        learner = cls(
            saved.network,
            saved.algorithm,
            action_space=saved.action_space,
            total_steps=saved.total_steps,
            sequence_length=saved.sequence_length,
            burn_in=saved.burn_in,
            device=device,
            devices=devices,
            tf32=tf32,
            observation_space=saved.observation_space,
            critics=(lambda observation_space, action_space: next(loaded)) if saved.critics else critics,
            compute_reward=compute_reward,
            diagnose=diagnose,
        )
        learner.env_steps, learner.updates = saved.env_steps, saved.updates
        learner._rng = np.random.Generator(saved.random_state)
        with backend.device(learner.device):
            learner._restore(saved, directory)
            if saved.learning_rate != learner.algorithm.learning_rate and not learner.algorithm.clones_optimizer:
                learner.optimizer.learning_rate = learner.algorithm.initial_learning_rate
        learner._set_epsilon()
        return learner

    def _restore(self, saved: SavedLearner, directory: str | os.PathLike[str]) -> None:
        """Take over the state of a saved learner beside its counters."""
        if (returns := saved.arrays.get("reward_scaling/0")) is not None:
            self._reward_scaling = RewardScaling(returns.size, self.algorithm.rewards.gamma)
        restore(self._saved_variables(), saved.arrays, directory)

    def _saved_variables(self) -> dict[str, keras.Variable]:
        """Return the variables of the optimizer, of reward scaling and of random layers by their names in a file."""
        scaling = self._reward_scaling.variables if self._reward_scaling else []
        groups = {"optimizer": self.optimizer.variables, "reward_scaling": scaling, **self._owned.saved}
        groups[SEEDS] = contract.seed_states(self.network)
        return {f"{name}/{index}": variable for name, group in groups.items() for index, variable in enumerate(group)}

    @property
    def compiled_with_xla(self) -> bool | None:
        """True if XLA compiles the update; None before the first batch."""
        return self._compiled.with_xla if self._compiled else None

    def _prepare(self, trajectory: Trajectory) -> tuple[Trajectory, Update, backend.Compiled]:
        """Return the batch in its dtypes, and the update, which is made for the first batch."""
        if not isinstance(trajectory, DeviceTrajectory):
            if self._greedy:
                check_masks_reach(trajectory, 1)
            trajectory = validate_trajectory(trajectory, self.spaces)
        if self._compiled is None:
            self._check_first_batch(trajectory)
            rows = self._no_order(trajectory.valid).shape[-1]
            flops = 6.0 * multiplications(self.network) * rows
            with backend.device(self.device):
                self._compile(trajectory, backend.use_xla(self.network, self.device, flops))
        self._check_batch(trajectory)
        self._check_trainable()
        assert self._update is not None
        assert self._compiled is not None
        return trajectory, self._update, self._compiled

    def _compile(self, trajectory: Trajectory, with_xla: bool) -> None:
        """Make the update for batches like this one, of a network that is built."""
        if self.algorithm.rewards.scale and self._reward_scaling is None:
            num_envs = num_environments(trajectory)
            self._reward_scaling = RewardScaling(num_envs, self.algorithm.rewards.gamma, self._return_statistics)
        if not with_xla:
            for optimizer in (self.optimizer, *self._owned.optimizers.values()):
                backend.fuse(optimizer)
        a_minibatch = self._no_order(trajectory.valid).shape[-1] * self._sequence_rows
        self._update = Update(
            self.network,
            self.algorithm,
            self.spaces,
            self.optimizer,
            self._trainable or (),
            self._reward_scaling,
            self._sequence_rows,
            self.burn_in,
            fitting=a_minibatch if "GPU" in self.device else 1,
            owned=self._owned,
            diagnose=self.diagnose,
        )
        update = self._update
        self._compiled = backend.Compiled(
            lambda fields, others: update({**fields[0], **fields[1], **others[0]}, others[1], *others[2]),
            update.state,
            with_xla=with_xla,
            tf32=self.tf32,
            complete=True,
        )

    def _take_prefetched(self, trajectory: Trajectory) -> Packed | None:
        """Return the copies of this very batch, if it was prefetched, and drop older ones."""
        prefetched, self._prefetched = self._prefetched, None
        self.begun += 1
        if prefetched is None:
            return None
        same = prefetched.trajectory.reward is trajectory.reward  # whose memory is written again and again
        same = same and np.array_equal(prefetched.log_prob, trajectory.behaviour_log_prob)
        return prefetched.fields if same else None

    def _arguments(
        self,
        trajectory: Trajectory,
        order: Array,
        num_minibatches: int,
        settings: _Settings,
        prefetched: Packed | None = None,
    ) -> tuple[Packed, Packed]:
        """Return the compiled update's arguments. prefetched: The batch's fields on the device, if they are there."""
        columns, scheduled = settings
        fields = prefetched or packed_fields(trajectory, greedy=self._greedy)
        return fields, packed((columns, 0), (order, 1), ((np.int32(num_minibatches), scheduled), None))

    def _settings(self, trajectory: Trajectory, on_policy: Any) -> _Settings:
        """Return what an update takes beside the batch's fields and its order: of columns, and of schedules."""
        columns = {}
        if self.tf32 or contract.computes_in(self.network, "bfloat16"):  # actors act in float32
            columns["on_policy"] = np.broadcast_to(np.asarray(on_policy, bool), trajectory.reward.shape[1:])
        rows, remaining = trajectory.valid.size, 1.0
        if self.total_steps:  # 1 - (k - 1) / N at update k of N; rows that only reset don't count as steps
            remaining = max(0.0, 1.0 - self.env_steps / rows / math.ceil(self.total_steps / rows))
        return columns, self._scheduled_at(remaining)

    def _scheduled_at(self, progress_remaining: float) -> dict[str, np.float32]:
        """Return the values of schedules; the learning rate only where a schedule writes it.

        A constant was written when the optimizer was made, so that callbacks may change it since.
        """
        algorithm: Hyperparameters = self.algorithm
        schedule = algorithm.scheduled_values(progress_remaining=progress_remaining, env_steps=self.steps)
        if not algorithm.changes_learning_rate:
            schedule.pop("learning_rate", None)
        return {name: np.float32(value) for name, value in schedule.items()}

    def _minibatch_order(self, valid: Array) -> tuple[Array, int]:
        """Return the source's order, and no minibatches while the normalization layers wait for a first batch."""
        self._has_statistics = self._has_statistics or all(
            float(backend.to_numpy(layer.count.value)) > 0 for layer in self._normalization
        )
        if not self._has_statistics:
            return self._no_order(valid), 0
        ahead, self._order_ahead = self._order_ahead, None
        order = ahead.take(valid, self._rng) if ahead else None
        if order is None:
            order = self._draw_order(valid, self._rng)
        if self._draws_ahead:
            self._order_ahead = OrderAhead(self._draw_order, valid.shape, self._rng)
        return order

    def _draw_order(self, valid: Array, generator: np.random.Generator) -> tuple[Array, int]:
        parts = [self._share.order(part, generator) for part in np.split(valid, self.devices, axis=1)]
        return np.stack([order for order, _ in parts], axis=1), max(count for _, count in parts)

    def _no_order(self, valid: Array) -> Array:
        """Return an order `[minibatches, devices, rows]` without a row."""
        minibatches, rows = self._share.shape(valid.size // self.devices)
        return np.full((minibatches, self.devices, rows), -1, np.int32)

    def _check_first_batch(self, trajectory: Trajectory) -> None:
        """Check the first batch against algorithm and network, which it builds."""
        steps, columns = trajectory.reward.shape
        self.algorithm.check_unroll_length(steps)
        self._source.check_batch(steps, columns)
        self._check_network(trajectory.observation)
        self._state_shapes = Memories(self.network).shapes
        if self._state_shapes:
            longest = self._share.longest_sequence(steps)
            self._sequence_rows = check_sequences(self.sequence_length, self.burn_in, steps, longest)
            self._source.of_sequences(self._sequence_rows)  # raises for minibatches that are too small for one
            self._share = self._share.of_sequences(self._sequence_rows)
        if columns % self.devices:
            received = f"devices={self.devices}, {columns} columns"
            raise ValueError(f"`devices` must share the columns of a batch evenly. Received: {received}")
        self._row_shapes = _row_shapes(trajectory.observation)

    def _check_network(self, observation: Any) -> None:
        """Call the network once, which builds it, and compare its outputs with the contract."""
        zeros = map_leaves(lambda leaf: np.zeros((contract.CHECKED_ROWS, *leaf.shape[2:]), leaf.dtype), observation)
        with backend.device(self.device):
            seeds = Snapshot(contract.seed_states(self.network))
            contract.check_contract(self.network, zeros, self.spaces, needs_value=self.algorithm.NEEDS_VALUE)
            seeds.put_back()
        self._place(self.network)
        if self._trainable is None:  # it wasn't built before
            self._begin()
        names = contract.training_dependent_layers(self.network, kinds_in_training(self.algorithm))
        self._warn_of_training_layers(names, ", so that learner and actors agree")
        if self.algorithm.COMPARES_DRAWS and (names := contract.drawing_layers(self.network, zeros)):
            warnings.warn(
                f"Layers {names} draw numbers at each call, and the learner draws others than the actors did: "
                f"{type(self.algorithm).__name__} compares the probabilities of two policies (see approx_kl). "
                "Leave such layers to algorithms that learn values: DQN, PQN.",
                stacklevel=5,
            )
        for layer in self._normalization:
            shape = contract.normalized_leaf(layer, zeros).shape[1:]
            if layer.mean.shape != shape:
                raise ValueError(
                    "ObservationNormalization must be the first layer: its statistics are those of observations, "
                    f"of shape {shape}. Received: a layer for shape {tuple(layer.mean.shape)}"
                )

    def _warn_of_training_layers(self, names: list[str], reason: str) -> None:
        if names:
            staying = (
                "spectral norms stay"
                if kinds_in_training(self.algorithm)
                else "batch statistics and spectral norms stay"
            )
            warnings.warn(
                f"Layers {names} are called with training=False while learning too{reason}: dropout does nothing, nor "
                f"do noise and augmentation; {staying} as they are.",
                stacklevel=6,
            )

    def _check_state(self, trajectory: Trajectory) -> None:
        """Compare a batch's states with the network's."""
        given = trajectory.initial_state
        found = None if given is None else [leaf.shape[1:] for leaf in given]
        if self._state_shapes and (found is None or trajectory.start is None):
            missing = "initial_state" if found is None else "start"
            raise ValueError(f"A network with memory needs `initial_state` and `start`. Received: {missing}=None")
        if found and not self._state_shapes:
            raise ValueError(f"A network without memory takes no `initial_state`. Received: shapes {found} of a column")
        if (found or []) != list(self._state_shapes):
            raise ValueError(
                f"`initial_state` must have the leaves of the network's state, of shapes {list(self._state_shapes)} "
                f"for each column. Received: {found}"
            )

    def _check_batch(self, trajectory: Trajectory) -> None:
        """Compare a batch with the first one."""
        if (shapes := _row_shapes(trajectory.observation)) != self._row_shapes:
            expected, received = (each.get("", each) for each in (self._row_shapes, shapes))
            raise ValueError(f"`observation` must have rows of shape {expected}. Received: {received}")
        self._check_state(trajectory)
        if (steps := len(trajectory.reward)) % self._sequence_rows:
            whole = f"Each batch must be of whole sequences of {self._sequence_rows} steps, as the first one was"
            raise ValueError(f"{whole}. Received: {steps} steps")
        if self._reward_scaling is None:
            return
        known = self._reward_scaling.discounted_return.shape[0]
        if (found := num_environments(trajectory)) > known:
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


def _are_same(one: Nest, other: Nest) -> bool:
    """Return whether nests hold the same tensors, and equal arrays and numbers."""
    leaves, others = tree.flatten(one), tree.flatten(other)
    pairs = zip(leaves, others, strict=False)
    return len(leaves) == len(others) and all(
        a is b or (not (ops.is_tensor(a) or ops.is_tensor(b)) and np.array_equal(a, b)) for a, b in pairs
    )


def valid_rows(valid: Array) -> int:
    """Return the number of a batch's valid rows. Raises ValueError if there is none."""
    if not (count := int(valid.sum())):
        raise ValueError(
            "`valid` must be True in at least one row: there is nothing to learn from this batch, skip it. "
            f"Received: no valid row of {valid.shape[0]} x {valid.shape[1]}"
        )
    return count


def _read_metrics(update: Update, values: Tensor, learned: bool) -> dict[str, float]:
    """Return the metrics that have a value, by name; "undone" is one of them only for an undone update."""
    result = dict(zip(update.metric_names, map(float, backend.to_numpy(values)), strict=True))
    absent = {name for name in update.batch_metric_names if math.isnan(result[name])}
    if not result["undone"]:
        absent.add("undone")
    if not learned:
        absent |= result.keys() - {*update.batch_metric_names, "learning_rate", "undone"}
    return {name: value for name, value in result.items() if name not in absent}


def _row_shapes(observation: Any) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape[2:] for name, leaf in contract.named_leaves(observation).items()}
