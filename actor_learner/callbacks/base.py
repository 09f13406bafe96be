"""Callbacks that use the actors, the learner or the config of a run: their base, and two small ones."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import keras

from actor_learner.runs.meter import EPISODE_WINDOW
from actor_learner.system.fields import check_count, check_number
from actor_learner.system.installation import install_command

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

    `on_update(batch, metrics)` is called after each update that isn't undone, before `on_train_batch_end`.
    `self.actors.episodes` and `self.actors.ended_envs` are of the episodes that ended in this batch.

    What `get_state` returns is kept in checkpoints, and given to `set_state` of the same class where a run is resumed.
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

    def on_update(self, batch: Any, metrics: dict[str, float]) -> None:
        """See the batch of an update, a `Trajectory` (with several policies a dict of them), and the row's metrics.

        It is in the actors' memory, which they fill again: keep a `batch.copy()`.
        """

    def is_settled(self) -> bool:
        """Return whether 100 episodes ended since the start or the last `actors.call`, one of each environment.

        Before, the means over the last 100 episodes (`episode_return`, `episode/is_success`) may be those of episodes
        from before the call, or of the shortest ones.
        """
        return self.callbacks.meter is None or self.callbacks.meter.is_settled(since_call=True)

    def get_state(self) -> dict[str, Any]:
        """Return what the callback needs to go on in a resumed run, such as its counters: JSON."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned; called after `on_train_begin`, where it returned anything."""


_LOG = logging.getLogger("actor_learner")


class StopOnReturn(Callback):
    """Ends the run after the update at which the return reaches a threshold.

    Args:
        threshold: The return to reach.
        episodes: Number of episodes from which on `episode_return`, the mean of the last 100, counts. They end after
            the start of this process, or after the last `actors.call`, and each environment has ended one.
        monitor: "episode_return", or another metric to maximize, such as Evaluate's "evaluation/return_mean".

    Raises:
        ValueError: an argument can't be used; when training begins: there is no such metric.
    """

    def __init__(self, threshold: float, *, episodes: int = EPISODE_WINDOW, monitor: str = "episode_return") -> None:
        super().__init__()
        self.threshold, self.episodes = check_number("threshold", threshold), check_count("episodes", episodes)
        self.monitor = monitor

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        value = (logs or {}).get(self.monitor)
        if value is None or value < self.threshold:
            return
        if self.callbacks.counts(self.monitor, self.episodes):
            _LOG.info("StopOnReturn: %s is %g, at least %g; the run ends.", self.monitor, value, self.threshold)
            self.model.stop_training = True


class WandB(Callback):
    """Logs each update to Weights & Biases, over env steps, with the run's config.

    Args:
        project: Name of the project there.
        settings: Further arguments of `wandb.init`, for instance `mode="offline"`, `name`, `group`. The default name is
            that of the run's directory; wandb's own files are written there, too.

    Raises:
        ImportError: wandb isn't installed.
    """

    _unfinished: ClassVar[Any] = None  # wandb's run of a training that has not ended, or that an exception ended

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        super().__init__()
        if importlib.util.find_spec("wandb") is None:
            raise ImportError(f"WandB needs wandb: {install_command('actor-learner[wandb]')}")
        self.project, self.settings = project, settings
        self._run: Any = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        import wandb

        folder = Path(self.run_dir)
        settings = {"dir": str(folder), "name": folder.name, "config": self.config.to_json()} | self.settings
        if WandB._unfinished is not None:
            WandB._unfinished.finish(exit_code=1)  # wandb.init would return it
        ours = wandb.run is None
        self._run = wandb.init(project=self.project, **settings)
        WandB._unfinished = self._run if ours else None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._run.log(dict(logs or {}), step=self.learner.steps)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self._run.finish()
        WandB._unfinished = None
