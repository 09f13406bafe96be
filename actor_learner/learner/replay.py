"""The learner of off-policy algorithms: keeps each batch in a replay buffer, and learns from rows drawn from it."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import tree

from actor_learner.algorithms import optimizers
from actor_learner.algorithms.off_policy.base import NETWORK, OffPolicy
from actor_learner.learner import backend, owned
from actor_learner.learner.base import Learner, valid_rows
from actor_learner.learner.batch import packed, sent
from actor_learner.learner.cost import multiplications, units
from actor_learner.learner.critics import check_critic, check_own_weights, make_critics
from actor_learner.learner.models import TrainedModels
from actor_learner.learner.packing import Packed
from actor_learner.learner.replay_update import ReplayUpdate
from actor_learner.learner.state import SEEDS, SavedLearner, restore
from actor_learner.learner.steps import Snapshot
from actor_learner.networks import contract
from actor_learner.networks.default import normalizes_vectors
from actor_learner.networks.memory import Memories
from actor_learner.replay.buffer import Minibatches, ReplayBuffer
from actor_learner.replay.hindsight import Hindsight
from actor_learner.replay.saving import has_buffer, write_buffer
from actor_learner.spaces.kinds import to_json
from actor_learner.spaces.trajectory import Trajectory, map_leaves
from actor_learner.spaces.validate import check_masks_reach, check_trajectory_type, validate_trajectory
from actor_learner.system.fields import check_count, refusal
from actor_learner.system.files import DamagedError, Entry, one_line, write_folder_atomically
from actor_learner.system.machine import require_memory
from actor_learner.system.types import Array

_MAX_STEPS = 64
"""Gradient steps in one call: beyond, a call costs no less a step, and priorities grow old."""

_MAX_BATCHES = 4
"""The gradient steps of so many batches are taken in one update at most, where rows couldn't be drawn before."""

_MORE_OPERATIONS = 8
"""A gradient step here dispatches more operations than one of an actor-critic, whose limit for XLA is known: measured
for SAC, XLA takes 0.91 of TensorFlow's time with layers of 256 units, as much with 400, 1.08 with 512."""

_BYTES_OF_A_UNIT = 8
"""At least, while a minibatch is learned: of its value and of its gradient."""

_MAX_BYTES = 2**25
"""The most bytes of rows in one call."""

_STATISTICS_ROWS, _MAX_STATISTICS_ROWS = 4096, 65536
"""So many rows at a time, and altogether at most, tell the statistics of a buffer's observations."""


