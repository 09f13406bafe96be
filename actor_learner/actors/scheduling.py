"""Which actor fills which columns of which block, by which version of the weights, and which block is learned next.

Two ways: `LockStep` hands out whole batches, reproducibly; `FreeRunning` never lets an actor wait for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from actor_learner.actors.transport.batches import Block
from actor_learner.actors.transport.messages import Done, HandOut
from actor_learner.actors.transport.weights import WeightSlots

Array = np.ndarray[Any, Any]
Send = Callable[[int, HandOut], None]


class Schedule(Protocol):
    """What the pool asks for in `collect`. All are called with the crew's lock held."""

    def begin(self) -> None:
        """The caller collects: hands out what is due. The batch that was taken last is no longer looked at."""

    def complete(self) -> bool:
        """Whether there is a batch to take."""

    def upcoming(self) -> int | None:
        """The block that `take` will give next, once it is complete and settled; asking changes nothing."""

    def late(self) -> list[int]:
        """The actors that the batch is waiting for."""

    def done(self, actor: int, done: Done) -> bool:
        """An actor has filled its columns. Returns whether `complete` is to be looked at."""

    def hand_out_again(self, actor: int) -> None:
        """Another process does this actor's work: erases the columns that aren't done, and hands them out to it."""

    def take(self) -> tuple[int, list[Done]]:
        """The complete batch: number of its block, and where the actors' time went."""

    def close(self) -> None:
        """Lets go of the shared memory."""


class LockStep:
    """Batch after batch, each by every actor, `lag` batches ahead of the learner (0 or 1).

    Every actor has its own columns, and with one publish per batch everything is determined beforehand.
    """

    def __init__(
        self, blocks: Sequence[Block], slots: WeightSlots, send: Send, *, num_actors: int, envs_per_actor: int, lag: int
    ) -> None:
        self._blocks, self._slots, self._send = blocks, slots, send
        self._num_actors, self._envs_per_actor, self._lag = num_actors, envs_per_actor, lag
        self._handed_out = self._taken = 0
        self._sent: dict[int, dict[int, HandOut]] = {}
        self._done: dict[int, dict[int, Done]] = {}

    def begin(self) -> None:
        """Hands out the batches that are due."""
        while self._handed_out <= self._taken + self._lag:
            self._hand_out(self._handed_out)
            self._handed_out += 1

    def _hand_out(self, batch: int) -> None:
        index, version = batch % len(self._blocks), self._slots.hold_newest()
        self._blocks[index].erase()
        starts = range(0, self._num_actors * self._envs_per_actor, self._envs_per_actor)
        self._sent[batch] = {
            actor: HandOut(batch, index, start, start + self._envs_per_actor, *version)
            for actor, start in enumerate(starts)
        }
        self._done[batch] = {}
        for actor, hand_out in self._sent[batch].items():
            self._send(actor, hand_out)

    def complete(self) -> bool:
        """Whether every actor has filled its columns of the batch that is next."""
        return len(self._done[self._taken]) == self._num_actors

    def upcoming(self) -> int | None:
        """The block of the next batch, once it is complete."""
        complete = len(self._done.get(self._taken, ())) == self._num_actors
        return self._taken % len(self._blocks) if complete else None

    def late(self) -> list[int]:
        """The actors that haven't."""
        return [actor for actor in range(self._num_actors) if actor not in self._done[self._taken]]

    def done(self, actor: int, done: Done) -> bool:
        """Notes it; returns whether the batch is complete with it."""
        self._done[done.batch][actor] = done
        return len(self._done[done.batch]) == self._num_actors

    def hand_out_again(self, actor: int) -> None:
        """Hands out what this actor hasn't done, in the order of the batches."""
        for batch, sent in sorted(self._sent.items()):
            if actor not in self._done[batch]:
                _send_again(self._blocks, self._send, actor, sent[actor])

    def take(self) -> tuple[int, list[Done]]:
        """The next batch."""
        batch = self._taken
        self._taken += 1
        self._slots.release(self._sent.pop(batch)[0].slot)
        return batch % len(self._blocks), [done for _, done in sorted(self._done.pop(batch).items())]

    def close(self) -> None:
        """Lets go of the blocks."""
        self._blocks = ()


@dataclass
class _Filling:
    """A block that actors are filling."""

    batch: int
    """How many were begun before it."""
    index: int
    """Of the block."""
    version: int
    """The oldest in it: that of its first columns."""
    columns: int = 0
    """Column ranges that were handed out."""
    outstanding: dict[int, HandOut] = field(default_factory=dict)
    """Actors that are at it, and what they were given."""
    done: list[Done] = field(default_factory=list)


