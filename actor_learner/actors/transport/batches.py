"""The memory of batches: one preallocated block each, of which an actor fills a range of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from actor_learner.actors.transport.shared_memory import ALIGNMENT, Arena, align
from actor_learner.spaces.trajectory import Fields, Trajectory, TrajectorySpec, by_field, columns_of
from actor_learner.system.types import Array

EPISODE_RETURN, EPISODE_LENGTH, EPISODE_INFO = "episode_return", "episode_length", "episode/"
_STEPS = "steps/"
Places = Mapping[str, tuple[int, tuple[int, ...], np.dtype[Any]]]  # name -> offset in bytes, shape, dtype


@dataclass(frozen=True)
class BlockLayout:
    """The fields of one block, and their places in bytes from its beginning."""

    spec: TrajectorySpec
    info_keys: tuple[str, ...]
    fields: Places
    size: int  # bytes of a block, a multiple of the alignment

    @classmethod
    def of(cls, spec: TrajectorySpec, info_keys: Sequence[str]) -> BlockLayout:
        """Return the layout of a trajectory's fields and of the episodes that end in it.

        The latter are `episode_return`, `episode_length` and `episode/<key>`, `[T, B]` float32, NaN where none ends.
        """
        shape, number = (spec.unroll_length, spec.num_envs), np.dtype(np.float32)
        episode_fields = [EPISODE_RETURN, EPISODE_LENGTH, *(EPISODE_INFO + key for key in info_keys)]
        return cls(spec, tuple(info_keys), *_place(spec.fields() | dict.fromkeys(episode_fields, (shape, number))))


@dataclass(frozen=True)
class ActorColumns:
    """Writable views on one actor's columns of a block: `[T, b, ...]`, leaves of `observation` `[T + 1, b, ...]`."""

    observation: tuple[Array, ...]
    action: tuple[Array, ...]
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    behaviour_log_prob: Array
    truncation_value: Array
    policy_version: Array  # `[b]`
    action_mask: Array | None  # `[T + 1, b, M]`
    env_index: Array  # `[b]`
    start: Array  # `[T + 1, b]`
    final_observation: tuple[Array, ...]  # leaves `[b, ...]`
    final_row: Array  # `[b]`
    initial_state: tuple[Array, ...]  # leaves `[b, ...]`
    final_action_mask: Array | None  # `[b, M]`
    episode_return: Array
    episode_length: Array
    episode_info: Mapping[str, Array]

    def blank(self, first: int = 0) -> None:
        """Fill the rows from `first` on as invalid ones, but for their observations."""
        flags = self.terminated, self.truncated, self.valid
        for array in (*self.action, self.reward, *flags, self.behaviour_log_prob):
            array[first:] = 0
        if self.action_mask is not None:
            self.action_mask[first:] = True

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the rows, one for each env step, as tuples of views `[b, ...]`.

        A row: leaves of observation and action, action_mask (or None), behaviour_log_prob, reward, terminated,
        truncated, valid.
        """
        return zip(
            zip(*self.observation, strict=True),
            zip(*self.action, strict=True),
            itertools.repeat(None) if self.action_mask is None else self.action_mask,
            self.behaviour_log_prob,
            self.reward,
            self.terminated,
            self.truncated,
            self.valid,
            strict=False,  # there is one observation more
        )


class Block:
    """The arrays of one batch, `[T + 1, B, ...]`, `[T, B, ...]` or `[B]`, in memory of any kind."""

    def __init__(self, layout: BlockLayout, arrays: Mapping[str, Array]) -> None:
        self.layout, self.arrays = layout, arrays

    @classmethod
    def allocate(cls, layout: BlockLayout) -> Block:
        """Return a block in ordinary memory, all zeros."""
        return cls(layout, {name: np.zeros(shape, dtype) for name, (_, shape, dtype) in layout.fields.items()})

    @classmethod
    def in_arena(cls, layout: BlockLayout, arena: Arena, offset: int) -> Block:
        """Return a block on the bytes of an arena from `offset` on."""
        fields = layout.fields.items()
        return cls(layout, {name: arena.array(offset + start, shape, dtype) for name, (start, shape, dtype) in fields})

    trajectory_type: type[Trajectory] = Trajectory

    def columns(self, start: int, stop: int) -> ActorColumns:
        views = {name: columns_of(name, array, start, stop) for name, array in self.arrays.items()}
        info = {key: views.pop(EPISODE_INFO + key) for key in self.layout.info_keys}
        absent: dict[str, Any] = {"action_mask": None, "initial_state": (), "final_action_mask": None}
        return ActorColumns(episode_info=info, **absent | by_field(views))

    def erase(self, start: int = 0, stop: int | None = None) -> None:
        """Mark every row of the columns `[start, stop)` as unwritten, before they are assigned."""
        self.arrays["behaviour_log_prob"][:, start:stop] = np.nan

    def unwritten(self) -> tuple[int, int] | None:
        """Return row and column of the first log-probability that is NaN; None if all rows are written."""
        missing = np.isnan(self.arrays["behaviour_log_prob"])
        if not missing.any():
            return None
        row, column = np.argwhere(missing)[0]
        return int(row), int(column)

    def views(self) -> dict[str, Array]:
        """Return read-only views on the trajectory's fields, without a copy."""
        views = {name: self.arrays[name].view() for name in self.layout.spec.fields()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def blank_views(self) -> dict[str, Any]:
        """Return zeros in the shapes of `views`."""
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.layout.spec.fields().items()}

    def episodes(self) -> dict[str, Array]:
        """Return the episodes that ended here, by row and column: 1-D `return`, `length` and the info keys found."""
        ended = ~np.isnan(self.arrays[EPISODE_LENGTH])
        episodes = {"return": self.arrays[EPISODE_RETURN][ended], "length": self.arrays[EPISODE_LENGTH][ended]}
        for key in self.layout.info_keys:
            values = self.arrays[EPISODE_INFO + key][ended]
            values = values[~np.isnan(values)]
            if values.size:
                episodes[key] = values
        return episodes

    def ended_envs(self) -> Array:
        """Return the environment of each of these episodes, in their order."""
        ended = np.nonzero(~np.isnan(self.arrays[EPISODE_LENGTH]))
        return np.asarray(self.arrays["env_index"])[ended[1]]


