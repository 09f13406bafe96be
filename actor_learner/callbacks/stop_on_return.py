"""Ends a run that has reached a return."""

from __future__ import annotations

import logging

from actor_learner.callbacks.base import Callback
from actor_learner.system.fields import check_count, check_number

_LOG = logging.getLogger("actor_learner")


class StopOnReturn(Callback):
    """Ends the run after the update at which the return reaches a threshold.

    Args:
        threshold: The return to reach.
        episodes: Number of finished episodes from which on `episode_return`, the mean of the last 100, counts.
        monitor: "episode_return", or another metric to maximize, such as Evaluate's "evaluation/return_mean".

    Raises:
        ValueError: an argument can't be used; when training begins: there is no such metric.
    """

    def __init__(self, threshold: float, *, episodes: int = 100, monitor: str = "episode_return") -> None:
        super().__init__()
        self.threshold, self.episodes = check_number("threshold", threshold), check_count("episodes", episodes)
        self.monitor = monitor
        self._finished = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._finished = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        found = self.actors.episodes
        policy = self.monitor.partition("/")[0]
        of_policies = [found] if "return" in found else [found[policy]] if policy in found else list(found.values())
        self._finished += min(len(episodes["return"]) for episodes in of_policies)
        value = (logs or {}).get(self.monitor)
        if value is None or value < self.threshold:
            return
        if self.monitor != "episode_return" or self._finished >= self.episodes:
            _LOG.info("StopOnReturn: %s is %g, at least %g; the run ends.", self.monitor, value, self.threshold)
            self.model.stop_training = True
