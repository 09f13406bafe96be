"""The base of callbacks that use the actors, the learner or the config of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.callbacks.dispatch import RunCallbacks
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback with the run's `actors`, `learner` and `config`.

    A batch is an update; the argument `batch` counts from 0 within an epoch, `logs["updates"]` over the whole run.
    `logs` carry the metrics of metrics.jsonl. `self.model` is the network, and `self.model.stop_training = True` ends
    the run after the current update. `self.actors.call("set_difficulty", 3)` calls a method of every environment.

    A callback that names metrics in `reports` may put them into the `logs` of `on_train_batch_end`. They go to
    metrics.jsonl and to the `logs` of that epoch's end, and other callbacks may monitor them. A dict also names the
    better direction: `{"success": "max", "distance": "min"}`. A value under any other name is dropped, with a warning.
    """

    actors: ActorPool
    learner: Learner
    config: TrainConfig
    callbacks: RunCallbacks
    reports: Collection[str] = ()

    @property
    def run_dir(self) -> Any:
        """The run's directory, a Path."""
        return self.params["run_dir"]
