"""Copies the next batch to the device while the learner computes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actor_learner.learner.learner import Learner
    from actor_learner.spaces.trajectory import Trajectory

    Upcoming = Callable[[], Trajectory | None]

_POLL_SECONDS = 0.0005


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
