"""Checks of the memory that actors need: before any is started, and by the size of the first one."""

from __future__ import annotations

from actor_learner.system.machine import available_memory, size_text
from actor_learner.system.memory import own_memory

MIN_ACTOR_BYTES = 20_000_000
"""Bytes that an actor needs at least; 24 MB with one CartPole-v1 environment."""
_LARGE_SHARE = 0.25  # the share of the available memory from which on the first actor is measured before others start


def check_memory(num_actors: int, available: int | None = None) -> None:
    """Raise MemoryError if so many actors can't fit into `available` bytes; None: what the system and cgroups leave."""
    _check(num_actors, num_actors, MIN_ACTOR_BYTES, "at least", available)


def starts_with_one(num_actors: int, available: int | None = None) -> bool:
    """Return whether to measure the first actor before others start: only where memory might run out."""
    available = available_memory() if available is None else available
    return available is not None and num_actors * MIN_ACTOR_BYTES > _LARGE_SHARE * available


def check_rest(num_actors: int, first: int, available: int | None = None) -> None:
    """Raise MemoryError if the actors beside the first, whose process id is `first`, can't fit at its size."""
    _check(num_actors, num_actors - 1, own_memory(first), "as measured of the first", available)


def _check(num_actors: int, count: int, size: int, how: str, available: int | None) -> None:
    available = available_memory() if available is None else available
    if available is not None and count * size > available:
        needed = f"{size_text(num_actors * size)} are needed ({size / 1e6:.0f} MB each, {how})"
        raise MemoryError(
            f"So many actors don't fit into memory: {needed}, {size_text(available)} are available; "
            f"lower `num_actors`. Received: num_actors={num_actors}"
        )
