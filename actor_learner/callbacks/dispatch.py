"""When the callbacks of a run are called, and with what: as `Model.fit` does it, an update being a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from actor_learner.callbacks.base import Callback
from actor_learner.callbacks.checks import (
    check_averages,
    check_callbacks,
    check_packages,
    check_rate,
    reported,
    resolve_monitors,
    watches,
)
from actor_learner.runs.recorder import metric_names

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner

_LOG = logging.getLogger("actor_learner")


class RunCallbacks:
    """The callbacks of a run: told about it, then called in their order, each hook with its own copy of the metrics.

    An exception that one raises gets a note that names it.

    Args:
        callbacks: Keras callbacks; lists of them are taken apart.
        params: what `self.params` of each is; "epochs" and "steps" are the planned epochs, and the updates in one.
        batch_rows: env steps in a batch.

    Raises:
        ValueError: one monitors a metric that there won't be, or sets a learning rate that something else sets.
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        *,
        actors: ActorPool,
        learner: Learner,
        config: TrainConfig,
        params: dict[str, Any],
        batch_rows: int,
    ) -> None:
        callbacks = list(callbacks)
        check_callbacks(callbacks)
        self._callbacks = list(_flat(callbacks))
        self._actors, self._learner, self._config = actors, learner, config
        self._params, self._batch_rows = params, batch_rows
        self._reports = reported(self._callbacks)
        self._names: list[str] = []
        self._of_epoch: dict[str, float] = {}
        check_packages(self._callbacks)
        check_rate(self._callbacks, learner.algorithm, learner.optimizer)
        check_averages(self._callbacks, learner.optimizer)
        if watches(self._callbacks):
            learned = learner.trace(actors.blank_trajectory())
            self._names = [*metric_names(config, learned), *self._reports]
            resolve_monitors(self._callbacks, self._names)
        self._tell()

    def _tell(self) -> None:
        self._learner.network.stop_training = False
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                callback.actors, callback.learner, callback.config = self._actors, self._learner, self._config
                callback.callbacks = self
            callback.set_params(self._params)
            callback.set_model(self._learner.network)

    @property
    def _updates_per_epoch(self) -> int:
        return int(self._params["steps"])

    @property
    def epoch_is_over(self) -> bool:
        """Whether the last update was an epoch's last."""
        return self._learner.updates % self._updates_per_epoch == 0

    def begin(self) -> None:
        """Training begins, perhaps with an epoch and weights that BackupAndRestore gives back."""
        network, before = self._learner.network, self._learner.get_weights()
        network._initial_epoch = None
        self.call("on_train_begin", {}, but=self._backups() if self._learner.updates else ())
        if network._initial_epoch:
            self._skip(network._initial_epoch)
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.keys = sorted(self._names)  # it would take those of the first epoch, when some have no value
        after = self._learner.get_weights()
        if not all(map(np.array_equal, before, after)):
            self._actors.publish(after)
        self.next_update(first=True)

    def _backups(self) -> list[Any]:
        """Those that would give back other weights than those of the checkpoint that the run goes on from."""
        backups = [one for one in self._callbacks if isinstance(one, keras.callbacks.BackupAndRestore)]
        if backups:
            _LOG.info("The run goes on from its own checkpoint; what BackupAndRestore has kept isn't restored.")
        return backups

    def _skip(self, epochs: int) -> None:
        """Counts these epochs as done, as planned."""
        learner = self._learner
        learner.updates = epochs * self._updates_per_epoch
        learner.env_steps = learner.updates * self._batch_rows
        if learner.env_steps >= self._config.total_steps:
            raise ValueError(
                "`backup_dir` of BackupAndRestore holds a run that has taken all of its epochs: remove it to begin "
                f"anew, or let total_steps grow. Received: {epochs} epochs of {self._params['epochs']}"
            )
        _LOG.info("BackupAndRestore: the run goes on with epoch %d, at %d env steps", epochs + 1, learner.env_steps)

    def next_update(self, *, first: bool = False) -> None:
        """An update is to come; the first one of an epoch, or of this process, begins the epoch."""
        epoch, batch = divmod(self._learner.updates, self._updates_per_epoch)
        if first or not batch:
            self.call("on_epoch_begin", epoch, {})
        self.call("on_train_batch_begin", batch, logs={})

    def update_ended(self, metrics: dict[str, float]) -> None:
        """An update was made, or undone. What callbacks report is added to `metrics`."""
        if "undone" in metrics:
            self._update_undone(metrics)
            return
        logs, batch = dict(metrics), (self._learner.updates - 1) % self._updates_per_epoch
        reporting = [one for one in self._callbacks if getattr(one, "reports", ())]
        others = [one for one in self._callbacks if one not in reporting]
        self.call("on_train_batch_end", batch, logs=logs, but=others)
        self.call("on_train_batch_end", batch, logs=logs, but=reporting)
        found = {name: _number(name, logs[name]) for name in self._reports if name in logs}
        metrics.update(found)
        self._of_epoch |= found

    def _update_undone(self, metrics: dict[str, float]) -> None:
        """It is no batch, but who ends a run at the first NaN must hear of it."""
        others = [one for one in self._callbacks if not isinstance(one, keras.callbacks.TerminateOnNaN)]
        batch = self._learner.updates % self._updates_per_epoch
        self.call("on_train_batch_end", batch, logs=dict(metrics), but=others)

    def epoch_ended(self, metrics: dict[str, float]) -> None:
        """An epoch is over, or the run is."""
        epoch = (self._learner.updates - 1) // self._updates_per_epoch
        if self._learner.env_steps < self._config.total_steps:  # rows that only reset make it longer than planned
            self._params["epochs"] = max(self._params["epochs"], epoch + 2)
        self.call("on_epoch_end", epoch, metrics | self._of_epoch)
        self._of_epoch.clear()

    def end(self, metrics: dict[str, float], *, interrupted: bool) -> None:
        """The run ends; what it leaves is what the network has afterwards."""
        if not self.epoch_is_over:
            self.epoch_ended(metrics)
        if not any(getattr(one, "_ema_weights_in_model", False) for one in self._callbacks):
            self._learner.optimizer.finalize_variable_values(self._learner.network.trainable_variables)
        backups = [one for one in self._callbacks if isinstance(one, keras.callbacks.BackupAndRestore)]
        self.call("on_train_end", dict(metrics), but=backups if interrupted else ())

    def call(self, hook: str, *args: Any, but: Iterable[Any] = (), **kwargs: Any) -> None:
        """Calls a hook of each callback, but for some."""
        left_out = {id(callback) for callback in but}
        for callback in self._callbacks:
            if id(callback) in left_out:
                continue
            try:
                getattr(callback, hook)(*args, **kwargs)
            except Exception as error:
                error.add_note(f"In the callback {type(callback).__name__}, {hook}.")
                raise


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"The metric {name!r}, which a callback `reports`, must be a number. Received: {value!r}"
        ) from error


def _flat(callbacks: Iterable[Any]) -> Iterator[Any]:
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CallbackList):
            yield from _flat(callback.callbacks)
        else:
            yield callback
