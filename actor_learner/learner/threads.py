"""The cores that the learner computes on."""

from __future__ import annotations

import warnings

from actor_learner.learner import backend
from actor_learner.system.machine import available_cores


def use_threads(count: int | None) -> None:
    """Let the backend compute on `count` cores; None changes nothing.

    Warns where it has started with another count.
    """
    if count is None:
        return
    try:
        backend.set_threads(count)
    except RuntimeError:
        if (threads := backend.threads()) != count:
            warnings.warn(
                f"{backend.NAME} has started already, with {threads or 'all'} threads, which can't be changed any "
                f"more. Received: learner_threads={count}",
                UserWarning,
                stacklevel=2,
            )


def warn_of_threads(free_cores: int) -> None:
    """Warn if the backend would compute on more cores than the actors leave free."""
    threads = backend.threads()
    if (threads or available_cores()) > free_cores:
        warnings.warn(
            f"{backend.NAME}'s threads and the actors want the same cores, which slows both; before {backend.NAME} is "
            f"imported, set {backend.THREADS}={free_cores}. Received: {threads or 'all'} threads, {available_cores()} "
            "cores",
            UserWarning,
            stacklevel=2,
        )
