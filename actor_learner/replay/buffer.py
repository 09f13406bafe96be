"""The replay buffer: a ring of columns in the trajectory's layout, allocated once."""

from __future__ import annotations

import functools
import math
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from actor_learner.replay import minari_datasets
from actor_learner.replay.columns import ColumnStore, pieces
from actor_learner.replay.episodes import after_tanh, before_tanh, episode
from actor_learner.replay.hindsight import ACHIEVED, DESIRED, ComputeReward, Hindsight, with_last_observations
from actor_learner.replay.rows import Frames
from actor_learner.replay.sampler import Sampler
from actor_learner.replay.saving import has_buffer, read_buffer, write_buffer
from actor_learner.replay.targets import n_step_targets, successors
from actor_learner.spaces.leaves import check_values
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory, columns_of, map_fields, map_leaves
from actor_learner.spaces.validate import validate_trajectory
from actor_learner.system.fields import check_clip_reward, check_count, check_flag, check_number, refusal
from actor_learner.system.files import write_folder_atomically
from actor_learner.system.machine import require_memory, size_text
from actor_learner.system.types import Array

_MIN_CHECKED_BYTES = 2**28  # for fewer, memory isn't looked at
_MAX_OTHER_REWARDS = 0.01  # of the rows; goals in float32 may be on the other side of a threshold


class Minibatches(NamedTuple):
    """The drawn rows, `[K, M, ...]` each: K minibatches of M rows; `[M, ...]` for a single minibatch.

    Attributes:
        observation: Nested like the space. With `hindsight`, many rows have another goal, here and below.
        action: Nested like the space: as in a `Trajectory`, before clipping or squashing; discrete ones count from 0.
        reward: float32: the discounted sum of up to `n_step` rewards.
        discount: float32: the factor of the value of `next_observation`: `gamma ** n`, and 0 after a terminal state.
        next_observation: The observation after these rewards, in the same episode, also if the episode was truncated
            there.
        indices: int64: the places of the rows, for `update_priorities`. Valid until their columns are overwritten.
        weight: float32: importance weights, at most 1; 1 without priorities (arXiv:1511.05952, section 3.4).
        action_mask: bool `[K, M, choices]`: the allowed choices; None without masks.
        next_action_mask: bool `[K, M, choices]`: the allowed choices at `next_observation`.
    """

    observation: Any
    action: Any
    reward: Array
    discount: Array
    next_observation: Any
    indices: Array
    weight: Array
    action_mask: Array | None = None
    next_action_mask: Array | None = None