class FreeRunning:
    """An actor that is done goes on at once, wherever columns are free, by the newest version.

    At an update the version is at most `lag` ahead of any column's. So the blocks are due in the order of their
    oldest columns. A complete one may be taken before its turn as long as every other one can still be in time;
    where none can wait any longer, the first one's actors end their unrolls early.

    stop_words: of the blocks, `[num_blocks]` int64.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        slots: WeightSlots,
        send: Send,
        stop_words: Array,
        *,
        num_actors: int,
        envs_per_actor: int,
        lag: int,
    ) -> None:
        self._blocks, self._slots, self._send, self._stop_words = blocks, slots, send, stop_words
        self._num_actors, self._envs_per_actor, self._lag = num_actors, envs_per_actor, lag
        self._free = list(range(len(blocks)))
        self._idle = list(range(num_actors))
        self._filling: list[_Filling] = []
        self._taken: int | None = None
        self._next: _Filling | None = None
        self._begun = 0

    def begin(self) -> None:
        """Frees the block that was taken last, and gives every idle actor columns."""
        if self._taken is not None:
            self._free.append(self._taken)
            self._taken = None
        self._hand_out()

    def _hand_out(self) -> None:
        while self._idle and (filling := self._with_free_columns()) is not None:
            actor, version = self._idle.pop(0), self._slots.hold_newest()
            start = filling.columns * self._envs_per_actor
            filling.columns += 1
            hand_out = HandOut(filling.batch, filling.index, start, start + self._envs_per_actor, *version)
            filling.outstanding[actor] = hand_out
            self._send(actor, hand_out)

    def _with_free_columns(self) -> _Filling | None:
        """The block to fill next: the one that was begun, else a free one; None where there is none."""
        if self._filling and self._filling[-1].columns < self._num_actors:
            return self._filling[-1]
        if not self._free:
            return None
        index = self._free.pop(0)
        self._blocks[index].erase()
        self._stop_words[index] = 0
        self._filling.append(_Filling(self._begun, index, self._slots.newest.number))
        self._begun += 1
        return self._filling[-1]

    def complete(self) -> bool:
        """Chooses the batch to take, where one is complete; ends unrolls early where the first can't wait longer."""
        ready = next((filling for filling in self._filling if self._is_full(filling)), None)
        if ready is not None and not self._in_time_after(ready):
            first = self._filling[0]
            self._stop_words[first.index] = 1
            ready = first if self._is_full(first) else None
        self._next = ready
        return ready is not None

    def _is_full(self, filling: _Filling) -> bool:
        return len(filling.done) == self._num_actors

    def _in_time_after(self, taken: _Filling) -> bool:
        """Whether the other blocks, learned one update after the other, would all be within the lag."""
        version = self._slots.newest.number + 1
        others = [filling for filling in self._filling if filling is not taken]
        return all(version + place <= filling.version + self._lag for place, filling in enumerate(others))

    def upcoming(self) -> None:
        """None: which block is next depends on when the learner asks."""
        return

    def late(self) -> list[int]:
        """The actors that the first block waits for."""
        return sorted(self._filling[0].outstanding)

    def done(self, actor: int, done: Done) -> bool:
        """Notes it, and lets the actor go on; returns whether a block may be complete with it."""
        filling = next(filling for filling in self._filling if filling.batch == done.batch)
        self._slots.release(filling.outstanding.pop(actor).slot)
        filling.done.append(done)
        self._idle.append(actor)
        self._hand_out()
        return self._is_full(filling)

    def hand_out_again(self, actor: int) -> None:
        """Hands out what this actor was at, by the version that it was given with: the block's lag counts from it."""
        for filling in self._filling:
            if actor in filling.outstanding:
                _send_again(self._blocks, self._send, actor, filling.outstanding[actor])

    def take(self) -> tuple[int, list[Done]]:
        """The batch that `complete` chose."""
        filling = self._next
        assert filling is not None
        self._filling.remove(filling)
        self._taken, self._next = filling.index, None
        return filling.index, filling.done

    def close(self) -> None:
        """Lets go of the blocks and the stop words."""
        self._blocks, self._stop_words = (), np.zeros(0, np.int64)


def _send_again(blocks: Sequence[Block], send: Send, actor: int, hand_out: HandOut) -> None:
    blocks[hand_out.block].erase(hand_out.start, hand_out.stop)
    send(actor, hand_out)
