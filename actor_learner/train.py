"""The training run. Read this first: actors collect, the learner updates, callbacks listen, weights are published."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner import build
from actor_learner.config.config import TrainConfig
from actor_learner.learner.ahead import prefetching, weights_for
from actor_learner.reports.watch import Progress
from actor_learner.runs.checkpoints import TRAINING_RETURN
from actor_learner.runs.directory import record_finished, with_init_commit
from actor_learner.runs.metrics import last_metrics
from actor_learner.runs.recorder import Recorder
from actor_learner.runs.resume import Start, start_run, with_own_defaults
from actor_learner.system.signals import Interrupts

if TYPE_CHECKING:
    from actor_learner.actors.pool import ActorPool
    from actor_learner.callbacks.dispatch import RunCallbacks

_log = logging.getLogger("actor_learner")

_OFFLINE_STEPS = 64
"""Gradient steps of an update offline, unless a batch brings more: one call of the compiled update."""


class _Run:
    """One training run in this process: the loop, and what happens around each update."""

    def __init__(
        self,
        config: TrainConfig,
        start: Start,
        actors: ActorPool,
        interrupts: Interrupts,
        callbacks: Sequence[Any],
        compute_reward: Any = None,
    ) -> None:
        self.config, self.start, self.actors, self.interrupts = config, start, actors, interrupts
        self.exported: Any = None  # the policy that is saved in the end
        self.learner = build.make_learner(config, start, actors, compute_reward)
        self.weights = weights_for(actors, self.learner)
        rows = build.batch_rows(config)
        self.offline_steps_at_once = max(_OFFLINE_STEPS, config.algorithm.due(rows)) if config.offline_steps else 1
        planned_updates = math.ceil(config.total_steps / rows)
        planned_updates += math.ceil(config.offline_steps / self.offline_steps_at_once)
        self.updates_per_epoch = (  # by default a function of the config alone, so that a run can be repeated
            config.updates_per_epoch or start.updates_per_epoch or math.ceil(planned_updates / 100)
        )
        self.callbacks = self._run_callbacks(callbacks, math.ceil(planned_updates / self.updates_per_epoch))
        best_metric = self.callbacks.best_metric(config.best_by)
        start.commit(config)
        self.league = build.make_league(config, start)
        self.recorder = Recorder(start, config, actors, self.learner, self.league, best_metric)
        self.callbacks.meter, self.recorder.write_more = self.recorder.meter, self.callbacks.write_states
        self.progress = Progress(config, start.run.path, start.run.metrics)
        interrupts.quiet = config.quiet or self.progress.shows_interrupts

    def updates(self) -> Iterator[tuple[dict[str, float], Any]]:
        """Run the loop: yield the metrics of each update, and its batch, in the actors' memory; None if it has none.

        The weights are published when the caller asks for the next one.
        """
        actors, learner, recorder, meter = self.actors, self.learner, self.recorder, self.recorder.meter
        copies_ahead = self.config.max_policy_lag > 0 and not self.config.asynchronous and "GPU" in learner.device
        meter.begin()
        self.interrupts.doing = "ending this update and saving"
        yield from self._offline_updates()
        earlier_updates = meter.begin()  # the actors' versions begin at 0, also in a run that was resumed
        self._seat_opponents(new=True)
        if self.goes_on:
            actors.assign()  # they begin while the policy is converted that is saved in the end, with other weights
            self.exported = build.export_result(actors)
        while self.goes_on:
            started = time.perf_counter()
            trajectory = actors.collect(timeout=None)
            trajectory = trajectory.at_updates(earlier_updates)
            if not build.has_rows(learner, trajectory):  # all of policies that don't learn
                continue
            collected = time.perf_counter()
            if self.league is not None:
                self.league.record(actors.results)
            if learner.updates == 0 and self.config.init_from is None:
                build.warn_of_bounds(actors, trajectory)
            recorder.begin_update()
            with prefetching(actors.upcoming, learner, useful=copies_ahead):
                losses = learner.update(trajectory, on_policy=trajectory.policy_version == learner.updates)
            learned = recorder.learned(trajectory, losses)
            row = meter.row(trajectory, losses, collected - started, time.perf_counter() - collected)
            yield row, trajectory
            if learned:
                actors.publish(self.weights())
                self._seat_opponents()

    def _offline_updates(self) -> Iterator[tuple[dict[str, float], None]]:
        """Learn from the rows that the buffer has, before the first env step; publish the weights in the end."""
        learner, recorder, planned = self.learner, self.recorder, self.config.offline_steps
        if learner.offline_steps >= planned:
            return
        while self.goes_on and learner.offline_steps < planned:
            started = time.perf_counter()
            recorder.begin_update()
            losses = learner.learn(min(self.offline_steps_at_once, planned - learner.offline_steps))
            recorder.learned(None, losses)
            yield recorder.meter.offline_row(losses, time.perf_counter() - started), None
        self.actors.publish(self.weights())

    def _seat_opponents(self, *, new: bool = False) -> None:
        """With self-play: freeze a version of the policy where one is due, and renew the shares of the opponents.

        new: the actors have no version yet.
        """
        if (league := self.league) is None:
            return
        frozen = dict(league.versions) if new else {}
        if league.is_due(self.learner.updates):
            number = league.freeze(self.learner.flat_weights(), self.learner.updates)
            frozen[number] = league.versions[number]
        self.actors.set_opponents(league.weights(), {n: frozen[n] for n in frozen if n in league.versions})

    @property
    def goes_on(self) -> bool:
        """True while another update is due."""
        stopped = self.learner.network.stop_training or self.interrupts.requested
        return self.learner.steps < self.config.all_steps and not stopped

    def train(self) -> Result:
        """Run the loop to its end. Saves the network and the policy, however the loop ends."""
        metrics: dict[str, float] = {}
        try:
            self.callbacks.begin(self.start.checkpoint)
            for metrics, trajectory in self.updates():
                self._end_update(metrics, trajectory)
            self.recorder.checkpoint()
            self.recorder.end_epoch()  # from here on, callbacks may average or restore weights for the result
            self.callbacks.end(metrics, interrupted=bool(self.interrupts.requested))
        finally:
            self._close()
        learner = self.learner
        if learner.steps >= self.config.all_steps:
            steps = learner.env_steps, learner.offline_steps
            self.recorder.with_room(lambda: record_finished(self.start.run, *steps))
        metrics, stopped_by = metrics or last_metrics(self.start.run.metrics), self.callbacks.stopped_by
        if stopped_by:
            steps = learner.steps, self.config.all_steps
            _log.info("%s stopped the run at %s of %s steps", stopped_by, *map("{:,}".format, steps))
        return Result(build.result_network(self.learner), metrics, self.start.run.path, stopped_by)

    def _end_update(self, metrics: dict[str, float], trajectory: Any) -> None:
        """Call the callbacks, then record the update, end the epoch and write a checkpoint where each is due."""
        recorder, callbacks, undone = self.recorder, self.callbacks, "undone" in metrics
        if not undone and not self.start.confirmed:
            self.start.confirm(
                learned=metrics.get("gradient_steps", 1) > 0,
                xla=self.learner.compiled_with_xla,
                precision=build.precisions(self.learner),
                updates_per_epoch=self.updates_per_epoch,
                action_masks=self.actors.uses_masks,
            )
        try:
            callbacks.update_ended(metrics, trajectory)
        finally:
            self.progress.update(recorder.record(metrics))
        recorder.check_undone()
        if undone:
            return
        if callbacks.epoch_is_over:
            if not self.goes_on:
                recorder.checkpoint()
            elif recorder.was_late:
                recorder.checkpoint_if_due()
            recorder.end_epoch()
            callbacks.epoch_ended(metrics)
        if self.goes_on:
            callbacks.next_update()
        recorder.checkpoint_if_due()

    def _close(self) -> None:
        self.interrupts.saving, self.interrupts.doing = True, "saving, then ending"
        self.progress.close()
        if not self.recorder.rows and self.start.checkpoint is None:
            return
        try:
            self.recorder.close()
        finally:
            if self.recorder.ends_finite():
                self.recorder.with_room(lambda: build.save_result(self.start.run, self.actors, self.exported))

    def _run_callbacks(self, callbacks: Sequence[Any], epochs: int) -> RunCallbacks:
        from actor_learner.callbacks.dispatch import RunCallbacks

        config, steps = self.config, self.updates_per_epoch
        params: dict[str, Any] = {"epochs": epochs, "steps": steps, "verbose": 0 if config.quiet else 1}
        params |= {"config": config, "run_dir": self.start.run.path, "actors": self.actors}
        run: dict[str, Any] = {"actors": self.actors, "learner": self.learner, "config": config}
        return RunCallbacks(callbacks, **run, params=params, batch_rows=build.batch_rows(config))


@dataclass(frozen=True)
class Result:
    """The trained network, the metrics of the run's last update, its directory, and the callback that ended it early.

    With `policies`, the network is a dict by the policies' names.
    If a callback stops training before the first update, there are no metrics, and no run is kept.
    """

    network: Any
    metrics: dict[str, float]
    run_dir: Path
    stopped_by: str | None = None
    """The class of the callback that stopped the run before its last step, or None."""

    def __repr__(self) -> str:
        shown = {name: self.metrics[name] for name in ("env_steps", "episode_return") if name in self.metrics}
        figures = "".join(f", {name}={value:.6g}" for name, value in shown.items())
        return f"Result(run_dir={str(self.run_dir)!r}{figures})"


def train(
    config: TrainConfig, *, resume: bool = False, change: Mapping[str, Any] | None = None, **fields: Any
) -> Result:
    """Trains a network, and saves it with its policy, metrics and config in a run directory.

    Ctrl-C, SIGTERM and SIGHUP end the current update and save everything; then KeyboardInterrupt
    or SystemExit(128 + signal) is raised. An exception in a callback or an actor saves, too.

    Args:
        config: The settings of the run.
        resume: Resumes the run in `config.run_dir` from its newest whole checkpoint, however the run ended;
            environments start anew. The config must be the run's own. Only fields that don't change learning may differ
            (see `actor_learner.runs.resume`), and `total_steps` may grow. For a finished run, its result is returned.
        change: With `resume`, new values of hyperparameters from here on, which the run records: those that may be
            schedules, such as `learning_rate`, `ent_coef`, `vf_coef`, `max_grad_norm`, `target_kl`, `target_entropy`.
        fields: Not accepted: fields belong in the config.

    Raises:
        ValueError: A field of the config can't be used; nothing was started, nothing overwritten.
        MemoryError: The batches, or so many actors, don't fit into memory.
        ActorError: Actors died again and again; the error names one, with its traceback or signal.
        RuntimeError: `max_undone_updates` updates in a row were not finite.
    """
    if not isinstance(config, TrainConfig):
        raise ValueError(f"`config` must be an actor_learner.TrainConfig. Received: config={config!r}")
    if fields:
        config.replace(**fields)  # an unknown name raises there
        name, value = next(iter(fields.items()))
        raise TypeError(f"Fields belong in the config: train(config.replace({name}=...)). Received: {name}={value!r}")
    change = change or {}
    if change and not resume:
        raise ValueError(f"`change` is for a run that is resumed (resume=True). Received: change={change!r}")
    if change:
        config = config.replace(algorithm=config.algorithm.changed(change))
    config = with_own_defaults(config) if resume else with_init_commit(config)
    build.check_run(config, resume=resume, change=change)
    callbacks = _make_callbacks(config)
    with start_run(config, resume=resume, change=change) as start:
        if start.finished:
            network = build.finished_network(config, start.run)
            return Result(network, last_metrics(start.run.metrics), start.run.path)
        with (
            Interrupts(quiet=config.quiet, doing="ending before the first update") as interrupts,
            build.goal_rewards(config) as compute_reward,
            build.start_actors(config, start) as actors,
        ):
            build.check_networks(config, actors, start.run)
            with build.on_device(config):
                result = _Run(config, start, actors, interrupts, callbacks, compute_reward).train()
        learned = start.confirmed or start.checkpoint is not None
        saved = f"the run is saved in {start.run.path}, and goes on from there with --resume (resume=True)"
        interrupts.raise_received(saved if learned else "nothing was learned yet")
        if not learned:
            _log.warning("nothing was learned: a callback stopped training before the first update; no run is kept")
    return result


def _make_callbacks(config: TrainConfig) -> list[Any]:
    """Return the callbacks of a run as objects, without importing Keras where there are none."""
    if not config.callbacks and config.eval_every is None and config.stop_at is None:
        return []
    from actor_learner.callbacks import Evaluate, StopOnReturn
    from actor_learner.callbacks.dispatch import first_evaluation, make_callbacks

    callbacks = make_callbacks(config.callbacks)
    if config.eval_every is not None:
        callbacks.append(Evaluate(config.eval_every, episodes=config.eval_episodes))
    if config.stop_at is not None:
        found = first_evaluation(callbacks if config.eval_every is None else callbacks[-1:])
        callbacks.append(StopOnReturn(config.stop_at, monitor=getattr(found, "return_metric", TRAINING_RETURN)))
    return callbacks
