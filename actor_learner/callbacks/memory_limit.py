"""Keeps the memory of a run below a limit."""

from __future__ import annotations

import logging
import math
import time

from actor_learner.callbacks.base import Callback
from actor_learner.system.fields import check_choice, check_number
from actor_learner.system.machine import cgroup_limit, size_text
from actor_learner.system.memory import MemorySampler, Usage, measure
from actor_learner.system.policies import ONLY_POLICY
from actor_learner.system.signals import stop_requested

_LOG = logging.getLogger("actor_learner")
_ACTIONS = ("pause", "checkpoint_and_stop", "restart_actors", "shrink_buffer")
_SHARE_OF_CGROUP = 0.95  # the usable share of the cgroup's limit; at all of it, the kernel kills processes
_PAUSE_SECONDS = 1.0


class MemoryLimit(Callback):
    """Keeps the memory of the run below a limit: of this process, its actors, and all their child processes.

    The memory is the proportional set size with swap (a page that n processes share counts 1/n in each), or the
    resident size if the kernel doesn't report that. If a cgroup (a container, a batch job) allows less than
    `gigabytes`, the limit is 95% of that. It is checked after an update, at most every `seconds`.

    "pause" waits, checking each second, until the memory is below the limit again. After `pause_minutes` the run is
    saved and ends. "checkpoint_and_stop" ends it after the current update. "restart_actors" replaces as many of the
    largest actors as needed: for environments that leak. If replacing all of them doesn't help, the run is saved and
    ends. "shrink_buffer" lets a replay buffer forget its oldest env steps, and keeps at least a tenth of its first
    size, or a batch. If that doesn't help, the run is saved and ends.

    Args:
        gigabytes: The limit, in 10^9 bytes.
        action: "pause", "checkpoint_and_stop", "restart_actors" or "shrink_buffer".
        seconds: The least time between two checks; more if measuring takes more than 0.5% of a core.
        pause_minutes: The longest pause.

    Raises:
        ValueError: An argument can't be used; or, when training begins, the memory in use is above the limit.
    """

    def __init__(
        self, gigabytes: float, action: str = "pause", *, seconds: float = 5.0, pause_minutes: float = 60.0
    ) -> None:
        super().__init__()
        for name, value in (("gigabytes", gigabytes), ("seconds", seconds), ("pause_minutes", pause_minutes)):
            check_number(name, value, above=0, most=1e18)
        check_choice("action", action, _ACTIONS)
        self.gigabytes, self.action, self.seconds, self.pause_minutes = gigabytes, action, seconds, pause_minutes
        self._limit = math.inf
        self._num_actors, self._fresh = 0, 0
        self._restarted: dict[int, int] = {}  # actor -> old process, since the memory was below the limit

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        if self.action == "restart_actors" and not self.actors.pids:
            raise ValueError('`action="restart_actors"` needs actor processes. Received: num_actors=0')
        allowed = cgroup_limit()
        self._limit = min(self.gigabytes * 1e9, _SHARE_OF_CGROUP * allowed)
        usage = measure(self.actors.pids)
        if usage.total > self._limit:
            raise ValueError(
                "`gigabytes`, and 95% of what the cgroup allows, must be above what is in use when training begins. "
                f"Received: gigabytes={self.gigabytes:g}, cgroup={size_text(allowed)}, used={size_text(usage.total)}"
            )
        if self._limit < self.gigabytes * 1e9:
            text = "Memory: the limit is %s, 95%% of what the cgroup allows, not the %g GB asked for."
            _LOG.warning(text, size_text(self._limit), self.gigabytes)
        self._check_buffer()
        self._num_actors, self._fresh = len(usage.actors), min(usage.actors.values(), default=0)
        self._restarted = {}
        self._sampler = self._make_sampler(self.seconds)

    def _check_buffer(self) -> None:
        if self.action == "shrink_buffer":
            if ONLY_POLICY not in self.learner.members:
                raise ValueError('`action="shrink_buffer"` is for one policy. Received: several `policies`')
            buffer = self.learner.buffer
            if buffer is None:
                raise ValueError(
                    '`action="shrink_buffer"` needs an algorithm with a replay buffer, such as DQN. '
                    f"Received: {type(self.learner.algorithm).__name__}"
                )
            self._least = max(
                self.learner.algorithm.buffer_size // 10, sum(self.config.env_counts) * buffer.unroll_length
            )

    def _make_sampler(self, seconds: float) -> MemorySampler:
        return MemorySampler(lambda: self.actors.pids, seconds)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self._restarted.items() & self.actors.pids.items():  # the old processes are still ending
            return
        usage = self._sampler.sample()
        if usage is None:
            return
        if usage.total <= self._limit:
            self._restarted.clear()
        elif self.action == "pause":
            self._pause(usage)
        elif self.action == "restart_actors":
            self._restart_actors(usage)
        elif self.action == "shrink_buffer":
            self._shrink_buffer(usage)
        else:
            self._stop(usage)

    def _pause(self, usage: Usage) -> None:
        _LOG.warning("%s Pausing until it is less, at most %g minutes.", self._describe(usage), self.pause_minutes)
        sampler, started = self._make_sampler(_PAUSE_SECONDS), time.monotonic()
        while usage.total > self._limit and not stop_requested():
            if time.monotonic() - started > 60 * self.pause_minutes:
                self._stop(usage, f"A pause of {self.pause_minutes:g} minutes didn't help. ")
                return
            time.sleep(min(_PAUSE_SECONDS, 60 * self.pause_minutes))
            usage = sampler.sample() or usage
        _LOG.warning("The pause is over after %.0f s.", time.monotonic() - started)

    def _restart_actors(self, usage: Usage) -> None:
        """Restarts the largest actors, until their growth since the beginning exceeds the excess."""
        self._num_actors = max(self._num_actors, len(usage.actors))
        excess, chosen = usage.total - self._limit, list[int]()
        for actor in sorted(usage.actors.keys() - self._restarted, key=lambda actor: -usage.actors[actor]):
            if excess > 0:
                excess -= usage.actors[actor] - self._fresh
                chosen.append(actor)
        if not chosen:
            if len(self._restarted) >= self._num_actors:  # else an actor has no process at the moment
                self._stop(usage, "Restarting every actor didn't help. ")
            return
        grown = ", ".join(f"{actor} ({size_text(usage.actors[actor])})" for actor in chosen)
        _LOG.info("%s Restarting the largest actors: %s.", self._describe(usage), grown)
        self._restarted |= {actor: pid for actor, pid in self.actors.pids.items() if actor in chosen}
        self.actors.restart(chosen)

    def _shrink_buffer(self, usage: Usage) -> None:
        """Lets the buffer forget so many of the steps that it holds that a tenth more than the excess is free."""
        buffer = self.learner.buffer
        assert buffer is not None
        held = (buffer.next_column - buffer.first_column) * buffer.unroll_length
        excess = math.ceil(1.1 * (usage.total - self._limit) / buffer.column_bytes) * buffer.unroll_length
        if held <= self._least:
            self._stop(usage, f"The replay buffer holds {held:,} env steps, and keeps {self._least:,} at least. ")
            return
        kept = max(held - excess, self._least)
        text = "%s The replay buffer now keeps %s env steps; it held %s."
        _LOG.warning(text, self._describe(usage), f"{kept:,}", f"{held:,}")
        buffer.shrink(kept)

    def _stop(self, usage: Usage, why: str = "") -> None:
        _LOG.warning("%s %sThe run is saved and ends.", self._describe(usage), why)
        self.model.stop_training = True

    def _describe(self, usage: Usage) -> str:
        return f"Memory: {size_text(usage.total)} are in use, above the limit of {size_text(self._limit)}."
