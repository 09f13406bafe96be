"""The schedules: they decide which actor fills which columns of which block, and which block the learner gets next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actor_learner.actors.group import ActorGroup
from actor_learner.actors.transport.messages import Done
from actor_learner.config.pool_checks import first_envs
from actor_learner.system.machine import current_core


class LockStep:
    """Every actor fills its own columns of every batch, `lag` batches ahead of the learner: reproducible.

    env_counts: the number of environments of each actor. first_alone: no other batch is assigned before the first one
    is taken.
    """

    def __init__(self, group: ActorGroup, env_counts: Sequence[int], *, lag: int, first_alone: bool = False) -> None:
        self._group, self._num_actors, self._lag = group, len(env_counts), lag
        self._starts = first_envs(env_counts)
        self._first_alone = first_alone
        self._assigned = self._taken = 0
        self._done: dict[int, dict[int, Done]] = {}
        self._cores = [-1] * self._num_actors  # that the actors ran on last

    def begin(self) -> None:
        ahead = self._lag if self._taken or not self._first_alone else 0
        while self._assigned <= self._taken + ahead:
            batch = self._assigned
            self._done[batch] = {}
            for actor in self._wake_order():
                self._group.assign(actor, batch, self._block(batch), self._starts[actor])
            self._assigned += 1

    def _wake_order(self) -> list[int]:
        """Return the actors, at the end those that ran last on the core that this process runs on.

        Linux wakes an actor on the core that it ran on last, if that is idle, else on the caller's core, which is about
        to be free. In another order two actors share a core while another one is idle.
        """
        here = current_core()
        return sorted(range(self._num_actors), key=lambda actor: self._cores[actor] == here)

    def _block(self, batch: int) -> int:
        return batch % (self._lag + 1)

    def _is_full(self, batch: int) -> bool:
        return len(self._done.get(batch, ())) == self._num_actors

    def complete(self) -> bool:
        return self._is_full(self._taken)

    def upcoming(self) -> int | None:
        return self._block(self._taken) if self.complete() else None

    def late_actors(self) -> list[int]:
        return [actor for actor in range(self._num_actors) if actor not in self._done[self._taken]]

    def finish(self, actor: int, done: Done) -> bool:
        self._done[done.batch][actor] = done
        self._cores[actor] = done.core
        return self._is_full(done.batch)

    def take(self) -> tuple[int, list[Done]]:
        batch = self._taken
        self._taken += 1
        return self._block(batch), [done for _, done in sorted(self._done.pop(batch).items())]


@dataclass
class _Batch:
    """A batch that actors are filling."""

    number: int
    block: int
    version: int  # the oldest version in it: that of its first columns
    assigned: int = 0  # actors that columns were assigned to
    pending: list[int] = field(default_factory=list)  # actors that are filling their columns
    done: list[Done] = field(default_factory=list)


class FreeRunning:
    """An actor that has finished an unroll begins the next at once, where columns are free, by the newest version.

    At an update the version is at most `lag` ahead of any column's, so batches are due in the order of their oldest
    columns. A complete batch may be taken before its turn while every other one can still be in time; otherwise the
    actors of the first batch end their unrolls early. All actors have as many environments.
    """

    def __init__(self, group: ActorGroup, env_counts: Sequence[int], *, lag: int, first_alone: bool = False) -> None:
        self._group, self._num_actors, self._lag = group, len(env_counts), lag
        (self._envs_per_actor,) = set(env_counts)
        self._first_alone = first_alone
        self._free, self._idle = list(range(lag + 1)), list(range(self._num_actors))
        self._batches: list[_Batch] = []
        self._taken: int | None = None
        self._next: _Batch | None = None
        self._count = 0

    def begin(self) -> None:
        if self._taken is not None:
            self._free.append(self._taken)
            self._taken, self._first_alone = None, False
        self._assign()

    def _assign(self) -> None:
        while self._idle and (batch := self._batch_with_free_columns()) is not None:
            actor = self._idle.pop(0)
            start = batch.assigned * self._envs_per_actor
            batch.assigned += 1
            batch.pending.append(actor)
            self._group.assign(actor, batch.number, batch.block, start)

    def _batch_with_free_columns(self) -> _Batch | None:
        """Return the batch that was begun last, else a new one in a free block; None where no block is free."""
        if not self._batches or self._batches[-1].assigned == self._num_actors:
            if not self._free or (self._count and self._first_alone):
                return None
            self._batches.append(_Batch(self._count, self._free.pop(0), self._group.version))
            self._count += 1
        return self._batches[-1]

    def complete(self) -> bool:
        """Choose the batch to take, if one is complete; end unrolls early if the first batch can't wait."""
        ready = next((batch for batch in self._batches if self._is_full(batch)), None)
        if ready is not None and not self._in_time_after(ready):
            first = self._batches[0]
            self._group.end_early(first.block)
            ready = first if self._is_full(first) else None
        self._next = ready
        return ready is not None

    def _is_full(self, batch: _Batch) -> bool:
        return len(batch.done) == self._num_actors

    def _in_time_after(self, taken: _Batch) -> bool:
        """Return whether the other batches, learned from one after the other, would all be within the lag."""
        version = self._group.version + 1
        others = [batch for batch in self._batches if batch is not taken]
        return all(version + place <= batch.version + self._lag for place, batch in enumerate(others))

    def upcoming(self) -> None:
        """Return None: the next block depends on the time at which the learner takes it."""

    def late_actors(self) -> list[int]:
        return sorted(self._batches[0].pending)

    def finish(self, actor: int, done: Done) -> bool:
        """Record the unroll and assign the actor its next one."""
        batch = next(batch for batch in self._batches if batch.number == done.batch)
        batch.pending.remove(actor)
        batch.done.append(done)
        self._idle.append(actor)
        self._assign()
        return self._is_full(batch)

    def take(self) -> tuple[int, list[Done]]:
        batch = self._next
        assert batch is not None
        self._batches.remove(batch)
        self._taken, self._next = batch.block, None
        return batch.block, batch.done