class ReplayBuffer:
    """The newest `capacity` env steps, as whole columns of trajectories from any source, and draws from them.

    Memory is bounded: all of it is claimed here, and the system hands it out as the buffer fills. Each frame of stacked
    images is stored once. Returns over `n_step` steps never cross the end of an episode or a column; where an episode
    was truncated, they are bootstrapped from its true last observation.

    Some rows are never drawn: rows that only reset an environment, and rows whose next observation or next mask isn't
    known. The latter are the last row before a truncation, if a later episode of the same column was truncated, too,
    and the environments don't reset in a step of their own.

    Args:
        observation_space: the Gymnasium space of observations.
        action_space: the Gymnasium space of actions.
        capacity: env steps, rounded down to whole columns.
        unroll_length: rows of a column. Longer trajectories are cut, shorter ones leave rows unused.
        n_step: largest number of rewards in a row's return.
        gamma: the discount of one step.
        clip_reward: "sign", or a bound to which each reward is clipped; None: not clipped.
        priority_exponent: the exponent of the errors in `update_priorities`; with 1, draws are proportional to them
            (alpha in arXiv:1511.05952); None: draws are uniform.
        action_masks: True if trajectories have masks (in `action_mask`, or in a Dict observation).
        stacked_frames: whether uint8 images whose first or last axis has 2 to 16 entries are stacks of frames; None:
            images that look like stacks are taken for stacks, until rows show that they aren't.
        hindsight: how drawn rows get other goals; None: they keep theirs. It needs `n_step=1` and uniform draws.
        seed: seed of the draws.

    Raises:
        ValueError: a space isn't supported, or an argument is out of range.
        MemoryError: the buffer is larger than the available memory.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        capacity: int = 1_000_000,
        *,
        unroll_length: int = 32,
        n_step: int = 1,
        gamma: float = 0.99,
        clip_reward: str | float | None = None,
        priority_exponent: float | None = None,
        action_masks: bool = False,
        stacked_frames: bool | None = None,
        hindsight: Hindsight | None = None,
        seed: int = 0,
    ) -> None:
        self.spaces = Spaces(observation_space, action_space, check_flag("action_masks", action_masks))
        self.unroll_length = check_count("unroll_length", unroll_length, most=np.iinfo(np.uint16).max // 2)
        self.n_step = check_count("n_step", n_step)
        if n_step > unroll_length:
            raise refusal("n_step", f"at most `unroll_length`, {unroll_length}: returns end with a column", n_step)
        self._stacked = None if stacked_frames is None else check_flag("stacked_frames", stacked_frames)
        self.gamma = check_number("gamma", gamma, least=0, most=1)
        self.clip_reward = check_clip_reward(clip_reward)
        self.priority_exponent = check_number("priority_exponent", priority_exponent, least=0, optional=True)
        if check_count("capacity", capacity) < unroll_length:
            raise refusal("capacity", f"at least `unroll_length`, {unroll_length}: it counts env steps", capacity)
        self.hindsight = hindsight
        self._has_episodes = hindsight is not None
        if hindsight is not None:
            self._check_hindsight(hindsight)
        self.squashed: bool | None = None
        """Whether actions with bounds are kept before tanh, as SAC plays them; None: not known."""
        self._columns = capacity // unroll_length
        self.capacity = self._columns * unroll_length
        seeds = np.random.SeedSequence([check_count("seed", seed, 0), 0xB0FFE2])
        self._begin_columns()
        marks = Sampler.size(self.capacity, prioritized=self.priority_exponent is not None)
        _require_memory(self._store(1).nbytes * self._columns + marks, capacity)
        self._stored = self._store(self._columns)
        rng = np.random.Generator(np.random.PCG64(seeds))
        self._sampler = Sampler(unroll_length, self._columns, self.priority_exponent, rng)
        self._added = self._filled = 0

    def _store(self, columns: int) -> ColumnStore:
        episodes = self._has_episodes
        return ColumnStore(self.spaces, self.unroll_length, columns, self._stacked, hindsight=episodes)

    def use_hindsight(self, hindsight: Hindsight | None) -> None:
        """Let drawn rows get other goals from now on; None: they keep theirs.

        Raises ValueError for a buffer that was made without hindsight, which doesn't keep where episodes end.
        """
        if hindsight is not None:
            if not self._has_episodes:
                raise ValueError(
                    "`buffer` must have been made with hindsight: one without doesn't keep where episodes end. "
                    "Received: a buffer with hindsight=None"
                )
            self._check_hindsight(hindsight)
        self.hindsight = hindsight

    def keep_squashed(self, squashed: bool) -> None:
        """Keep actions with bounds before tanh, as SAC plays them, or as the environment gets them.

        Actions that are known to be kept in the other way are converted.
        """
        if self.squashed not in (None, squashed) and self._filled:
            self._stored.convert_actions(before_tanh if squashed else after_tanh)
            self._begin_columns()  # files hold the others
        self.squashed = squashed

    def _check_hindsight(self, hindsight: Hindsight) -> None:
        if not isinstance(hindsight, Hindsight):
            raise refusal("hindsight", "an al.Hindsight, or None", hindsight)
        if self.n_step != 1:
            raise refusal("n_step", "1 with `hindsight`, which computes the reward of a single step", self.n_step)
        if self.priority_exponent is not None:
            raise refusal("priority_exponent", "None with `hindsight`: errors are of goals", self.priority_exponent)
        hindsight.check(self.spaces.observation)

    def _begin_columns(self, earlier: str = "", shared: int = 0) -> None:
        """Begin columns of this buffer's own, after the first `shared` ones, which another buffer wrote."""
        self._name = secrets.token_hex(8)
        self._earlier = earlier, shared

    def __repr__(self) -> str:
        size = f"{len(self):,} rows to draw from, capacity {self.capacity:,} env steps, {size_text(self.nbytes)}"
        return f"<ReplayBuffer: {size}>"

    @property
    def nbytes(self) -> int:
        """The size of the full buffer in bytes."""
        return self._stored.nbytes + self._sampler.nbytes

    def __len__(self) -> int:
        """Return the rows that can be drawn."""
        return self._sampler.count

    def add(self, trajectory: Trajectory, *, squashed: bool | None = None) -> Array:
        """Copy a trajectory over the oldest columns. Returns their numbers, for `discard`.

        squashed: whether the policy that played squashes its actions by tanh, as SAC does: those with bounds are
            converted where the buffer keeps others. None: they are as the buffer keeps them, such as its learner's.

        Raises ValueError if the trajectory doesn't fit the spaces, contains NaN, or has more columns than the buffer.
        """
        checked = self._as_kept(self._check(trajectory), squashed)
        if not self._filled:
            self._warn_of_unused(len(checked.reward))
        return self._keep(checked)

    def add_episode(
        self,
        observations: Sequence[Any] | Mapping[str, Any],
        actions: Sequence[Any] | Mapping[str, Any],
        rewards: Sequence[float],
        *,
        terminated: bool,
        action_masks: Sequence[Any] | None = None,
        squashed: bool | None = None,
    ) -> Array:
        """Add an episode of n steps that was played elsewhere, such as a demonstration. Returns what `add` does.

        Args:
            observations: the n + 1 observations that the environment returned, the last one included; or arrays
                `[n + 1, ...]`, in dicts and tuples as in the space (Minari's form).
            actions: the n actions that the environment took; or arrays `[n, ...]`, in the same way.
            rewards: n numbers.
            terminated: whether the episode ended in a terminal state; otherwise it was cut off.
            action_masks: n masks `[choices]`, for a buffer with masks that aren't in the observation.
            squashed: whether the policy squashes its actions by tanh, as SAC does; the buffer holds such actions before
                tanh. It must be given if actions have bounds.

        Warns of actions beyond their bounds. Raises ValueError as `add` does.
        """
        options: dict[str, Any] = {"terminated": terminated, "action_masks": action_masks, "squashed": squashed}
        return self._add_episode(observations, actions, rewards, **options)

    def _add_episode(self, *arguments: Any, squashed: bool | None, **options: Any) -> Array:
        kept = squashed if squashed is None else self._keeps_squashed(squashed)
        return self._keep(self._check(episode(self.spaces, *arguments, squashed=kept, **options)))

    def _keeps_squashed(self, squashed: bool) -> bool:
        """Return which actions the buffer keeps: in the beginning, those of the first trajectory that says it."""
        if self.squashed is None:
            self.squashed = squashed
        return self.squashed

    def _as_kept(self, trajectory: Trajectory, squashed: bool | None) -> Trajectory:
        """Return a trajectory with such actions as the buffer keeps."""
        if squashed is None or self._keeps_squashed(squashed) == squashed:
            return trajectory
        convert, action = before_tanh if self.squashed else after_tanh, self.spaces.action
        leaves = [
            convert(leaf, value).astype(value.dtype) if leaf.is_bounded_box else value
            for leaf, value in zip(action.leaves, action.flatten(trajectory.action), strict=True)
        ]
        return trajectory._replace(action=action.unflatten(leaves))

    @classmethod
    def from_minari(
        cls,
        dataset: Any,
        capacity: int | None = None,
        *,
        squashed: bool | None = None,
        unroll_length: int = 32,
        **options: Any,
    ) -> ReplayBuffer:
        """Return a buffer of the episodes of a Minari dataset (https://minari.farama.org), of the dataset's spaces.

        An episode that ends neither terminated nor truncated counts as truncated.

        Args:
            dataset: a name, with or without "minari:" in front, of a dataset that is on this machine; or a
                `minari.MinariDataset`, of which the episodes are taken that it selects.
            capacity: env steps, rounded down to whole columns, of which the newest are kept; None: as many as the
                episodes take.
            squashed: as for `add_episode`.
            unroll_length: rows of a column.
            options: the constructor's other arguments: `n_step`, `gamma`, `clip_reward` and so on.

        Raises:
            ValueError: there is no such dataset, it can't be read, its spaces aren't supported, or an argument is out
                of range.
            ImportError: the extra `minari` isn't installed.
            MemoryError: the buffer is larger than the memory that is available.
        """
        found = minari_datasets.check_dataset(dataset)
        rows = check_count("unroll_length", unroll_length)
        if capacity is None:
            capacity = sum(-(-steps // rows) * rows for steps in minari_datasets.count_steps(found))
        buffer = cls(found.observation_space, found.action_space, capacity, unroll_length=rows, **options)
        for number, arguments in enumerate(minari_datasets.episodes(found)):
            try:
                buffer._add_episode(**arguments, squashed=squashed, action_masks=None, of_parts=True)
            except ValueError as error:
                raise ValueError(f"Episode {number} of {found.spec.dataset_id} doesn't fit: {error}") from error
        return buffer

    def _check(self, trajectory: Trajectory) -> Trajectory:
        checked = validate_trajectory(trajectory, self.spaces)
        self._check_observation(checked.observation)
        if self.spaces.masked and checked.action_mask is None:
            raise ValueError("`action_mask` must be given: the buffer keeps masks. Received: action_mask=None")
        return checked

    def _keep(self, trajectory: Trajectory) -> Array:
        self._settle_frames(trajectory)
        is_first = not self._filled
        added = np.array([column for piece in pieces(trajectory, self.unroll_length) for column in self._add(piece)])
        if is_first and self.hindsight is not None:
            self._compare_rewards(self.hindsight, added)
        return added

    def _compare_rewards(self, hindsight: Hindsight, columns: Array) -> None:
        """Warn if `compute_reward` gives other rewards for the goals that rows have than the environment gave."""
        index = (np.arange(self.unroll_length)[:, None] * self._columns + np.unique(columns)).reshape(-1)
        index = index[self._stored.episodes(index)[1] >= 0]
        fields = self._stored.take(index)
        found = _clipped(
            hindsight.rewards(*(fields["next_observation"][name] for name in (ACHIEVED, DESIRED))), self.clip_reward
        )
        wrong = ~np.isclose(found, fields["reward"], rtol=1e-3, atol=1e-3)
        if wrong.sum() > _MAX_OTHER_REWARDS * len(index):
            row = int(wrong.argmax())
            warnings.warn(
                "`compute_reward` and the environment should give the same rewards; look for noise, for wrappers that "
                "change rewards, and for entries of `infos`, which are empty dicts where rewards are computed anew. "
                f"Received: others in {wrong.sum()} of {len(index)} rows, such as {found[row]:g} "
                f"for {fields['reward'][row]:g}",
                stacklevel=4,
            )

    def _check_observation(self, observation: Any) -> None:
        structure = self.spaces.observation
        for leaf, values in zip(structure.leaves, structure.flatten(observation), strict=True):
            if values.shape[2:] != leaf.shape or not np.can_cast(values.dtype, leaf.dtype, "same_kind"):
                expected = f"[T + 1, B{''.join(f', {size}' for size in leaf.shape)}] of {leaf.dtype}"
                received = f"shape={values.shape}, dtype={values.dtype}"
                raise ValueError(f"`{leaf.label}` must be {expected}, as its space is. Received: {received}")
            check_values(leaf, values)

    def _warn_of_unused(self, steps: int) -> None:
        """Warn if trajectories are so short that much of each column stays unused."""
        if 2 * steps <= self.unroll_length:
            warnings.warn(
                f"A trajectory of {steps} steps takes a column of {self.unroll_length}, whose other rows stay unused: "
                f"pass unroll_length={steps}. Received: unroll_length={self.unroll_length}",
                stacklevel=3,
            )

    def _settle_frames(self, trajectory: Trajectory) -> None:
        """Keep images whole that only look like stacks of frames, once enough rows have shown that they aren't."""
        leaves = self.spaces.observation.flatten(trajectory.observation)
        stored = self._stored.observation
        for place, (rows, values) in enumerate(zip(stored, leaves, strict=True)):
            if not isinstance(rows, Frames) or rows.settled:
                continue
            rows.inspect(values)
            if not rows.settled or rows.are_stacks:
                continue
            if self._stacked:
                expected = "False where rows don't show all frames but one of the row before"
                raise refusal("stacked_frames", expected, True)
            whole = rows.whole(self._filled)
            _require_memory(self.nbytes - rows.nbytes + whole.nbytes, self.capacity)
            stored[place] = whole
            self._begin_columns()  # files of earlier columns hold frames

    def _add(self, piece: Trajectory) -> Iterator[int]:
        total = piece.reward.shape[1]
        if total > self._columns:
            columns = f"{total} columns of {self.unroll_length} steps"
            raise ValueError(
                f"`capacity` (`buffer_size` of an algorithm) must hold a whole trajectory: {columns}. "
                f"Received: capacity={self.capacity}"
            )
        start = 0
        while start < total:
            first = self._added % self._columns
            stop = min(total, start + self._columns - first)
            self._write(map_fields(functools.partial(columns_of, start=start, stop=stop), piece), first)
            self._added += stop - start
            self._filled = min(self._added, self._columns)
            yield from range(first, first + stop - start)
            start = stop

    def _write(self, piece: Trajectory, first: int) -> None:
        """Replace columns from `first` on. A row can be drawn once all of it is there."""
        columns = slice(first, first + piece.reward.shape[1])
        self._sampler.forget(columns)
        reward = _clipped(piece.reward, self.clip_reward)
        targets = n_step_targets(reward, piece, successors(piece), gamma=self.gamma, n_step=self.n_step)
        if self.hindsight is not None:
            targets = with_last_observations(piece, targets)
        self._sampler.allow(columns, self._stored.write(first, piece, targets))

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the buffer into `directory`, for `load`. It is replaced as a whole, or stays as it was.

        Raises OSError if the disk is full or can't be written; FileExistsError if the directory holds other files.
        """
        write_folder_atomically(directory, lambda folder: write_buffer(self, folder))

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        compute_reward: ComputeReward | None = None,
    ) -> ReplayBuffer:
        """Return the buffer that `save`, or a run's checkpoint, wrote. Its next draws equal the saved buffer's.

        Args:
            directory: where it was saved.
            capacity: the number of newest env steps to keep, rounded down to whole columns; None: the saved capacity.
            compute_reward: the function of `Hindsight`, for a buffer with hindsight: files don't hold functions. None:
                rows keep their goals.

        Raises ValueError if there is none, or if it is damaged; MemoryError if it doesn't fit into memory.
        """
        if not has_buffer(directory):
            raise ValueError(
                "There is no replay buffer there (a run's are in its folders checkpoints/*). "
                f"Received: directory={str(directory)!r}"
            )
        buffer = read_buffer(directory, functools.partial(cls.described, compute_reward=compute_reward))
        if capacity is not None:
            columns = check_count("capacity", capacity, buffer.unroll_length) // buffer.unroll_length
            if columns > buffer._columns:
                _require_memory(buffer.column_bytes * columns, capacity)
            buffer._resize(columns)
        return buffer

    @property
    def next_column(self) -> int:
        """The number of the next column, counted from the first that was ever added."""
        return self._added

    @property
    def first_column(self) -> int:
        """The number of the oldest column that is kept."""
        return self._added - self._filled

    @property
    def column_bytes(self) -> int:
        """The bytes of a column."""
        return max(1, self.nbytes // self._columns)

    def shares(self, name: str) -> int:
        """Return the number below which columns are those of the buffer that described itself by this name."""
        if name == self._name:
            return self._added
        earlier, shared = self._earlier
        return shared if name and name == earlier else 0

    def describe(self) -> dict[str, Any]:
        """Return the arguments, counters and random state as JSON types, for `described`."""
        names = "unroll_length n_step gamma clip_reward priority_exponent".split()
        hindsight = self.hindsight
        goals = {"hindsight": None if hindsight is None else [hindsight.strategy, hindsight.goals]}
        goals = goals if self._has_episodes else {}
        return {
            "name": self._name,
            "spaces": self.spaces.to_json(),
            "arguments": {"capacity": self.capacity, **{name: getattr(self, name) for name in names}},
            "stacked": self._stored.evidence,
            "stacked_frames": self._stacked,
            "added": self._added,
            "filled": self._filled,
            "largest_priority": self._sampler.largest_priority,
            "random_state": self._sampler.rng.bit_generator.state,
            "squashed": self.squashed,
            **goals,
        }

    @classmethod
    def described(cls, description: Mapping[str, Any], *, compute_reward: ComputeReward | None = None) -> ReplayBuffer:
        """Return the buffer of `describe`, whose columns and marks are to be put in. compute_reward: see `load`."""
        spaces = Spaces.from_json(description["spaces"]).gymnasium
        buffer = cls(
            spaces.observation_space,
            spaces.action_space,
            action_masks=spaces.masked,
            stacked_frames=any(found is not None for found in description["stacked"]),
            **description["arguments"],
        )
        buffer.squashed = description.get("squashed")
        if "hindsight" in description:
            buffer._has_episodes = True
            buffer._stored = buffer._store(buffer._columns)
            if (goals := description["hindsight"]) is not None and compute_reward is not None:
                buffer.use_hindsight(Hindsight(goals[0], goals[1], compute_reward))
        buffer._stacked = description["stacked_frames"]
        stored = buffer._stored.observation
        for place, evidence in enumerate(description["stacked"]):
            rows = stored[place]
            if not isinstance(rows, Frames):
                continue
            if evidence is None:
                stored[place] = rows.whole()
            else:
                telling, repeating = map(int, evidence)
                rows.evidence = telling, repeating
        buffer._added, buffer._filled = int(description["added"]), int(description["filled"])
        buffer._sampler.largest_priority = float(description["largest_priority"])
        buffer._sampler.rng.bit_generator.state = description["random_state"]
        buffer._begin_columns(description["name"], buffer._added)
        return buffer

    def contents(self, columns: Array) -> dict[str, Array]:
        """Return what columns hold, `[..., columns, ...]` each, by their numbers counted from the first ever added."""
        return self._stored.contents(columns % self._columns)

    def put(self, columns: Array, contents: Mapping[str, Array]) -> None:
        """Put back what `contents` returned."""
        self._stored.put(columns % self._columns, contents)

    def marks(self) -> dict[str, Array]:
        """Return which rows can be drawn, and their priorities."""
        return self._sampler.marks(self._filled)

    def put_marks(self, marks: Mapping[str, Array]) -> None:
        """Put back what `marks` returned."""
        self._sampler.put_marks(marks, self._filled)

    def columns_of(self, indices: Array) -> Array:
        """Return the numbers of the columns that hold rows, for `discard`. indices: of `Minibatches`."""
        found: Array = np.asarray(indices) % self._columns
        return found

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of `Minibatches`."""
        leaves = [*(2 * self.spaces.observation.leaves), *self.spaces.action.leaves]
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) + 2 * self.spaces.mask_size + 20

    def blank(self, size: int) -> Minibatches:
        """Return one minibatch of so many rows of zeros, `[1, size, ...]`, whose actions are all allowed."""
        observation, action = (
            map_leaves(lambda leaf: leaf[None], structure.zeros(size))
            for structure in (self.spaces.observation, self.spaces.action)
        )
        numbers, choices = np.zeros((1, size), np.float32), self.spaces.mask_size
        mask = np.ones((1, size, choices), bool) if choices else None
        index = np.zeros((1, size), np.int64)
        return Minibatches(observation, action, numbers, numbers, observation, index, numbers, mask, mask)

    def shrink(self, capacity: int) -> None:
        """Keep the newest `capacity` env steps, rounded down to whole columns, and free the memory of the others.

        Raises ValueError for less than a column, or for more than there are.
        """
        check_count("capacity", capacity, self.unroll_length, most=self.capacity)
        self._resize(capacity // self.unroll_length)

    def _resize(self, columns: int) -> None:
        newest = np.arange(self._added - min(self._filled, columns), self._added)
        order, places = np.full(columns, -1), newest % columns
        if columns > self._columns:  # numbers begin anew, so that what is filled comes first
            places, self._added = np.arange(len(newest)), len(newest)
            self._begin_columns()
        order[places] = newest % self._columns
        self._stored.reorder(order)
        self._sampler.reorder(order)
        self._columns, self.capacity, self._filled = columns, columns * self.unroll_length, len(newest)

    def discard(self, columns: Array) -> None:
        """Never draw from these columns again, until they are overwritten.

        columns: numbers that `add` returned. Raises ValueError for others.
        """
        numbers = np.asarray(columns)
        if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= self._columns):
            raise refusal("columns", f"numbers that `add` returned, below {self._columns}", columns)
        self._sampler.forget(np.unique(numbers).astype(np.int64))

    def sample(
        self, minibatch_size: int, num_minibatches: int | None = None, *, importance_exponent: float = 0.0
    ) -> Minibatches:
        """Draw rows, with replacement: uniformly, or by priority.

        Args:
            minibatch_size: rows of a minibatch, M.
            num_minibatches: K; None: one, without the leading axis.
            importance_exponent: the exponent with which weights correct for priorities; 1 corrects wholly (beta in
                arXiv:1511.05952).

        Raises ValueError if there is no row to draw yet, and for an argument out of range.
        """
        check_number("importance_exponent", importance_exponent, least=0, most=1)
        size = check_count("minibatch_size", minibatch_size)
        number = check_count("num_minibatches", num_minibatches, optional=True)
        if not len(self):
            raise ValueError("There is no row to draw: `add` trajectories first. Received: an empty buffer")
        shape = (size,) if number is None else (number, size)
        if (needed := math.prod(shape) * self.row_bytes) > _MIN_CHECKED_BYTES:
            require_memory("The rows don't fit", needed, f"{' x '.join(map(str, shape))} rows")
        index = self._sampler.draw(math.prod(shape), self._filled)

        def shaped(values: Array) -> Array:
            return values.reshape(*shape, *values.shape[1:])

        indices = shaped(index)
        weight = self._sampler.weights(indices, importance_exponent)
        fields = self._stored.take(index)
        if self.hindsight is not None:
            self._relabel(self.hindsight, fields, index)
        return Minibatches(indices=indices, weight=weight, **map_leaves(shaped, fields))

    def observations(self, rows: int, most: int) -> Iterator[tuple[int, Any]]:
        """Yield how many, and the observations `[rows, ...]`, padded by the last, of rows that can be drawn.

        Each row comes once, with the goal that it was stored with. Of more than `most`, so many are chosen at random.
        """
        index = np.flatnonzero(self._sampler.usable)
        if len(index) > most:
            index = np.random.default_rng(0).choice(index, most, replace=False)
        for first in range(0, len(index), rows):
            part = index[first : first + rows]
            yield len(part), self._stored.take(np.pad(part, (0, rows - len(part)), "edge"))["observation"]

    def _relabel(self, hindsight: Hindsight, fields: dict[str, Any], index: Array) -> None:
        """Give some of the drawn rows another goal and its reward, in place."""
        row, column = np.divmod(index, self._columns)
        changed, achieved_after = hindsight.draw(row, *self._stored.episodes(index), self._sampler.rng)
        goal = self._stored.achieved(achieved_after, column[changed])
        for name in ("observation", "next_observation"):
            fields[name][DESIRED][changed] = goal
        reward = hindsight.rewards(fields["next_observation"][ACHIEVED][changed], goal)
        fields["reward"][changed] = _clipped(reward, self.clip_reward)

    def update_priorities(self, indices: Array, error: Array) -> None:
        """Set the priorities of rows to `(|error| + 1e-6) ** priority_exponent`; a row's last error counts.

        New rows have the largest priority so far, so that each is drawn soon.

        Args:
            indices: the `indices` of `Minibatches`.
            error: the temporal-difference errors, shaped like `indices`.
        """
        self._sampler.update(indices, error)


def _clipped(reward: Array, clip: str | float | None) -> Array:
    if clip is None:
        return reward
    return np.sign(reward) if isinstance(clip, str) else np.clip(reward, -clip, clip)


def _require_memory(size: int, capacity: int) -> None:
    advice = "lower `capacity` (`buffer_size` of an algorithm)"
    require_memory("The replay buffer doesn't fit", size, f"capacity={capacity}", advice)