Blocks = tuple[Block, ...]
"""The blocks of a batch: one for each policy."""


def share_of(share: int, of: int, *columns: int) -> tuple[int, ...]:
    """Return a policy's numbers for numbers of columns of all policies, which have whole games."""
    return tuple(column * share // of for column in columns)


class ArenaParts(NamedTuple):
    """The arrays in an arena, without a copy. `unroll` says what an actor does with the first two."""

    stop_words: Array  # `[1 + num_blocks]` int64, read in each step: for all unrolls, and those of a block
    heartbeats: Array  # `[num_actors, words of a cache line]` int64, of which an actor counts its first word up
    policy: Array  # `[policy_size]` uint8
    slots: Array  # `[num_slots, weights_size]` float32
    opponents: Array  # `[num_opponents, weights_size]` float32, frozen versions of the weights
    steps: dict[str, Array]  # by which actors have the learner's device act, by their names; see `StepRows`
    blocks: list[Blocks]


@dataclass(frozen=True)
class ArenaPlan:
    """The places in an arena: of the stop words, the heartbeats, the policy, the weight slots and the blocks."""

    layouts: tuple[BlockLayout, ...]  # of each policy's blocks, which lie side by side
    num_blocks: int
    places: Places
    size: int  # bytes of the arena

    @classmethod
    def of(
        cls,
        layouts: tuple[BlockLayout, ...],
        *,
        num_actors: int,
        num_blocks: int,
        num_slots: int,
        weights_size: int,
        policy_size: int,
        steps: Fields,
        num_opponents: int = 0,
    ) -> ArenaPlan:
        """Place everything.

        weights_size: Of one version, float32. policy_size: Bytes of the exported policy. steps: The arrays of
        `StepRows`, none where actors act by themselves. num_opponents: Frozen versions that exist at a time.
        """
        word = np.dtype(np.int64)
        places, offset = _place(
            {
                "stop_words": ((1 + num_blocks,), word),
                "heartbeats": ((num_actors, ALIGNMENT // word.itemsize), word),
                "policy": ((policy_size,), np.dtype(np.uint8)),
                "slots": ((num_slots, weights_size), np.dtype(np.float32)),
                "opponents": ((num_opponents, weights_size), np.dtype(np.float32)),
                **{_STEPS + name: field for name, field in steps.items()},
            }
        )
        return cls(layouts, num_blocks, places, offset + num_blocks * sum(layout.size for layout in layouts))

    def parts(self, arena: Arena) -> ArenaParts:
        arrays = {name: arena.array(*place) for name, place in self.places.items()}
        steps = {name.removeprefix(_STEPS): arrays.pop(name) for name in self.places if name.startswith(_STEPS)}
        *ends, size = itertools.accumulate(layout.size for layout in self.layouts)
        blocks = [
            tuple(Block.in_arena(own, arena, start + end) for own, end in zip(self.layouts, (0, *ends), strict=True))
            for start in range(self.size - self.num_blocks * size, self.size, size)
        ]
        return ArenaParts(**arrays, steps=steps, blocks=blocks)


def _place(fields: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> tuple[Places, int]:
    """Place arrays of these shapes and dtypes one after the other, aligned; return the places and all bytes."""
    places, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        places[name] = (offset, shape, dtype)
        offset = align(offset + math.prod(shape) * dtype.itemsize)
    return places, offset
