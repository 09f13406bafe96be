"""The learner's side of an arena: it holds the blocks, publishes weights and assigns columns to actors."""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from actor_learner.actors.device_acting import StepRows
from actor_learner.actors.group import Plan
from actor_learner.actors.transport.batches import ArenaPlan, Blocks, share_of
from actor_learner.actors.transport.messages import Assignment
from actor_learner.actors.transport.pinned import Pin
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.actors.transport.weights import WeightSlots
from actor_learner.environments.opponents import Opponent
from actor_learner.system.types import Array

_SPARE_SLOTS = 2  # slots beside those that actors may be reading: for the newest version, and for the one being written


class ArenaMemory:
    """An arena, and the assignments that actors haven't finished. Until `allocate` it is empty, without attributes."""

    plan: ArenaPlan
    blocks: list[Blocks]
    step_rows: StepRows | None = None  # where the learner's device acts
    weights: WeightSlots
    opponents: tuple[Opponent, ...] = ()  # of the columns that are assigned from now on
    heartbeats: Array  # `[num_actors]` int64, the counters of the actors' steps
    pin: Pin | None = None

    def __init__(self) -> None:
        self.arena = Arena.create()
        self._stop_words = np.zeros(1, np.int64)
        self._pending: defaultdict[int, dict[int, Assignment]] = defaultdict(dict)
        self._batches: dict[int, int] = {}  # the batch that each block was assigned for last

    def allocate(self, plan: Plan) -> None:
        """Reserve the memory that a plan asks for. Raises MemoryError if there is too little."""
        policy = np.frombuffer(pickle.dumps(plan.exported, pickle.HIGHEST_PROTOCOL), np.uint8)
        weights = np.concatenate([exported.weights for exported in plan.exported.values()])
        places = self.plan = ArenaPlan.of(
            plan.layouts,
            num_actors=len(plan.env_counts),
            num_blocks=plan.num_blocks,
            num_slots=plan.num_versions + _SPARE_SLOTS,
            weights_size=weights.size,
            policy_size=policy.size,
            num_opponents=plan.num_opponents,
            steps=StepRows.fields(plan.one_policy, sum(plan.env_counts)) if plan.step is not None else {},
        )
        self.arena.reserve(places.size)
        parts = places.parts(self.arena)
        self._stop_words = parts.stop_words
        self._stop_words.fill(0)
        parts.heartbeats.fill(0)
        parts.policy[...] = policy
        self.heartbeats = parts.heartbeats[:, 0]
        self.weights = WeightSlots(parts.slots, weights)
        self._frozen = parts.opponents
        self.blocks = parts.blocks
        if parts.steps:
            self.step_rows = StepRows(**parts.steps)
            self.step_rows.inputs.view(np.uint8).fill(0)  # a step is computed for rows that no actor has written, too
        self._env_counts = plan.env_counts
        self.pin = Pin(self.arena)

    @property
    def version(self) -> int:
        return self.weights.newest.number

    def assign(self, actor: int, batch: int, block: int, start: int, calls: int = 0) -> Assignment:
        """Erase columns and return their assignment to an actor, by the newest version of the weights, after calls."""
        if self._batches.get(block) != batch:
            self._batches[block] = batch
            self._stop_words[1 + block] = 0
        version = self.weights.hold_newest()
        assignment = Assignment(batch, block, start, start + self._env_counts[actor], *version, self.opponents, calls)
        self._pending[actor][batch] = assignment
        self._erase(assignment)
        return assignment

    def finish(self, actor: int, batch: int) -> None:
        """Record that an actor has filled its columns of a batch."""
        self.weights.release(self._pending[actor].pop(batch).slot)

    def set_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array]) -> None:
        """Have the columns that are assigned from now on played against these opponents, with these weights.

        frozen: the weights of versions that weren't among the opponents before. They are copied into slots that no
        assignment in progress names.
        """
        kept = {opponent.number: opponent for opponent in self.opponents if opponent.number not in frozen}
        pending = [assignment for by_batch in self._pending.values() for assignment in by_batch.values()]
        held = {opponent.slot for opponent in self.opponents if opponent.number in weights}
        held |= {Opponent(*opponent).slot for assignment in pending for opponent in assignment.opponents}
        free = [slot for slot in range(len(self._frozen)) if slot not in held]
        if len(free) < len(frozen):
            text = f"`frozen` may bring {len(free)} new versions now, since columns in progress need the others"
            raise ValueError(f"{text}. Received: {len(frozen)}")
        found = []
        for number, weight in weights.items():
            opponent = kept.get(number, Opponent(number))
            if number in frozen:
                slot = free.pop(0)
                self._frozen[slot] = frozen[number]
                opponent = Opponent(number, slot, zlib.crc32(self._frozen[slot].data))
            found.append(opponent._replace(weight=weight))
        self.opponents = tuple(found)

    def oldest(self, actor: int) -> Assignment:
        """Return the assignment that an actor with columns to fill is working on, or begins next."""
        return next(iter(self._pending[actor].values()))

    def oldest_version(self) -> int:
        """Return the oldest version of the weights that an actor may act by. May be called with no lock held."""
        # Lists, because other threads change the dicts.
        assignments = [
            assignment for by_batch in list(self._pending.values()) for assignment in list(by_batch.values())
        ]
        return min((assignment.version for assignment in assignments), default=self.version)

    def pending(self, actor: int, batch: int) -> Assignment | None:
        """Return the columns of a batch that an actor hasn't filled yet."""
        return self._pending[actor].get(batch)

    def calls_before(self, actors: Iterable[int], count: int) -> int:
        """Return the number of calls, of `count`, that came before the oldest of these actors' assignments."""
        assignments = (assignment.calls for actor in actors for assignment in self._pending[actor].values())
        return min(assignments, default=count)

    def is_pending(self, actor: int) -> bool:
        return bool(self._pending[actor])

    def assign_again(self, actor: int) -> list[Assignment]:
        """Erase the columns that an actor hasn't finished and return their assignments, the oldest first."""
        assignments = list(self._pending[actor].values())
        for assignment in assignments:
            self._erase(assignment)
        return assignments

    def _erase(self, assignment: Assignment) -> None:
        """Mark every row of an assignment's columns, which are counted over all policies, as unwritten."""
        for block in self.blocks[assignment.block]:
            share = block.layout.spec.num_envs, sum(self._env_counts)
            block.erase(*share_of(*share, assignment.start, assignment.stop))

    def end_early(self, block: int) -> None:
        """End the unrolls in a block after the env step that each is in."""
        self._stop_words[1 + block] = 1

    def ends_early(self, block: int) -> bool:
        """Return whether the unrolls in a block are to end early."""
        return bool(self._stop_words[1 + block])

    def stop(self) -> None:
        """Have all actors give up their unrolls."""
        self._stop_words[0] = 1

    def close(self) -> None:
        """Release the memory; idempotent. `version` stays readable."""
        self._stop_words = self._stop_words.copy()
        self.blocks = []
        self.step_rows = None
        if hasattr(self, "weights"):
            self.weights.close()
            self._frozen = self._frozen[:0].copy()
            self.heartbeats = self.heartbeats.copy()
        if self.pin is not None:
            self.pin.close()
        self.arena.close()
