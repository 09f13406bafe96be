"""Records a run while it learns: its rows of metrics, incidents, checkpoints, the log."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.environments.calls import same_calls
from actor_learner.networks.saving import load_network
from actor_learner.runs.artifacts import write_incident
from actor_learner.runs.checkpoints import TRAINING_RETURN, Checkpoints, RunState
from actor_learner.runs.directory import remove_result
from actor_learner.runs.league import League
from actor_learner.runs.meter import Meter
from actor_learner.runs.metrics import MetricsFile
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, flat_config
from actor_learner.runs.resume import Start, event_files
from actor_learner.runs.tensorboard import EventFile
from actor_learner.system.files import Entry, one_line
from actor_learner.system.policies import by_policy, policy_folder, prefix_of

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.config.config import TrainConfig
    from actor_learner.learner.learner import Learner
    from actor_learner.spaces.trajectory import Trajectory

_log = logging.getLogger("actor_learner")


class Recorder:
    """Records the updates of a run from its checkpoint on, and handles undone updates.

    A full disk never ends a run: the recorder removes old checkpoints, then warns once, and the last files stay as they
    are. `with_room` makes room for other files of the run in the same way.
    """

    def __init__(
        self,
        start: Start,
        config: TrainConfig,
        actors: ActorPool,
        learner: Learner,
        league: League | None = None,
        best_metric: tuple[str, bool, Any] = (TRAINING_RETURN, True, None),
    ) -> None:
        self._league, (self._best_metric, self._follows_calls, self._evaluate) = league, best_metric
        self._evaluated: float | None = None  # the return of an evaluation after the last update
        self._run, self._config, self._actors, self._learner = start.run, config, actors, learner
        self._checkpoints = Checkpoints(start.run.checkpoints, config.keep_checkpoints, config.keep_best_checkpoints)
        self.with_room = self._checkpoints.with_room
        self._metrics = MetricsFile(start.run.metrics, self.with_room)
        self.meter = Meter(start.state, config, actors, learner, league)
        hyperparameters = flat_config(config.to_json(), skip=WITHOUT_EFFECT)
        self._events = EventFile(start.run.path, hyperparameters) if config.tensorboard else None
        self._saved, self._has_checkpoint = start.state, start.checkpoint is not None
        self._tried_at = self._tried_updates = -math.inf
        self._tried_steps = start.state.env_steps + start.state.offline_steps
        self._failed = self._updating = False
        self._ended_before = start.resumed
        self._calls = actors.calls  # those that the last update's returns are of
        self._learned: list[np.ndarray[Any, Any]] | None = None
        self._undone_in_a_row: Counter[str] = Counter()  # by policy
        self.write_more: Callable[[Path], object] = lambda folder: None
        """Writes what belongs to nobody here into a checkpoint."""
        self.was_late = False
        """True if callbacks had put in other weights before a checkpoint: from then on it comes before them."""
        self.rows = 0
        """The rows that this process has written."""

    def record(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Append a row to metrics.jsonl, with the causes of restarted actors, and return it."""
        row: dict[str, Any] = dict(metrics)
        if causes := [f"actor {restart.actor} {restart.cause}" for restart in self._actors.restarts]:
            row["actor_restart_causes"] = causes
        self._metrics.append(row)
        self._append_events(metrics)
        self._evaluated = None if self._best_metric == TRAINING_RETURN else metrics.get(self._best_metric)
        if self._evaluated is not None:  # after calls of this update, or before
            self._calls = getattr(self._evaluate, "calls", self._calls)
        self.rows += 1
        self._updating, self._learned = False, None
        return row

    def begin_update(self) -> None:
        """Mark the start of an update: until its row is recorded, no checkpoint of the learner is written."""
        self._updating, self._calls = True, self._actors.calls

    def end_epoch(self) -> None:
        """Copy the learned weights, for checkpoints: callbacks may now put in averages or the best ones."""
        if self._learned is None:
            self._learned = self._learner.get_weights()

    def learned(self, trajectory: Any, losses: Mapping[str, float]) -> bool:
        """Return False for an undone update. It is saved as an incident and lowers the learning rate.

        trajectory: None for an update without a batch, of which no incident is saved.

        With several policies, that holds for each learner whose update was undone; False means all of them.
        """
        trajectories = by_policy(trajectory, self._learner.members)
        for name, learner in self._learner.members.items():
            prefix = prefix_of(name)
            found = {key.removeprefix(prefix): value for key, value in losses.items() if key.startswith(prefix)}
            if "undone" not in found:
                self._undone_in_a_row[name] *= not found  # without a row, nothing was tried
                continue
            self._undone_in_a_row[name] += 1
            self._record_undone(name, learner, trajectories[name], found)
        return "undone" not in losses

    def _record_undone(
        self, name: str, learner: Learner, trajectory: Trajectory | None, losses: Mapping[str, float]
    ) -> None:
        of_policy = f" of {name}" if name else ""
        where = "" if trajectory is None else self._write_incident(name, learner, trajectory, losses)
        names = _first_names(learner.not_finite)
        _log.warning(
            "update %d%s was undone because it is not finite: %s%s", learner.updates + 1, of_policy, names, where
        )
        if self._config.undone_rate_factor != 1:
            rate = float(np.asarray(learner.optimizer.learning_rate)) * self._config.undone_rate_factor
            learner.optimizer.learning_rate = rate
            _log.warning("the learning rate%s is now %g", of_policy, rate)

    def check_undone(self) -> None:
        """Raise RuntimeError after `max_undone_updates` in a row."""
        count = max(self._undone_in_a_row.values(), default=0)
        if count >= self._config.max_undone_updates:
            where = f"; {self._run.incidents} holds their batches" if self._run.incidents.exists() else ""
            raise RuntimeError(
                f"{count} updates in a row were not finite and were undone "
                f"({_first_names(self._learner.not_finite)}){where}. "
                "A lower learning_rate, a max_grad_norm or scaled rewards may help. Received: "
                f"max_undone_updates={self._config.max_undone_updates}"
            )

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint after the first update, and when minutes, updates or a milestone require it.

        So does an evaluation with the best return so far: the next checkpoint has other weights.
        """
        minutes, updates = self._config.checkpoint_minutes, self._config.checkpoint_updates
        is_best = self._config.keep_best_checkpoints > 0 and self._is_best(self._evaluated)
        by_time = minutes is not None and time.monotonic() - self._tried_at >= 60 * minutes
        by_updates = updates is not None and self._learner.updates - self._tried_updates >= updates
        if by_time or by_updates or self._reaches_milestone(since=self._tried_steps) or is_best:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint, unless this update has one, nothing was learned, or callbacks put in other weights."""
        if self._learner.updates == self._saved.updates if self._has_checkpoint else not self.rows:
            return
        if self._updating:
            return
        weights = self._learner.get_weights()
        has_other_weights = self._learned is not None and not all(map(np.array_equal, self._learned, weights))
        self.was_late |= has_other_weights
        if has_other_weights or not all(np.isfinite(weight).all() for weight in weights):
            return
        self._tried_at, self._tried_updates = time.monotonic(), self._learner.updates
        self._tried_steps = self._learner.steps
        try:
            state = self._state()
            self._checkpoints.write(state, self._write_parts)
            if self._ended_before:
                remove_result(self._run)
        except OSError as error:
            if not self._failed:
                _log.warning("the checkpoint can't be written, training goes on: %s", one_line(error))
            self._failed = True
            return
        if self._failed:
            _log.warning("checkpoints are written again")
        self._saved, self._has_checkpoint, self._failed, self._ended_before = state, True, False, False

    def _write_parts(self, folder: Path, earlier: Path | None) -> Mapping[str, Entry]:
        """Write the learner, and the versions that it plays against, into a checkpoint."""
        if self._league is not None:
            self._league.write_versions(folder, earlier)
        self.write_more(folder)
        return self._learner.write_checkpoint(folder, earlier, with_buffer=self._config.checkpoint_buffer)

    def close(self) -> None:
        """Write the last checkpoint, its link and the waiting rows. Undo an update that was cut short.

        An exception that ends the run gets a note that says where it is saved.
        """
        if self._updating:
            self._restore(f"update {self._learner.updates + 1} was cut short")
        self.checkpoint()
        if self._has_checkpoint:
            try:
                self._checkpoints.link_final()
            except OSError as error:
                _log.warning("the link to the last checkpoint can't be made: %s", one_line(error))
            if isinstance(cause := sys.exception(), Exception):
                cause.add_note(f"The run is saved in {self._run.path}; --resume (resume=True) goes on from there.")
        self._metrics.close()
        if self._events is not None:
            self._events.close(finished=self._learner.steps >= self._config.all_steps)

    def ends_finite(self) -> bool:
        """Return True if the network's weights are finite, or were replaced by the last checkpoint's."""
        if all(np.isfinite(weight).all() for weight in self._learner.get_weights()):
            return True
        reason = "a callback left weights that are not finite"
        if self._has_checkpoint:
            return self._restore(reason)
        _log.warning("%s, and there is no checkpoint: no network is saved", reason)
        return False

    def _append_events(self, metrics: Mapping[str, float]) -> None:
        if (events := self._events) is None:
            return
        steps, every = self._learner.steps, self._config.histogram_updates
        events.append(steps, {name: value for name, value in metrics.items() if name != "env_steps"})
        if every is not None and self._learner.updates % every == 0 and "undone" not in metrics:
            for name, learner in self._learner.members.items():
                weights = ((prefix_of(name) + each.path, each.numpy()) for each in learner.network.weights)
                events.append_histograms(steps, weights)

    def _restore(self, reason: str) -> bool:
        """Restores the weights of the last checkpoint, and logs the reason. Returns True on success."""
        path = self._checkpoints.path(self._saved.updates)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the optimizer's variables, which aren't needed
                for name, learner in self._learner.members.items():
                    load_network(policy_folder(path, name), learner.network)
        except (OSError, ValueError) as error:
            _log.warning("%s; its last checkpoint can't be read: %s", reason, one_line(error))
            return False
        _log.warning("%s; the saved network is that of %s", reason, path)
        return True

    def _state(self) -> RunState:
        if self._events is not None:
            self._events.flush()
        now = self.meter.judge() if self._best_metric == TRAINING_RETURN else self._evaluated
        best = self._is_best(now)
        ends = self._follows_calls and not same_calls(self._calls, self._actors.calls)  # later returns don't compare
        return RunState(
            env_steps=self._learner.env_steps,
            offline_steps=self._learner.offline_steps,
            updates=self._learner.updates,
            time_seconds=self.meter.seconds,
            actor_restarts=self.meter.actor_restarts,
            episodes={name: list(values) for name, values in self.meter.windows.items()},
            best_return=None if ends else now if best else self._best_return,
            best_metric=self._best_metric,
            best=best,
            milestone=self._reaches_milestone(since=self._saved.env_steps + self._saved.offline_steps),
            metrics_size=self._metrics.sync(),
            event_files=event_files(self._run.path),
            calls=self._actors.calls,
            policies=list(self._config.policies or ()),
            league=None if self._league is None else self._league.to_json(),
        )

    @property
    def _best_return(self) -> float | None:
        """The highest return of a checkpoint; None if those so far are of another metric, or before the last call."""
        compares = self._saved.best_metric == self._best_metric
        compares &= not self._follows_calls or same_calls(self._saved.calls, self._calls)
        return self._saved.best_return if compares else None

    def _is_best(self, now: float | None) -> bool:
        best_return = self._best_return
        return now is not None and (best_return is None or now > best_return)

    def _reaches_milestone(self, since: int) -> bool:
        steps = self._config.milestone_steps
        return steps is not None and self._learner.steps // steps > since // steps

    def _write_incident(self, name: str, learner: Learner, trajectory: Trajectory, losses: Mapping[str, float]) -> str:
        try:
            path = write_incident(self._run.incidents / name, learner, trajectory, losses)
        except OSError as error:
            return f" (the incident can't be written: {one_line(error)})"
        return "" if path is None else f" ({path} holds its batch)"


def _first_names(names: Sequence[str]) -> str:
    """Return the first five names, and the number of others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
