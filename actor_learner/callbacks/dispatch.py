"""Calls the callbacks of a run as `Model.fit` does; an update is a batch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from actor_learner.callbacks import checks, state
from actor_learner.callbacks.base import Callback
from actor_learner.config.references import resolve_recorded
from actor_learner.runs.checkpoints import TRAINING_RETURN
from actor_learner.runs.meter import EPISODE_WINDOW, Meter, check_apart, metric_names, of_episodes
from actor_learner.system.fields import misfit, refusal
from actor_learner.system.files import write_arrays
from actor_learner.system.policies import ONLY_POLICY

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner

_LOG = logging.getLogger("actor_learner")


def make_callbacks(callbacks: Iterable[Any]) -> list[Any]:
    """Return callbacks as objects: a name, "module:factory", is imported and called.

    Raises ValueError for a name that can't be imported, and for what is no Keras callback.
    """
    made = [_make(callback) if isinstance(callback, str) else callback for callback in callbacks]
    checks.check_callbacks(made)
    return made


def first_evaluation(callbacks: Iterable[Any]) -> Any:
    """Return the first callback that evaluates the policy, as `Evaluate` does; None without any."""
    return next((one for one in _flat(callbacks) if hasattr(one, "return_metric")), None)


def _make(reference: str) -> Any:
    factory = resolve_recorded(reference, "callback")
    if error := misfit(factory):
        raise refusal("callback", f"a function that can be called without arguments ({error})", reference) from error
    if not isinstance(callback := factory(), keras.callbacks.Callback):
        raise refusal("callback", f"a function that returns a Keras callback, not {callback!r}", reference)
    return callback


class RunCallbacks:
    """The callbacks of a run, called in their order, each hook with its own copy of the metrics.

    An exception gets a note with the name of the callback that raises it.

    callbacks: what `make_callbacks` returns; Keras's lists of them are unpacked. params: `self.params` of each;
    "epochs" is the number of planned epochs, "steps" that of updates in an epoch. batch_rows: env steps in a batch.

    stopped_by: the class of the callback that ended the run early, or None. meter: tells which returns count; all do
    without one.

    Raises ValueError if a callback monitors an unknown metric, or sets a learning rate that is set elsewhere.
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
        self._callbacks = list(_flat(callbacks))
        self._actors, self._learner, self._config = actors, learner, config
        self._params, self._batch_rows, self._updates_per_epoch = params, batch_rows, int(params["steps"])
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                callback.actors, callback.learner, callback.config, callback.callbacks = actors, learner, config, self
            callback.set_params(params)
            callback.set_model(learner.network)
        self._reports = checks.reported(self._callbacks)
        check_apart(self._reports, frozenset(metric_names(config, ())), "Metrics that a callback reports")
        self._names: list[str] = []
        self._reported: dict[str, float] = {}
        self._has_warned = self._has_warned_of_rate = False
        self._rate: float | None = None  # the learning rate of the last update, where a schedule writes it at each
        self._judging = {id(callback): needed for callback in self._callbacks if (needed := checks.needed(callback))}
        self._idle = set(self._judging)  # those that have had no value yet
        self._blind = [
            one for one in self._callbacks if not isinstance(one, Callback) or type(one).on_update is Callback.on_update
        ]
        self.stopped_by: str | None = None
        self.meter: Meter | None = None
        if ONLY_POLICY not in learner.members:
            checks.check_several(self._callbacks)
        for member in learner.members.values():
            checks.check_rate(self._callbacks, member.algorithm)
            checks.check_kinds(self._callbacks, member.algorithm, member.optimizer)
        if checks.watches(self._callbacks):
            learned = learner.trace(actors.blank_trajectory())
            self._names = [*metric_names(config, learned), *self._reports]
            checks.resolve_monitors(self._callbacks, self._names)
        learner.network.stop_training = False

    @property
    def epoch_is_over(self) -> bool:
        """True after the last update of an epoch."""
        return self._learner.updates % self._updates_per_epoch == 0

    def write_states(self, folder: Path) -> None:
        """Write the callbacks' own states into a checkpoint."""
        if arrays := state.arrays_of(self._callbacks):
            write_arrays(folder / state.FILE, arrays)

    def begin(self, checkpoint: Path | None = None) -> None:
        """Begins training, perhaps with the epoch and weights that BackupAndRestore restores.

        checkpoint: The folder from which the run is resumed.
        """
        network, before = self._learner.network, self._learner.get_weights()
        network._initial_epoch = None
        backups = self._of_kind(keras.callbacks.BackupAndRestore) if self._learner.updates else []
        if backups:  # they would replace the weights of the checkpoint from which the run resumes
            _LOG.info("The run resumes from its own checkpoint; the backup of BackupAndRestore isn't restored.")
        self.call("on_train_begin", {}, but=backups)
        if network._initial_epoch:
            self._skip(network._initial_epoch)
        if checkpoint is not None:
            state.restore(self._callbacks, checkpoint)
        state.arrays_of(self._callbacks)  # raises before anything is learned
        for callback in self._of_kind(keras.callbacks.CSVLogger):
            callback.keys = sorted(self._names)  # by default those of the first epoch, when some have no value
        self.next_update(first=True)
        after = self._learner.get_weights()
        if not all(map(np.array_equal, before, after)):
            self._actors.publish(self._learner.flat_weights())

    def _of_kind(self, kind: type[Any]) -> list[Any]:
        return [callback for callback in self._callbacks if isinstance(callback, kind)]

    def _skip(self, epochs: int) -> None:
        learner = self._learner
        learner.updates = epochs * self._updates_per_epoch
        learner.env_steps = learner.updates * self._batch_rows
        if learner.steps >= self._config.all_steps:
            raise ValueError(
                "`backup_dir` of BackupAndRestore holds a run that has finished all its epochs: remove it to begin "
                f"again, or increase total_steps. Received: {epochs} epochs of {self._params['epochs']}"
            )
        _LOG.info("BackupAndRestore: the run resumes with epoch %d, at %d env steps", epochs + 1, learner.env_steps)

    def next_update(self, *, first: bool = False) -> None:
        """Begins an update, and its epoch if it is the first of the epoch or of this process."""
        self._warn_of_rate()
        epoch, batch = divmod(self._learner.updates, self._updates_per_epoch)
        if first or not batch:
            self.call("on_epoch_begin", epoch, {})
        self.call("on_train_batch_begin", batch, logs={})

    def update_ended(self, metrics: dict[str, float], trajectory: Any = None) -> None:
        """End an update, show the callbacks its batch, if it has one, and add what they report to `metrics`."""
        if "undone" in metrics:
            self._update_undone(metrics)
            return
        only = self._learner.members.get(ONLY_POLICY)
        if not self._has_warned_of_rate and only is not None and only.algorithm.changes_learning_rate:
            self._rate = metrics.get("learning_rate")
        if trajectory is not None:
            self.call("on_update", trajectory, dict(metrics), but=self._blind)
        logs, batch = dict(metrics), (self._learner.updates - 1) % self._updates_per_epoch
        reporting = [one for one in self._callbacks if getattr(one, "reports", ())]
        others = [one for one in self._callbacks if one not in reporting]
        self.call("on_train_batch_end", batch, logs=logs, but=others)
        self.call("on_train_batch_end", batch, logs=logs, but=[*reporting, *self._without_values(logs)])
        found = {name: _number(name, logs[name]) for name in self._reports if name in logs}
        self._warn_of_dropped(metrics | {name: logs[name] for name in found}, logs)
        metrics.update(found)
        self._reported |= found

    def _without_values(self, logs: Mapping[str, Any]) -> list[Any]:
        """Return the callbacks that lack a metric by which they decide: to them, an epoch without it is none."""
        judging = [callback for callback in self._callbacks if id(callback) in self._judging]
        lacking = [callback for callback in judging if not self._can_judge(callback, logs)]
        self._idle &= set(map(id, lacking))
        return lacking

    def _can_judge(self, callback: Any, logs: Mapping[str, Any]) -> bool:
        monitor = checks.monitored(callback)
        has_values = all(name in logs for name in self._judging[id(callback)])
        return has_values and (monitor is None or self.counts(monitor))

    def counts(self, metric: str, episodes: int = EPISODE_WINDOW) -> bool:
        """Return whether a metric says how good the policy is: of training, not before so many episodes ended."""
        of_training = of_episodes(metric) and metric not in self._reports
        return self.meter is None or not of_training or self.meter.is_settled(episodes)

    def best_metric(self, best_by: str) -> tuple[str, bool, Any]:
        """Return the metric of the best checkpoint, whether `actors.call` changes what it is of, and its Evaluate.

        Raises ValueError for an evaluation that isn't there.
        """
        found = first_evaluation(self._callbacks)
        if best_by == "evaluation" and found is None:
            raise refusal("best_by", "'auto' or 'training' without an al.callbacks.Evaluate", best_by)
        if best_by == "training" or found is None:
            return TRAINING_RETURN, True, None
        return found.return_metric, getattr(found, "repeats_calls", False), found

    def _warn_of_dropped(self, kept: Mapping[str, Any], logs: Mapping[str, Any]) -> None:
        """Warn, once, of values that a callback has put into `logs` and that go nowhere."""
        dropped = [name for name, value in logs.items() if name not in kept or value is not kept[name]]
        dropped = [name for name in dropped if name != "learning_rate"]  # Keras's callbacks put the one they set
        if dropped and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "A callback put %r into `logs`, from where it doesn't reach metrics.jsonl: name it in `reports` of an "
                "al.callbacks.Callback, and put it into the `logs` of on_train_batch_end.",
                dropped[0],
            )

    def _warn_of_rate(self) -> None:
        """Warn, once, of a learning rate that a callback has set and that the schedule replaces at the next update."""
        rate, self._rate = self._rate, None
        if rate is None or float(ops.convert_to_numpy(self._learner.optimizer.learning_rate)) == rate:
            return
        self._has_warned_of_rate = True
        _LOG.warning(
            "A callback set the learning rate, but the schedule learning_rate=%r sets it anew at each update: leave "
            "one of the two out.",
            self._learner.algorithm.learning_rate,
        )

    def _update_undone(self, metrics: dict[str, float]) -> None:
        """Call TerminateOnNaN alone: an undone update is no batch, but may have to end the run."""
        others = [one for one in self._callbacks if not isinstance(one, keras.callbacks.TerminateOnNaN)]
        batch = self._learner.updates % self._updates_per_epoch
        self.call("on_train_batch_end", batch, logs={"loss": math.nan, **metrics}, but=others)

    def epoch_ended(self, metrics: dict[str, float]) -> None:
        """End an epoch, perhaps early because the run ends."""
        epoch = (self._learner.updates - 1) // self._updates_per_epoch
        if self._learner.steps < self._config.all_steps:  # rows that only reset add epochs to the plan
            self._params["epochs"] = max(self._params["epochs"], epoch + 2)
        kept = metrics | self._reported
        self.call("on_epoch_end", epoch, logs := dict(kept), but=self._without_values(kept))
        self._warn_of_dropped(kept, logs)
        self._reported.clear()

    def end(self, metrics: dict[str, float], *, interrupted: bool) -> None:
        """End the run. The network's weights afterwards are the result."""
        if not self.epoch_is_over:
            self.epoch_ended(metrics)
        for callback in self._callbacks:
            if id(callback) in self._idle:
                needed = " and ".join(map(repr, self._judging[id(callback)]))
                _LOG.warning("%s did nothing: there was no value of %s that counts.", type(callback).__name__, needed)
        if not any(getattr(one, "_ema_weights_in_model", False) for one in self._callbacks):
            for member in self._learner.members.values():
                member.optimizer.finalize_variable_values(member.network.trainable_variables)
        backups = self._of_kind(keras.callbacks.BackupAndRestore)
        self.call("on_train_end", dict(metrics), but=backups if interrupted else ())

    def call(self, hook: str, *args: Any, but: Iterable[Any] = (), **kwargs: Any) -> None:
        """Call a hook of each callback except those of `but`."""
        left_out, network = {id(callback) for callback in but}, self._learner.network
        for callback in self._callbacks:
            if id(callback) in left_out:
                continue
            goes_on = not network.stop_training
            try:
                getattr(callback, hook)(*args, **kwargs)
            except Exception as error:
                error.add_note(f"In the callback {type(callback).__name__}, {hook}.")
                raise
            if goes_on and network.stop_training and self._learner.steps < self._config.all_steps:
                self.stopped_by = type(callback).__name__


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        message = f"The metric {name!r}, which a callback `reports`, must be a number. Received: {value!r}"
        raise ValueError(message) from error


def _flat(callbacks: Iterable[Any]) -> Iterator[Any]:
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CallbackList):
            yield from _flat(callback.callbacks)
        else:
            yield callback
