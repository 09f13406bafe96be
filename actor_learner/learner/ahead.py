"""While the device computes: the next batch's order of rows, its copy to the device, or its unroll and update there."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.learner.learner import Learner

Upcoming = Callable[[], Trajectory | None]
Order = tuple[Array, int]  # and the number of its minibatches
Draw = Callable[[Array, np.random.Generator], Order]

_POLL_SECONDS = 0.0005
_THREAD_TIMEOUT = 60.0  # seconds, for a thread that only draws numbers


_T = TypeVar("_T")


class Guess(Generic[_T]):
    """What is begun before it is asked for. After each wrong guess in a row it pauses twice as long."""

    def __init__(self) -> None:
        self._begun: _T | None = None
        self._wrong, self._skipped = 0, 0.0  # what isn't begun: after the last wrong guess, and from now

    def begin(self, begin: Callable[[], _T]) -> _T | None:
        """Return what `begin` returns, for `take`; None where something waits for it, in a pause, or if it fails."""
        if self._begun is not None:
            return None
        if self._skipped:
            self._skipped -= 1
            return None
        try:
            self._begun = begin()
        except Exception:  # memory is too small for two at a time; any other error comes again, where it is asked for
            self._skipped = math.inf
        return self._begun

    def take(self, fits: Callable[[_T], bool]) -> _T | None:
        """Return what has begun, if it fits. It is dropped otherwise."""
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        fitting = fits(begun)
        self._skipped = self._wrong = 0 if fitting else 2 * self._wrong + 1
        return begun if fitting else None


class OrderAhead:
    """The order that `draw(valid, generator)` gives for a batch all of whose rows are valid, from now on in a thread.

    It draws from a copy of the generator, whose own state changes only where the order is taken.
    """

    def __init__(self, draw: Draw, shape: tuple[int, ...], generator: np.random.Generator) -> None:
        self._draw, self._shape, self._before = draw, shape, generator.bit_generator.state
        self._generator = copy.deepcopy(generator)
        self._order: Order | None = None
        self._thread = threading.Thread(target=self._run, name="order of rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._order = self._draw(np.ones(self._shape, bool), self._generator)

    def take(self, valid: Array, generator: np.random.Generator) -> Order | None:
        """Return the order if `draw` would return it now, and set the generator as after that; else None."""
        self._thread.join(_THREAD_TIMEOUT)
        if self._order is None or valid.shape != self._shape or not valid.all():
            return None
        if generator.bit_generator.state != self._before:  # an update was undone
            return None
        generator.bit_generator.state = self._generator.bit_generator.state
        return self._order


def weights_for(actors: ActorPool, learner: Any) -> Callable[[], Any]:
    """Return the function that gives the learner's weights for `actors.publish`: a `Learner`'s, or a `Team`'s.

    Environments in JAX get them on the device, and begin their next unroll while it computes an update. The update of
    that unroll is begun, too.
    """
    if not actors.acts_on_device:
        return learner.flat_weights  # type: ignore[no-any-return]

    def go_on() -> None:
        if learner.total_steps is not None and learner.steps >= learner.total_steps:
            return
        weights = learner.device_weights()
        if (upcoming := actors.act_ahead(weights)) is not None:
            learner.update_ahead(*upcoming)

    learner.meanwhile = go_on
    return learner.device_weights  # type: ignore[no-any-return]


@contextlib.contextmanager
def prefetching(upcoming: Upcoming, learner: Learner, *, useful: bool = True) -> Iterator[None]:
    """Copy the next batch to the device as soon as it is complete, while the body runs `learner.update`.

    The copy ends with the body, before the next `collect` reuses the batch's shared memory. upcoming: Returns the next
    batch if it is complete (`ActorPool.upcoming`). useful: False does nothing; on a CPU a copy costs the time that it
    saves.
    """
    if not useful:
        yield
        return
    over = threading.Event()
    arguments = (upcoming, learner, learner.begun, over)
    thread = threading.Thread(target=_copy_next, args=arguments, name="prefetch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _copy_next(upcoming: Upcoming, learner: Learner, begun: int, over: threading.Event) -> None:
    """Wait for the update to begin, which drops earlier copies, then copy. begun: The updates that began before it."""
    while not over.wait(_POLL_SECONDS):
        if learner.begun > begun and (trajectory := upcoming()) is not None:
            with contextlib.suppress(ValueError, MemoryError):  # the update of this batch raises it again
                learner.prefetch(trajectory)
            return
