"""The training run. Read this first: actors collect, the learner updates, callbacks listen, weights are published."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.actors.capacity import check_memory
from actor_learner.actors.pool import ActorPool
from actor_learner.build import _learner_cores, make_network, make_pool, new_learner
from actor_learner.config.config import TrainConfig
from actor_learner.environments.factory import resolve_env
from actor_learner.learner.prefetch import prefetching
from actor_learner.networks.saving import check_can_be_saved, load_network, save_network
from actor_learner.policy.policy import load_policy
from actor_learner.reports.progress import Progress
from actor_learner.runs.directory import RunDirectory, check_run_dir, record_finished
from actor_learner.runs.metrics import read_metrics
from actor_learner.runs.recorder import Recorder
from actor_learner.runs.resume import Start, check_resume, start_run
from actor_learner.system import compile_cache
from actor_learner.system.signals import Interrupts

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

    from actor_learner.callbacks.dispatch import RunCallbacks
    from actor_learner.learner.learner import Learner

_log = logging.getLogger("actor_learner")


@dataclass(frozen=True)
class Result:
    """What a run leaves: the trained network, the metrics of its last update, and where all is kept.

    Where a callback stopped training before the first update there are no metrics, and no run is kept.
    """

    network: keras.Model
    metrics: dict[str, float]
    run_dir: Path

    def __repr__(self) -> str:
        said = {name: self.metrics[name] for name in ("env_steps", "episode_return") if name in self.metrics}
        figures = "".join(f", {name}={value:.6g}" for name, value in said.items())
        return f"Result(run_dir={str(self.run_dir)!r}{figures})"


def train(config: TrainConfig, *, resume: bool = False, **fields: Any) -> Result:
    """Trains a network, and saves it with its policy, metrics and config in a run directory.

    Ctrl-C, SIGTERM and SIGHUP end the current update and save everything; then KeyboardInterrupt
    or SystemExit(128 + signal) is raised. An exception in a callback or an actor saves, too.

    Args:
        config: what is run.
        resume: go on with the run in `config.run_dir` from its newest whole checkpoint, however it ended. The config
            must be the run's own, but for what doesn't change what is learned (see `actor_learner.runs.resume`), and
            `total_steps`, which may grow. A run that has finished is returned as it is. Environments start anew.
        fields: none are taken: they belong in the config.

    Raises:
        ValueError: something in the config can't work; nothing was started, nothing overwritten.
        MemoryError: the batches, or so many actors, don't fit into memory.
        ActorError: actors died again and again; names one, with its traceback or signal.
        RuntimeError: update after update gave what isn't finite.
    """
    if not isinstance(config, TrainConfig):
        raise ValueError(f"`config` must be an actor_learner.TrainConfig. Received: config={config!r}")
    if fields:
        config.replace(**fields)  # a name that there isn't is answered there
        name, value = next(iter(fields.items()))
        raise TypeError(f"Fields belong in the config: train(config.replace({name}=...)). Received: {name}={value!r}")
    if resume:
        check_resume(config)
    else:
        check_run_dir(config)
    resolve_env(config.env, config.env_kwargs, config.vectorization)
    check_memory(config.num_actors)
    compile_cache.begin(config.learner_threads)
    if config.device == "gpu":  # TensorFlow alone knows whether there is one; "auto" and "cpu" start actors meanwhile
        from actor_learner.learner.backend import resolve_device

        resolve_device(config.device)
    with start_run(config, resume=resume) as start:
        if start.finished:
            return _finished(config, start.run)
        with Interrupts(quiet=config.quiet) as interrupts, _start_actors(config, start) as actors:
            actors.repeat(start.state.calls)
            result = _train(config, start, actors, interrupts)
        learned = start.confirmed or start.checkpoint is not None
        saved = f"the run is saved in {start.run.path}, and goes on from there with --resume (resume=True)"
        interrupts.raise_received(saved if learned else "nothing was learned yet")
        if not learned:
            _log.warning("nothing was learned: a callback stopped training before the first update; no run is kept")
    return result


def _train(config: TrainConfig, start: Start, actors: ActorPool, interrupts: Interrupts) -> Result:
    if config.network is not None:
        check_can_be_saved(actors.network, start.run.path)
    learner = _make_learner(config, start, actors)
    updates_per_epoch = config.updates_per_epoch or start.updates_per_epoch or _updates_per_epoch(config)
    callbacks = _make_callbacks(config, start.run, actors, learner, updates_per_epoch)
    start.commit(config)
    recorder = Recorder(start, config, actors, learner)
    progress = Progress(config, start.run.path, start.run.metrics)
    interrupts.quiet = config.quiet or progress.shows_interrupts
    metrics: dict[str, float] = {}
    try:
        callbacks.begin()
        for metrics in updates(config, actors, learner, recorder, interrupts):
            if "undone" not in metrics and not start.confirmed:
                start.confirm(
                    xla=learner.compiled_with_xla,
                    updates_per_epoch=updates_per_epoch,
                    action_masks=actors.uses_masks,
                )
            try:
                callbacks.update_ended(metrics)
            finally:
                progress.update(recorder.record(metrics))
            if "undone" in metrics:
                recorder.check_undone()
                continue
            if callbacks.epoch_is_over:
                if not _goes_on(config, learner, interrupts):
                    recorder.checkpoint()
                recorder.end_epoch()
                callbacks.epoch_ended(metrics)
            if _goes_on(config, learner, interrupts):
                callbacks.next_update()
            recorder.checkpoint_if_due()
        recorder.checkpoint()
        recorder.end_epoch()  # from here on, something may be averaged or restored for the result
        callbacks.end(metrics, interrupted=bool(interrupts.requested))
    finally:
        interrupts.saving = True
        progress.close()
        if recorder.rows or start.checkpoint is not None:
            try:
                recorder.close()
            finally:
                if recorder.ends_finite():
                    _save(start.run, learner, actors.observation_space)
    if learner.env_steps >= config.total_steps:
        record_finished(start.run, learner.env_steps)
    return Result(learner.network, metrics or _last_metrics(start.run), start.run.path)


def updates(
    config: TrainConfig, actors: ActorPool, learner: Learner, recorder: Recorder, interrupts: Interrupts
) -> Iterator[dict[str, float]]:
    """The loop itself: yields the metrics of each update; weights are published when the caller comes back."""
    copies_ahead = config.max_policy_lag == 1 and "GPU" in learner.device
    ahead = recorder.begin()  # by the updates that this run goes on from; the actors' versions begin at 0
    while _goes_on(config, learner, interrupts):
        started = time.perf_counter()
        trajectory = actors.collect(timeout=None)
        trajectory = trajectory._replace(policy_version=trajectory.policy_version + ahead)
        collected = time.perf_counter()
        recorder.begin_update()
        with prefetching(actors.upcoming, learner, useful=copies_ahead):
            losses = learner.update(trajectory)
        learned = recorder.learned(trajectory, losses)
        yield recorder.row(trajectory, losses, collected - started, time.perf_counter() - collected)
        if learned:
            actors.publish(learner.get_weights())


def _goes_on(config: TrainConfig, learner: Learner, interrupts: Interrupts) -> bool:
    return learner.env_steps < config.total_steps and not learner.network.stop_training and not interrupts.requested


def _start_actors(config: TrainConfig, start: Start) -> ActorPool:
    def network(observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
        from actor_learner.callbacks.checks import check_callbacks

        check_callbacks(config.callbacks)
        return make_network(config, start.checkpoint, observation_space, action_space)

    return make_pool(config, network, seed=_seed(config, start), logs_dir=start.run.logs)


def _seed(config: TrainConfig, start: Start) -> int:
    """Of the environments and actions. A run that goes on must not see its first episodes again."""
    if not start.state.updates:
        return config.seed
    return int(np.random.SeedSequence([config.seed, start.state.updates]).generate_state(1)[0])


def _make_learner(config: TrainConfig, start: Start, actors: ActorPool) -> Learner:
    from actor_learner.learner.backend import warn_of_threads
    from actor_learner.learner.learner import Learner

    if config.max_policy_lag and config.num_actors and config.learner_threads is None:
        warn_of_threads(_learner_cores(config, actors.observation_space))
    if start.checkpoint is not None:
        learner = Learner.load(
            start.checkpoint, algorithm=config.algorithm, network=actors.network, device=config.device
        )
        learner.total_steps = config.total_steps
        return learner
    return new_learner(config, actors)


def _make_callbacks(
    config: TrainConfig, run: RunDirectory, actors: ActorPool, learner: Learner, updates_per_epoch: int
) -> RunCallbacks:
    from actor_learner.callbacks.dispatch import RunCallbacks

    params = {
        "epochs": math.ceil(_planned_updates(config) / updates_per_epoch),
        "steps": updates_per_epoch,
        "verbose": 0 if config.quiet else 1,
        "config": config,
        "run_dir": run.path,
        "actors": actors,
    }
    return RunCallbacks(
        config.callbacks, actors=actors, learner=learner, config=config, params=params, batch_rows=_batch_rows(config)
    )


def _batch_rows(config: TrainConfig) -> int:
    return max(config.num_actors, 1) * config.envs_per_actor * config.unroll_length


def _planned_updates(config: TrainConfig) -> int:
    return math.ceil(config.total_steps / _batch_rows(config))


def _updates_per_epoch(config: TrainConfig) -> int:
    """A hundredth of the planned updates: a function of the config alone, so that a run can be repeated."""
    return math.ceil(_planned_updates(config) / 100)


def _save(run: RunDirectory, learner: Learner, observation_space: Space[Any]) -> None:
    """The network, and the policy that needs no TensorFlow."""
    from actor_learner.policy.export.litert import export_policy

    save_network(learner.network, run.path)
    export_policy(learner.network, learner.action_space, 1, observation_space, masked=True).save(run.policy)


def _finished(config: TrainConfig, run: RunDirectory) -> Result:
    """What a run left that has taken all its steps."""
    if not config.quiet:
        print(f"The run in {run.path} has finished: it took its {config.total_steps:,} steps.")
    if config.network is None:
        network = load_network(run.path)
    else:
        policy = load_policy(run.policy)
        network = make_network(config, run.path, policy.observation_space, policy.action_space)
    return Result(network, _last_metrics(run), run.path)


def _last_metrics(run: RunDirectory) -> dict[str, float]:
    """Those of an earlier process; none if it left none."""
    return read_metrics(run.path)[-1] if run.metrics.exists() else {}
