"""The seam between a pool and its actors: a group gets a plan, owns the memory of the batches and fills them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from actor_learner.actors.transport.batches import Block, BlockLayout, Blocks, share_of
from actor_learner.actors.transport.messages import Done
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.calls import Call, Calls
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import TrajectorySpec
from actor_learner.system.types import Array, Tensor

if TYPE_CHECKING:
    from actor_learner.learner.acting import DeviceStep

CLOSED = "The pool is closed; make another."
TAKEOVER = 1 << 20
"""Added to the incarnation of an actor that takes over from another machine's: more than one is ever replaced."""


class ActorError(RuntimeError):
    """The error of an actor that failed or died.

    traceback: of its exception, or None. exit_code: of its process, minus the signal if it was one, or None.
    """

    def __init__(self, message: str, actor: int, *, traceback: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.actor, self.traceback, self.exit_code = actor, traceback, exit_code


class Restart(NamedTuple):
    """The replacement of an actor's process."""

    actor: int
    incarnation: int  # the number of processes that had this actor's number before
    cause: str  # the end of the process before, in one line
    details: str  # its traceback, or the last lines that it printed; "" without either
    seconds: float  # the time from the end of the process before until the new one continued with its columns

    def __str__(self) -> str:
        return (
            f"Actor {self.actor} {self.cause}; another process took its place after {self.seconds:.2f} s "
            f"(incarnation {self.incarnation % TAKEOVER}, with random numbers of its own)"
        )


class HostStatus(NamedTuple):
    """A machine that runs actors, and what has come from it so far."""

    name: str
    actors: tuple[int, ...]
    num_envs: int
    received: int = 0  # bytes over the network
    receiving: float = 0.0  # seconds that the learner's machine spent on receiving columns


@dataclass(frozen=True)
class Plan:
    """The work of a group: the batches that it fills, and the policy that it fills them with."""

    layouts: tuple[BlockLayout, ...]  # the fields of each policy's batches, the columns of all actors included
    env_counts: Sequence[int]  # the number of environments of each actor
    num_blocks: int  # batches that exist at a time, the one that the learner reads included
    num_versions: int  # versions of the weights that actors read at a time, at most
    exported: Mapping[str, ExportedPolicy]  # the policies by name, with version 0 of the weights
    step: DeviceStep | None = None  # acts for all actors in their place
    num_opponents: int = 0  # frozen versions of the weights that exist at a time

    @classmethod
    def of(
        cls,
        settings: PoolSettings,
        spaces: Mapping[str, Spaces],
        exported: Mapping[str, ExportedPolicy],
        env_counts: Sequence[int],
        step: DeviceStep | None = None,
    ) -> Plan:
        layouts, of_game = [], sum(own.share for own in spaces.values())
        for name, own in spaces.items():
            (num_envs,) = share_of(own.share, of_game, sum(env_counts))
            sizes = {"unroll_length": settings.unroll_length, "num_envs": num_envs}
            spec = TrajectorySpec.from_spaces(own, **sizes, state_shapes=exported[name].state_shapes)
            layouts.append(BlockLayout.of(spec, settings.recorded_keys))
        lag = settings.max_policy_lag
        num_versions = len(env_counts) if settings.asynchronous else lag + 1
        # An assignment in progress may name versions that were dropped by one change of the table for each version.
        num_opponents = 0 if settings.self_play is None else settings.self_play.size + lag + 2
        return cls(tuple(layouts), env_counts, lag + 1, num_versions, exported, step, num_opponents)

    @property
    def one_policy(self) -> ExportedPolicy:
        """The policy of a plan that has only one."""
        (exported,) = self.exported.values()
        return exported

    @property
    def one_layout(self) -> BlockLayout:
        """The layout of a plan that has only one policy."""
        (layout,) = self.layouts
        return layout


class ColumnSchedule(Protocol):
    """The order in which batches are filled. Its methods are called with the group's lock held."""

    def begin(self) -> None:
        """Assign all columns that are due when the caller collects. The last batch's block is free from here on."""

    def complete(self) -> bool:
        """Return whether there is a batch to take."""

    def upcoming(self) -> int | None:
        """Return the block that `take` will return next, once it is complete and certain. Changes nothing."""

    def late_actors(self) -> list[int]:
        """Return the actors that the batch is waiting for."""

    def finish(self, actor: int, done: Done) -> bool:
        """Record that an actor has filled its columns. Returns whether `complete` may have become true."""

    def take(self) -> tuple[int, list[Done]]:
        """Return the block of the complete batch, and how its actors spent their time."""


class ActorGroup(Protocol):
    """The actors of a pool, wherever they run. Its memory may be of any kind that NumPy can view.

    A group subclasses this Protocol and implements what has no default here: `spaces`, `begin`, `version`, `publish`,
    `assign` and `wait`. The pool calls `start`, `spaces`, `begin`, and then all others; `close` may come at any time.
    """

    acts_on_device: bool = False
    """True if the policy always runs on the learner's device, by `Plan.step`."""

    calls: Calls  # the calls of the environments' methods that an actor makes before its first unroll
    closed: bool = False
    lock: contextlib.AbstractContextManager[Any, Any] = contextlib.nullcontext()
    """Held while a method of the schedule runs, because a group may call them from a thread of its own."""

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """The newest version of the weights: the number of calls of `publish`."""

    @property
    def restart_count(self) -> int:
        """The number of replacements so far."""
        return 0

    @property
    def idle(self) -> bool:
        """True where the actors have filled all columns that were assigned to them."""
        return True

    def start(self) -> None:
        """Start the actors. The constructor doesn't, so that a caller who is interrupted here can still `close`."""

    @abc.abstractmethod
    def spaces(self, seconds: float) -> dict[str, Spaces]:
        """Return the spaces of each policy's environments, by its name, once all actors have made and reset theirs.

        Raises EnvError if an environment can't be made or reset, or if the actors' spaces differ; TimeoutError if some
        actors aren't ready after so many seconds.
        """

    @abc.abstractmethod
    def begin(self, plan: Plan, schedule: ColumnSchedule) -> Sequence[Blocks]:
        """Allocate the memory that the plan asks for and give the actors the policy.

        From then on the group calls `schedule.finish` for each finished unroll. Returns the blocks, in the order of the
        numbers that `assign` takes.
        """

    @abc.abstractmethod
    def publish(self, weights: Array) -> None:
        """Copy the next version of all policies' weights, one float32 vector, for the actors."""

    def act_ahead(self, weights: Tensor) -> tuple[Block, bool] | None:
        """Begin the next unroll, as if these weights on the device were published next.

        Returns its block, and whether these weights act there; None where nothing is begun.
        """
        raise RuntimeError(f"{type(self).__name__} doesn't act on the learner's device")

    @abc.abstractmethod
    def assign(self, actor: int, batch: int, block: int, start: int) -> None:
        """Erase the columns of a block from `start` on, as many as an actor has, and assign them to this actor.

        The actor, or the process that takes its place, fills them by the newest version of the weights at this time.
        """

    def set_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array]) -> None:
        """Have the columns that are assigned from now on played against these opponents; see `ActorPool`."""
        raise RuntimeError(f"{type(self).__name__} doesn't support self_play")

    def end_early(self, block: int) -> None:
        """End each unroll that fills a block after its env step. Only `asynchronous` needs it."""
        raise RuntimeError(f"{type(self).__name__} doesn't support asynchronous=True")

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Return as soon as `schedule.complete()` is true.

        Raises TimeoutError after so many seconds, naming the late actors; ActorError if an actor that failed or died
        isn't replaced.
        """

    def check(self) -> None:
        """Raise the error that ended the actors, if any did; RuntimeError after `close`."""
        if self.closed:
            raise RuntimeError(CLOSED)

    def call(self, call: Call) -> None:
        """Have each actor call a method of its environments before the next unroll that is assigned to it.

        Raises CallError if the environments are known to refuse it, ValueError if it is too large.
        """
        with self.lock:
            self.calls.add(call)

    def take_restarts(self) -> list[Restart]:
        """Return the replacements since the last time."""
        return []

    def replace(self, actors: Iterable[int]) -> None:
        """End these actors' processes soon and start others in their places."""
        raise ValueError("Only actors that have processes of their own can be replaced. Received: num_actors=0")

    def hosts(self) -> list[HostStatus]:
        """Return the machines that run actors, if there are several."""
        return []

    def process_ids(self) -> dict[int, int]:
        """Return the process id of each actor that has a process now."""
        return {}

    def close(self) -> None:
        """End the actors; idempotent, from any thread."""
