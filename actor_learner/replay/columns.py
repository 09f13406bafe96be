"""What the columns of a replay buffer hold, and the parts of trajectories that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from actor_learner.replay.hindsight import ACHIEVED, episode_rows
from actor_learner.replay.rows import Frames, LeafStore, leaf_store, of_columns
from actor_learner.replay.targets import Targets
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import Leaf
from actor_learner.spaces.trajectory import FIELDS, Trajectory, map_fields
from actor_learner.system.types import Array


class ColumnStore:
    """`count` columns of `steps` rows: observations, actions, masks and targets, zeros at first.

    Attributes:
        observation: of each leaf, see `LeafStore`.
        reward, discount, bootstrap_row: `[T, count]`, see `Targets`.
        episode: int16 `[T, count, 2]`, see `episode_rows`; None without hindsight.

    Args:
        spaces: of what they hold.
        steps: rows of a column.
        count: columns.
        stacked: see `leaf_store`.
        hindsight: whether rows are to get the goals of other rows.
    """

    def __init__(
        self, spaces: Spaces, steps: int, count: int, stacked: bool | None, *, hindsight: bool = False
    ) -> None:
        self._spaces = spaces
        self.count = count
        self.observation: list[LeafStore] = [
            leaf_store(leaf.shape, leaf.dtype, steps, count, stacked) for leaf in spaces.observation.leaves
        ]
        self._action = [np.zeros((steps, count, *leaf.shape), leaf.dtype) for leaf in spaces.action.leaves]
        self._mask = np.ones((steps + 2, count, spaces.mask_size), bool) if spaces.mask_size else None
        self.reward, self.discount = np.zeros((2, steps, count), np.float32)
        self.bootstrap_row = np.zeros((steps, count), np.uint16)
        self.episode = np.zeros((steps, count, 2), np.int16) if hindsight else None

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that hold columns on their second axis, by names of their own."""
        arrays = {f"action-{place}": stored for place, stored in enumerate(self._action)}
        for place, rows in enumerate(self.observation):
            arrays |= {f"observation-{place}-{name}": stored for name, stored in rows.arrays.items()}
        if self._mask is not None:
            arrays["mask"] = self._mask
        if self.episode is not None:
            arrays["episode"] = self.episode
        return {**arrays, "reward": self.reward, "discount": self.discount, "bootstrap_row": self.bootstrap_row}

    @property
    def nbytes(self) -> int:
        """The bytes of all columns."""
        return sum(stored.nbytes for stored in self.arrays.values())

    @property
    def evidence(self) -> list[tuple[int, int] | None]:
        """The evidence that each leaf is a stack of frames (`Frames.inspect`), None of one that is kept whole."""
        return [rows.evidence if isinstance(rows, Frames) else None for rows in self.observation]

    def write(self, first: int, piece: Trajectory, targets: Targets) -> Array:
        """Replace columns from `first` on. Returns which rows `[T, b]` are known wholly, with what follows them."""
        steps, count = piece.reward.shape
        columns = slice(first, first + count)
        final_row = np.full(count, -1) if piece.final_row is None else piece.final_row
        structure = self._spaces.observation
        finals = [None] * len(self.observation)
        if piece.final_observation is not None:
            finals = list(structure.flatten(piece.final_observation))
        kept = np.ones((steps + 2, count), bool)
        for rows, values, final in zip(self.observation, structure.flatten(piece.observation), finals, strict=True):
            kept &= rows.write(first, values, final, final_row)
        for stored, values in zip(self._action, self._spaces.action.flatten(piece.action), strict=True):
            stored[:, columns] = values
        self.reward[:, columns], self.discount[:, columns] = targets.reward, targets.discount
        self.bootstrap_row[:, columns] = targets.bootstrap_row
        if self.episode is not None:
            reached = targets.known & (targets.bootstrap_row != np.arange(steps)[:, None])
            reached &= np.take_along_axis(kept, targets.bootstrap_row, axis=0)
            self.episode[:, columns] = episode_rows(piece, reached)
        needed = kept
        if self._mask is not None:
            final = False if piece.final_action_mask is None else piece.final_action_mask
            self._mask[:-1, columns], self._mask[-1, columns] = piece.action_mask, final
            needed = kept & self._mask[:, columns].any(axis=-1)  # elsewhere the mask isn't known
        after = np.take_along_axis(needed, targets.bootstrap_row, axis=0)
        usable: Array = targets.known & kept[:-2] & (after | (targets.discount == 0))
        return usable

    def take(self, index: Array) -> dict[str, Any]:
        """Return fields of `Minibatches`, `[n, ...]` each. index: int64 `[n]`, `row * count + column`."""
        row, column = np.divmod(index, self.count)
        after = self.bootstrap_row.reshape(-1).take(index).astype(np.int64)
        observation, following = (
            self._spaces.observation.unflatten([rows.take(at, column) for rows in self.observation])
            for at in (row, after)
        )
        actions = [stored.reshape(-1, *stored.shape[2:]).take(index, axis=0) for stored in self._action]
        masks = {}
        if self._mask is not None:
            masks = {"action_mask": self._mask[row, column], "next_action_mask": self._mask[after, column]}
        return {
            "observation": observation,
            "action": self._spaces.action.unflatten(actions),
            "reward": self.reward.reshape(-1).take(index),
            "discount": self.discount.reshape(-1).take(index),
            "next_observation": following,
            **masks,
        }

    def episodes(self, index: Array) -> tuple[Array, Array]:
        """Return the first and the last row of each row's episode, `[n]` each; see `episode_rows`."""
        assert self.episode is not None
        first, last = self.episode.reshape(-1, 2).take(index, axis=0).T
        return first, last

    def achieved(self, row: Array, column: Array) -> Array:
        """Return the goals `[n, ...]` that were achieved after these rows, int64 `[n]` each."""
        after = self.bootstrap_row.reshape(-1).take(row * self.count + column).astype(np.int64)
        place = [leaf.path for leaf in self._spaces.observation.leaves].index((ACHIEVED,))
        return self.observation[place].take(after, column)

    def convert_actions(self, convert: Callable[[Leaf, Array], Array]) -> None:
        """Replace the actions of Boxes with bounds by what a function returns for them."""
        for leaf, stored in zip(self._spaces.action.leaves, self._action, strict=True):
            if leaf.is_bounded_box:
                stored[...] = convert(leaf, stored)

    def reorder(self, order: Array) -> None:
        """Keep these columns alone, in this order, where -1 stands for an empty one."""
        self.observation = [rows.of_columns(order) for rows in self.observation]
        self._action = [of_columns(stored, order) for stored in self._action]
        self._mask = None if self._mask is None else of_columns(self._mask, order)
        self.reward, self.discount, self.bootstrap_row = (
            of_columns(stored, order) for stored in (self.reward, self.discount, self.bootstrap_row)
        )
        self.episode = None if self.episode is None else of_columns(self.episode, order)
        self.count = len(order)

    def contents(self, columns: Array) -> dict[str, Array]:
        """Return what columns hold, `[..., columns, ...]` each."""
        return {name: stored[:, columns] for name, stored in self.arrays.items()}

    def put(self, columns: Array, contents: Mapping[str, Array]) -> None:
        """Put back what `contents` returned. Raises ValueError for other names."""
        arrays = self.arrays
        if arrays.keys() != contents.keys():
            raise ValueError(f"columns have {sorted(arrays)}, not {sorted(contents)}")
        for name, stored in arrays.items():
            stored[:, columns] = contents[name]


def pieces(trajectory: Trajectory, steps: int) -> Iterator[Trajectory]:
    """Yield parts of `steps` rows each, the last one filled up with invalid rows."""
    if trajectory.start is None and trajectory.final_row is not None:  # then rows that only reset show the last episode
        end = np.ones_like(trajectory.valid[:1])
        trajectory = trajectory._replace(start=np.concatenate([trajectory.valid, end]))
    length = len(trajectory.reward)
    if length == steps:
        yield trajectory
        return
    for start in range(0, length, steps):
        yield _part(trajectory, start, min(steps, length - start), steps)


def _part(trajectory: Trajectory, start: int, length: int, steps: int) -> Trajectory:
    def cut(name: str, values: Array) -> Array:
        rows = FIELDS[name].rows
        if rows is None:
            return values
        found = values[start : start + length + rows]
        missing = np.zeros((steps + rows - len(found), *values.shape[1:]), values.dtype)
        return np.concatenate([found, missing]) if len(missing) else found

    part, row = map_fields(cut, trajectory), trajectory.final_row
    if row is None:
        return part
    return part._replace(final_row=np.where((row >= start) & (row < start + length), row - start, -1))