class ReplayLearner(Learner):
    """The learner of an off-policy algorithm, which `al.Learner` returns.

    `update` adds a batch to the buffer, then takes the gradient steps that are due for its env steps
    (`updates_per_step`). One compiled call takes up to 64 of them.
    """

    algorithm: OffPolicy

    def _prepare_source(self, critics: Any, buffer: Any) -> None:
        algorithm, network = self.algorithm, self.network
        kind = type(algorithm).__name__
        if self.spaces.observation_space is None:
            raise ValueError(f"`observation_space` must be given for {kind}. Received: observation_space=None")
        algorithm.check_devices(self.devices)
        if Memories(network):
            raise ValueError(
                f"{kind} can't learn a network with memory, because rows are drawn one by one: PQN and PPO can. "
                f"Received: {network.name!r}"
            )
        if critics is not None and not algorithm.num_critics:
            raise ValueError(
                f"`critics` is for algorithms that have critics. Received: critics={critics!r} with {kind}"
            )
        if self.compute_reward is not None and algorithm.hindsight is None:
            raise refusal("compute_reward", f"None for {kind} without `hindsight`", self.compute_reward)
        with self._on_device():
            normalizes = normalizes_vectors(network, self.spaces.observation_space)
            options = {"normalize_observation": normalizes, **algorithm.critic_options}
            self.critics = make_critics(critics, self.spaces, algorithm.num_critics, options, self._seed)
            if network.built:
                self._check_further_outputs()
        for critic in self.critics:
            self._place(critic)
        self.buffer: ReplayBuffer | None = None
        if buffer is not None:
            self.use_buffer(buffer)
        self._models: TrainedModels | None = None
        self._replay_update: ReplayUpdate | None = None
        self._optimizers: dict[str, keras.Optimizer] = {}
        self._statistics: backend.Compiled | None = None
        self._slots = 0  # gradient steps of a call, which draws their rows at once: those of the first batch
        self._targets_at = 0  # the env steps up to which targets have moved
        self._refills = False
        self.gradient_steps = 0
        self._due_from = algorithm.learning_starts, 0

    def use_buffer(self, buffer: Any) -> None:
        """Take a buffer, which may hold rows already.

        Its rows get the algorithm's hindsight, and actions with bounds are converted to before tanh, or back, where
        the network's differ from those that it keeps.

        Raises ValueError if its settings differ from the algorithm's.
        """
        if not isinstance(buffer, ReplayBuffer):
            raise refusal("buffer", "an al.ReplayBuffer", buffer)
        spaces = self.spaces
        for name in ("observation_space", "action_space"):
            kept, wanted = getattr(buffer.spaces, name), getattr(spaces, name)
            if to_json(kept) != to_json(wanted):
                raise ValueError(f"`buffer` must be of the learner's {name}, {wanted}. Received: one of {kept}")
        names = ("n_step", "gamma", "clip_reward", "priority_exponent")
        if wrong := [name for name in names if getattr(buffer, name) != getattr(self.algorithm, name)]:
            wanted, kept = (
                ", ".join(f"{name}={getattr(owner, name)!r}" for name in wrong) for owner in (self.algorithm, buffer)
            )
            raise ValueError(
                f"`buffer` keeps returns and priorities of its own, which must be the algorithm's: make it with "
                f"{wanted}. Received: a buffer with {kept}"
            )
        hindsight = self.hindsight
        if hindsight is not None and hindsight.compute_reward is None and buffer.hindsight is not None:
            hindsight = replace(hindsight, compute_reward=buffer.hindsight.compute_reward)
        buffer.use_hindsight(hindsight)
        if buffer.squashed is None and len(buffer) and any(leaf.is_bounded_box for leaf in spaces.action.leaves):
            taken = "those before tanh (SAC's)" if self._squashes else "those that the environment got"
            warnings.warn(
                "It isn't known whether the buffer's actions are those before tanh or those that the environment got. "
                f"They are taken for {taken}; `add(..., squashed=)` says which they are. "
                "Received: a buffer with squashed=None",
                stacklevel=3,
            )
        buffer.keep_squashed(self._squashes)
        self.buffer = buffer

    @property
    def _squashes(self) -> bool:
        return contract.distribution_and_hold(self.network)[0] == "squashed"

    @property
    def hindsight(self) -> Hindsight | None:
        """How a new buffer gives rows other goals; None: they keep theirs."""
        algorithm = self.algorithm
        if algorithm.hindsight is None:
            return None
        return Hindsight(algorithm.hindsight, algorithm.hindsight_goals, self.compute_reward)

    def make_buffer(self, unroll_length: int, *, action_masks: bool) -> ReplayBuffer:
        """Return the buffer, a new one for unrolls of this length if there is none.

        Raises MemoryError if it is larger than the memory that is available, ValueError for unrolls that are too short.
        """
        algorithm = self.algorithm
        algorithm.check_unroll_length(unroll_length)
        if self.buffer is not None and action_masks and not self.buffer.spaces.masked:
            raise ValueError(
                "`buffer` must keep the masks that there are: make it with action_masks=True. "
                "Received: a buffer with action_masks=False"
            )
        if self._refills:
            self._refill()
        if self.buffer is None:
            buffer = ReplayBuffer(
                self.spaces.observation_space,
                self.action_space,
                max(algorithm.buffer_size, unroll_length),
                unroll_length=unroll_length,
                n_step=algorithm.n_step,
                gamma=algorithm.gamma,
                clip_reward=algorithm.clip_reward,
                priority_exponent=algorithm.priority_exponent,
                action_masks=action_masks,
                hindsight=self.hindsight,
                seed=self._seed,
            )
            self.use_buffer(buffer)
        assert self.buffer is not None
        return self.buffer

    def update(self, trajectory: Trajectory, *, on_policy: Any = False) -> dict[str, float]:
        """Add a batch to the buffer, then take the gradient steps that are due. Returns metrics.

        Metrics are means over these steps; before `learning_starts` there are no losses. `gradient_steps` counts all
        steps so far, and `gradient_steps_owed` the due steps that aren't taken yet.

        If a metric, a weight, a variable of an optimizer, a target, a statistic of observations, or an output of the
        new network is NaN or infinite, all of the update's steps are undone, and are due again with the next batch. The
        batch's env steps count. Its rows stay in the buffer, unless its observations, or the error of one of its rows,
        aren't finite. Older columns with such an error leave the buffer, too. The metrics then have "undone": 1.0, and
        `not_finite` names the parts.

        on_policy: has no effect.

        Raises:
            ValueError: a batch that doesn't fit the spaces, one without a valid row, or layers whose `trainable` was
                changed.
            MemoryError: the device has too little memory for the update.
        """
        check_trajectory_type(trajectory)
        self.begun += 1
        update, compiled, buffer = self._prepare_replay(trajectory)
        valid = np.asarray(trajectory.valid, bool)
        env_steps = valid_rows(valid)
        if trajectory.action_mask is not None and not buffer.spaces.masked:
            raise ValueError("`action_mask` is new: the replay buffer keeps none. Received: a batch with masks")
        if self.hindsight is not None and not self.env_steps:
            _warn_of_long_episodes(trajectory)
        columns = buffer.add(trajectory)
        after = self.env_steps + env_steps
        due = min(self._owed(after), _MAX_BATCHES * max(1, self.algorithm.due(valid.size)))
        with self._explaining_memory_errors(valid.shape), self._on_device():
            statistics = self._merge_statistics(trajectory)
            finite = all(np.isfinite(backend.to_numpy(variable.value)).all() for variable in statistics.variables)
            self.not_finite = () if finite else ("statistics",)
            result = self._learn(update, compiled, buffer, due, after, columns) if finite else {"undone": 1.0}
            self.env_steps = after
            if "undone" in result:
                if not finite:
                    buffer.discard(columns)
                statistics.put_back()
                return result
        self.updates += 1
        return {**result, **self._set_epsilon(), **self._counters(buffer)}

    def learn(self, steps: int) -> dict[str, float]:
        """Take gradient steps on rows of the buffer, without a new batch. Returns metrics, as `update` does.

        These steps don't count as due for env steps; `offline_steps` counts them. Targets that move by env steps move
        as if `updates_per_step` of the gradient steps belonged to each env step. The first call sets the statistics of
        observations by rows of the buffer, if there are none yet. An undone call counts nothing.

        One compiled call takes up to 64 steps, and no more than the learner's first one; targets and schedules move
        between these calls.

        Raises ValueError without a buffer that has rows; MemoryError if the device has too little memory.
        """
        steps = check_count("steps", steps)
        if self.buffer is None or not len(self.buffer):
            raise ValueError(
                "`learn` takes rows of the replay buffer: give one (`buffer`), or update from a batch first. "
                f"Received: {'no buffer' if self.buffer is None else 'an empty buffer'}"
            )
        self.begun += 1
        update, compiled, buffer = self._prepare_replay(steps)
        with self._explaining_memory_errors((buffer.unroll_length, 1)), self._on_device():
            self._begin_statistics(buffer)
            self.not_finite = ()
            result = self._learn(update, compiled, buffer, steps, self.env_steps, np.zeros(0, np.int64), offline=True)
        if "undone" in result:
            return result
        starts, taken = self._due_from
        self._due_from = starts, taken + steps
        self.updates += 1
        return {**result, **self._set_epsilon(), **self._counters(buffer)}

    def _owed(self, env_steps: int) -> int:
        """Return the gradient steps that are due after so many env steps, and not taken yet."""
        starts, taken = self._due_from
        return max(0, self.algorithm.due(env_steps - starts) - (self.gradient_steps - taken))

    def _counters(self, buffer: ReplayBuffer) -> dict[str, float]:
        owed = float(self._owed(self.env_steps))
        steps, rows = float(self.gradient_steps), float(len(buffer))
        offline = {"offline_steps": float(self.offline_steps)} if self.offline_steps else {}
        return {"gradient_steps": steps, "gradient_steps_owed": owed, "buffer_rows": rows, **offline}

    def _learn(
        self,
        update: ReplayUpdate,
        compiled: backend.Compiled,
        buffer: ReplayBuffer,
        due: int,
        env_steps: int,
        columns: Array,
        *,
        offline: bool = False,
    ) -> dict[str, float]:
        """Take gradient steps, in as many calls as they need. Returns means of the metrics; none without a step.

        env_steps: after the newest batch. columns: of the buffer, the newest batch's. offline: count `offline_steps`.
        """
        counts = self._counts(buffer, due)
        first, before_offline, targets_at = self.gradient_steps, self.offline_steps, self._targets_at
        before = Snapshot(update.state if len(counts) > 1 else ())  # a call undoes itself, not those before it
        sums: dict[str, float] = defaultdict(float)
        for indices, fields, next_are_there in self._draw(buffer, counts):
            count = len(indices)
            # Steps offline count as the env steps to which they would belong.
            target_steps = env_steps + round(self.offline_steps / self.algorithm.updates_per_step)
            move = self.algorithm.move_before_update(min(self._targets_at, target_steps), target_steps)
            numbers = np.int32(count), np.float32(move), self._scheduled_at(self._progress_remaining())
            others = packed((self._noise(*indices.shape), None), (numbers, None))
            values, finite, errors = compiled(fields, others)
            result = dict(zip(update.metric_names, map(float, backend.to_numpy(values)), strict=True))
            next_are_there()
            if result["undone"]:
                self.not_finite = tuple(itertools.compress(update.checked_names, ~backend.to_numpy(finite)))
                buffer.discard(_broken_columns(buffer, indices, backend.to_numpy(errors)[:count], columns))
                before.put_back()
                self.gradient_steps, self.offline_steps, self._targets_at = first, before_offline, targets_at
                return result
            del result["undone"]
            if self.algorithm.priority_exponent is not None:
                buffer.update_priorities(indices, backend.to_numpy(errors)[:count])
            self._targets_at = max(self._targets_at, target_steps)
            self.gradient_steps += count
            self.offline_steps += count if offline else 0
            for name, value in result.items():
                sums[name] += value * count
        every = {name: update.every.get(name, 1) for name in sums}
        steps = {name: self.gradient_steps // count - first // count for name, count in every.items()}
        return {name: value / steps[name] for name, value in sums.items() if steps[name]}

    def _counts(self, buffer: ReplayBuffer, due: int) -> list[int]:
        """Return the gradient steps of each call, at most what a call takes at once."""
        most = self._slots
        if self.algorithm.priority_exponent is not None:  # else many rows are drawn by priorities that are long past
            most = max(1, min(most, len(buffer) // (8 * self.algorithm.minibatch_size)))
        return [min(most, due - first) for first in range(0, due, most)] if len(buffer) else []

    def _draw(self, buffer: ReplayBuffer, counts: list[int]) -> Iterator[tuple[Array, Packed, Callable[[], object]]]:
        """Yield the indices `[K, M]` of each call's minibatches, their fields on the device, and a function.

        The next ones are drawn and sent in a thread while these are learned; the function waits until they are there.
        Call it before priorities are renewed: then two runs draw the same rows.
        """
        if len(counts) <= 1:
            yield from ((*self._send(buffer, count, self._importance), lambda: None) for count in counts)
            return
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(self._send, buffer, counts[0], self._importance)
            for following in (*counts[1:], None):
                found = coming.result()
                if following is not None:
                    coming = thread.submit(self._send, buffer, following, self._importance)
                yield *found, coming.result

    @property
    def _importance(self) -> float:
        return self.algorithm.importance_exponent(self._progress_remaining())

    def _send(self, buffer: ReplayBuffer, count: int, importance: float) -> tuple[Array, Packed]:
        """Draw minibatches. Returns their indices, and their fields on the device. Any thread may call it."""
        rows = self._sample(buffer, count, importance)
        with self._on_device():
            return rows.indices, sent(packed((self._fields(rows), None)))

    def _sample(self, buffer: ReplayBuffer, count: int, importance: float) -> Minibatches:
        return buffer.sample(self.algorithm.minibatch_size, count, importance_exponent=importance)

    def _fields(self, rows: Minibatches) -> dict[str, Any]:
        """Return the fields of minibatches `[K, M, ...]`, with zeros for minibatches that are missing."""
        fields = {name: value for name, value in rows._asdict().items() if value is not None and name != "indices"}
        found: dict[str, Any] = tree.map_structure(self._filled, fields)
        return found

    def _noise(self, count: int, size: int) -> dict[str, Array]:
        """Return the noise of so many minibatches, where the algorithm takes some."""
        columns = self.algorithm.noise_columns * sum(math.prod(leaf.shape) for leaf in self.spaces.action.leaves)
        if not columns:
            return {}
        return {"noise": self._filled(self._rng.standard_normal((count, size, columns), np.float32))}

    def _filled(self, leaf: Array) -> Array:
        """Return `[K, ...]` with zeros for minibatches that are missing from a whole call."""
        missing = self._slots - len(leaf)
        return np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

    def _begin_statistics(self, buffer: ReplayBuffer) -> None:
        """Set the statistics of observations by rows of the buffer, where there are none yet."""
        self._build_models()
        if all(float(backend.to_numpy(layer.count.value)) > 0 for _, layer in self._normalized):
            return
        for count, observation in buffer.observations(_STATISTICS_ROWS, _MAX_STATISTICS_ROWS):
            self._merge(observation, np.arange(_STATISTICS_ROWS) < count)

    def _merge_statistics(self, trajectory: Trajectory) -> Snapshot:
        """Merge the batch into the statistics of observations. Returns these variables as they were before."""
        self._build_models()
        if not self._normalized:
            return Snapshot(())
        valid = np.asarray(trajectory.valid, bool).reshape(-1)

        def rows(leaf: Any) -> Array:
            steps = np.asarray(leaf)[:-1]
            flat = steps.reshape(len(valid), *steps.shape[2:]).copy()
            flat[~valid] = 0  # they may hold NaN
            return flat

        return self._merge(map_leaves(rows, trajectory.observation), valid)

    @property
    def _normalized(self) -> list[tuple[keras.Model, Any]]:
        """The layers that normalize observations, with their models; one that models share is there once."""
        layers = [(model, layer) for model in self._all_models for layer in contract.normalization_layers(model)]
        return list({id(layer): (model, layer) for model, layer in layers}.values())

    def _merge(self, rows: Any, valid: Array) -> Snapshot:
        """Merge rows of observations into the statistics. Returns these variables as they were before."""
        models, pairs = self._build_models(), self._normalized
        touched = itertools.chain(*(layer.variables for _, layer in pairs), *models.statistics)
        variables = list({id(variable): variable for variable in touched}.values())
        before = Snapshot(variables)
        if self._statistics is None:

            def merge(rows: Any) -> Any:
                observation, valid = rows
                for _, layer in pairs:
                    layer.update(contract.normalized_leaf(layer, observation), valid)
                models.copy_statistics()
                return valid[:1]

            self._statistics = backend.Compiled(merge, variables, with_xla=False)
        self._statistics(packed((rows, None), (valid, None)))
        return before

    @property
    def _all_models(self) -> list[keras.Model]:
        return [self.network, *self.critics]

    def prefetch(self, trajectory: Trajectory) -> None:
        """Do nothing, because rows are drawn only after the batch is in the buffer."""

    def trace(self, trajectory: Trajectory) -> tuple[str, ...]:
        update, compiled, buffer = self._prepare_replay(trajectory)
        numbers = np.int32(0), np.float32(0.0), self._scheduled_at(self._progress_remaining())
        with self._on_device():
            noise = self._noise(self._slots, self.algorithm.minibatch_size)
            blank = self._fields(buffer.blank(self.algorithm.minibatch_size))
            compiled.trace(packed((blank, None)), packed((noise, None), (numbers, None)))
        names = [name for name in update.metric_names if name != "undone"]
        return (*names, *self._set_epsilon(), *self._counters(buffer))

    def _prepare_replay(self, first: Trajectory | int) -> tuple[ReplayUpdate, backend.Compiled, ReplayBuffer]:
        """Return the update, which is made for the first call, and the buffer.

        first: A batch, or without one the number of gradient steps.
        """
        if self._replay_update is None or self._compiled is None:
            if isinstance(first, int):
                assert self.buffer is not None
                buffer, due = self.buffer, first
                observation = map_leaves(lambda leaf: leaf[None], self.spaces.observation.zeros(1))
            else:
                steps, columns = np.shape(first.reward)
                check_masks_reach(first, self.algorithm.n_step)
                masked = first.action_mask is not None or self.spaces.has_mask_leaf
                buffer, due = self.make_buffer(steps, action_masks=masked), self.algorithm.due(steps * columns)
                validate_trajectory(first, buffer.spaces)
                observation = first.observation
            self._check_network(observation)
            size = self.algorithm.minibatch_size
            a_minibatch = size * buffer.row_bytes
            needed = a_minibatch + size * _BYTES_OF_A_UNIT * sum(map(units, self._all_models))
            require_memory("A minibatch doesn't fit", needed, f"minibatch_size={size}")
            self._slots = max(1, min(_MAX_STEPS, _MAX_BYTES // a_minibatch, self._slots or due))
            self._compile_replay()
        self._check_trainable()
        assert self._replay_update is not None
        assert self._compiled is not None
        assert self.buffer is not None
        return self._replay_update, self._compiled, self.buffer

    def _build_models(self) -> TrainedModels:
        """Make the copies, the variables and the optimizers of models, which are built first."""
        if self._models is not None:
            return self._models
        network, zeros = self.network, self.spaces.observation.zeros(contract.CHECKED_ROWS)
        with self._on_device():
            if not network.built:
                contract.check_contract(network, zeros, self.spaces)
            if self._trainable is None:
                self._begin()
            self._check_further_outputs()
            models = TrainedModels(network, self.critics, self.algorithm, self.spaces)
            for critic in self.critics:
                check_critic(models, critic, zeros)
                self._begin_normalization(critic)
                if self._normalization and not (models.batches or contract.normalization_layers(critic)):
                    warnings.warn(
                        "The network normalizes observations, and critics don't: begin them with "
                        f"al.ObservationNormalization. Received: critic {critic.name!r}",
                        stacklevel=3,
                    )
                names = contract.training_dependent_layers(critic, contract.NOISE + models.batches)
                self._warn_of_training_layers(names, f", in critic {critic.name!r}")
                if models.batches and not any(layer.trainable for layer in contract.layers_of(critic, models.batches)):
                    kind = f"{type(self.algorithm).__name__} needs critics with layers that normalize by batches, such "
                    expected = f"{kind}as al.BatchRenormalization, and learn; those of SAC and others have none"
                    raise ValueError(f"{expected}. Received: {critic.name!r}")
            check_own_weights(network, self.critics)
            self._optimizers = {NETWORK: self.optimizer}
            for group in self.algorithm.groups():
                if group.name != NETWORK:
                    self._optimizers[group.name] = optimizers.build(
                        self.algorithm.make_optimizer(), models.trained(group.name), own=models.is_number(group.name)
                    )
            if idle := [name for name in models.own if name not in self._optimizers and models.trained(name)]:
                expected = "A trainable part of `models` needs a LossGroup of its name, or trainable=False"
                raise ValueError(f"{expected}. Received: {idle[0]!r} of {type(self.algorithm).__name__}")
            owned.check_apart({name: models.trained(name) for name in self._optimizers})
            models.make_targets()
        self._models = models
        return models

    def _begin_normalization(self, critic: keras.Model) -> None:
        """Give a critic's layers that normalize observations the network's statistics, if they have none yet."""
        known = {layer.leaf: layer for layer in self._normalization}
        for layer in contract.normalization_layers(critic):
            if layer.leaf in known and not float(backend.to_numpy(layer.count.value)):
                for variable, other in zip(layer.variables, known[layer.leaf].variables, strict=True):
                    variable.assign(other.value)

    def _check_further_outputs(self) -> None:
        """Raise ValueError for a network without an output that losses need, or with one of another shape."""
        if wanted := self.algorithm.further_outputs(self.spaces.action):
            contract.check_further_outputs(self.network, self.spaces, wanted, type(self.algorithm).__name__)

    def _compile_replay(self) -> None:
        models = self._build_models()
        flops = 6.0 * sum(map(multiplications, self._all_models)) * self.algorithm.minibatch_size / _MORE_OPERATIONS
        with_xla = all(backend.use_xla(model, self.device, flops) for model in self._all_models)
        if not with_xla:
            for optimizer in self._optimizers.values():
                backend.fuse(optimizer)
        with self._on_device():
            self._replay_update = update = ReplayUpdate(
                models, self.algorithm, self._optimizers, self.gradient_steps, diagnose=self.diagnose
            )
        self._compiled = backend.Compiled(
            lambda rows, others: update({**rows[0], **others[0]}, *others[1]),
            update.state,
            with_xla=with_xla,
            tf32=self.tf32,
            complete=True,
        )

    def _saved_variables(self) -> dict[str, keras.Variable]:
        """Return the variables beside the models by their names in a file."""
        models = self._build_models()
        groups = {f"{name}_optimizer": optimizer.variables for name, optimizer in self._optimizers.items()}
        groups |= {"targets": models.targets, "variables": list(models.variables.values()), **self._owned.saved}
        groups[SEEDS] = [state for model in self._all_models for state in contract.seed_states(model)]
        return {f"{name}/{index}": variable for name, group in groups.items() for index, variable in enumerate(group)}

    def start_from(self, variables: Mapping[str, Array]) -> None:
        """Take the variables that another algorithm trained beside models (`read_variables`), if this one trains them.

        An algorithm that was given first values keeps them.
        """
        own = {f"variables/{index}": one for index, one in enumerate(self._build_models().variables.values())}
        if self.algorithm.inherits_variables and own.keys() == variables.keys():
            with self._on_device():
                restore(own, dict(variables), "init_from")

    def _saved(self, **others: Any) -> SavedLearner:
        counters = {
            "gradient_steps": self.gradient_steps,
            "updates_per_step": self.algorithm.updates_per_step,
            "buffer_size": self.algorithm.buffer_size,
            "due_from": list(self._due_from),
            "targets_at": self._targets_at,
            "offline_steps": self.offline_steps,
            "slots": self._slots,
            "minibatch_size": self.algorithm.minibatch_size,
            "seed": self._seed,
        }
        return super()._saved(
            observation_space=self.spaces.observation_space, critics=self.critics, replay=counters, **others
        )

    def write_checkpoint(self, folder: Path, earlier: Path | None, *, with_buffer: bool) -> Mapping[str, Entry]:
        self.write_files(folder)
        return write_buffer(self.buffer, folder, earlier) if with_buffer and self.buffer is not None else {}

    def _restore(self, saved: SavedLearner, directory: str | os.PathLike[str]) -> None:
        self.critics = list(saved.critics)
        variables, arrays = self._saved_variables(), saved.arrays
        if isinstance(saved.trained_by, OffPolicy) and self._begins_otherwise(saved.trained_by):
            own = ("variables/", *(f"{name}_optimizer/" for name in self.algorithm.make_variables(1)))
            own += tuple(f"{name}_optimizer/" for name in saved.trained_by.make_variables(1))
            variables = {name: one for name, one in variables.items() if not name.startswith(own)}
            arrays = {name: one for name, one in arrays.items() if not name.startswith(own)}
        for prefix in [f"{name}_optimizer/" for name in self._optimizers if self._build_models().is_number(name)]:
            if len({frozenset(name for name in each if name.startswith(prefix)) for each in (variables, arrays)}) == 2:
                warnings.warn(f"{prefix[:-1]} begins anew: an earlier version saved that of another kind", stacklevel=4)
                variables = {name: one for name, one in variables.items() if not name.startswith(prefix)}
                arrays = {name: one for name, one in arrays.items() if not name.startswith(prefix)}
        restore(variables, arrays, directory)
        self.gradient_steps = int(saved.replay["gradient_steps"])
        self.offline_steps = int(saved.replay.get("offline_steps", 0))
        self._targets_at, self._seed = int(saved.replay["targets_at"]), int(saved.replay["seed"])
        starts, taken = saved.replay["due_from"]
        self._due_from = int(starts), int(taken)
        names = ("minibatch_size", "updates_per_step")
        if all(saved.replay.get(name) == getattr(self.algorithm, name) for name in names):
            self._slots = int(saved.replay["slots"])
        if saved.replay["updates_per_step"] != self.algorithm.updates_per_step:  # what was owed at another rate isn't
            self._due_from = max(self.env_steps, self._due_from[0]), self.gradient_steps
        size = self.algorithm.buffer_size
        self._load_buffer(directory, None if saved.replay["buffer_size"] == size else size)

    def _begins_otherwise(self, before: Any) -> bool:
        """Return whether the algorithm gives its own variables other first values than the one before it did."""
        size = self._build_models().action_size
        with self._on_device():
            first, others = (one.make_variables(size) for one in (self.algorithm, before))
        return first.keys() != others.keys() or any(
            not np.array_equal(backend.to_numpy(first[name].value), backend.to_numpy(others[name].value))
            for name in first
        )

    def _load_buffer(self, directory: str | os.PathLike[str], capacity: int | None) -> None:
        """Load the saved buffer; if there is none, or it is damaged, collect anew before learning.

        capacity: of a buffer whose size was changed since; None: as it was, or as `MemoryLimit` left it.
        """
        if has_buffer(directory):
            try:
                buffer = ReplayBuffer.load(directory, capacity=capacity, compute_reward=self.compute_reward)
            except DamagedError as error:
                warnings.warn(f"The replay buffer is filled anew: {one_line(error)}", stacklevel=4)
            else:
                if buffer.squashed is None:  # this learner's, by an earlier version
                    buffer.squashed = self._squashes
                self.use_buffer(buffer)
                return
        self._refills = self.env_steps > 0

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write what `Learner.save` does, and the replay buffer."""
        write_folder_atomically(directory, lambda folder: self.write_checkpoint(folder, None, with_buffer=True))

    def _refill(self) -> None:
        """Collect with the loaded policy before the next gradient step: a tenth of what an unbroken run would hold.

        From a few new rows alone it would forget what it has learned. It takes half of the run's remaining steps at
        most.
        """
        algorithm = self.algorithm
        rows = max(algorithm.learning_starts, min(self.env_steps, algorithm.buffer_size) // 10)
        if self.total_steps is not None:
            rows = min(rows, max(0, self.total_steps - self.steps) // 2)
        self._due_from = self.env_steps + rows, self.gradient_steps
        self._refills = False


def _warn_of_long_episodes(trajectory: Trajectory) -> None:
    """Warn if few columns of a batch hold the end of an episode, with which goals for hindsight end."""
    ends = np.any(np.asarray(trajectory.terminated, bool) | np.asarray(trajectory.truncated, bool), axis=0)
    if ends.mean() < 0.5:
        warnings.warn(
            "`unroll_length` should be as long as an episode, because goals are those of the same unroll. Received: "
            f"unroll_length={len(trajectory.reward)}, and an episode's end in {ends.sum()} of {len(ends)} columns",
            stacklevel=3,
        )


def _broken_columns(buffer: ReplayBuffer, indices: Array, errors: Array, newest: Array) -> Array:
    """Return the columns of the rows whose errors were the first without a finite square, and what came with them.

    All of the newest batch's, if some of it is among them. None if a whole minibatch of newer and older rows is broken:
    then it isn't the rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        broken = ~np.isfinite(np.square(errors, dtype=np.float32))
    first = int(np.argmax(broken.any(axis=1)))
    columns = buffer.columns_of(indices[first][broken[first]])
    new = np.isin(columns, newest)
    if broken[first].all() and not new.all():
        return columns[:0]
    return np.union1d(columns, newest) if new.any() else columns
