"""The base of callbacks that need more of a run than Keras gives them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback that knows the run's `actors`, `learner` and `config`.

    A batch is an update; `logs` carry the metrics of metrics.jsonl. `self.model` is the network, and
    `self.model.stop_training = True` ends the run after the current update. `self.actors.call("set_difficulty", 3)`
    calls a method of every environment.

    A callback that names metrics in `reports` may put them into the `logs` of `on_train_batch_end`. They stand in
    metrics.jsonl then and in the `logs` of that epoch's end, and others may monitor them. As a dict it says which way
    is better: `{"success": "max", "distance": "min"}`.
    """

    actors: ActorPool
    learner: Learner
    config: TrainConfig
    callbacks: Any
    """All of the run, in their order."""
    reports: Collection[str] = ()

    @property
    def run_dir(self) -> Any:
        """The run's directory, a Path."""
        return self.params["run_dir"]
