"""The training run. Read this first: actors collect, the learner updates, callbacks listen, weights are published."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.checkpoint import (
    RunDirectory,
    abandon_run,
    append_metrics,
    check_run_dir,
    confirm_run,
    create_run,
    record_choices,
)
from actor_learner.config import TrainConfig
from actor_learner.cores import available_cores
from actor_learner.environments import resolve_env
from actor_learner.interrupts import Interrupts
from actor_learner.pool import ActorPool
from actor_learner.progress import Progress
from actor_learner.saving import check_can_be_saved, load_network, save_network

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

    from actor_learner.learner import Learner

EPISODE_WINDOW = 100
"""`episode_return` and the like are means over this many episodes that finished last, as in SB3."""

COLLECT_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True)
class Result:
    """What a run leaves: the trained network, the metrics of its last update, and where all is kept."""

    network: keras.Model
    metrics: dict[str, float]
    run_dir: Path


def train(config: TrainConfig) -> Result:
    """Trains a network, and saves it with its policy, metrics and config in a run directory.

    Ctrl-C, SIGTERM and SIGHUP end the current update and save everything; then KeyboardInterrupt
    or SystemExit(128 + signal) is raised. An exception in a callback or an actor saves, too.

    Raises:
        ValueError: something in the config can't work; nothing was started, nothing overwritten.
        ActorError: an actor died; names it, with its traceback or signal.
    """
    if not isinstance(config, TrainConfig):
        raise ValueError(f"`config` must be an actor_learner.TrainConfig. Received: config={config!r}")
    check_run_dir(config)
    resolve_env(config.env, config.env_kwargs, config.vectorization)
    if config.device == "gpu":  # TensorFlow alone knows whether there is one; "auto" and "cpu" start actors meanwhile
        from actor_learner.learner import resolve_device

        resolve_device(config.device)
    run = create_run(config)
    with Interrupts(quiet=config.quiet) as interrupts:
        try:
            with _start_actors(config, run) as actors:
                result = _train(config, run, actors, interrupts)
        finally:
            learned = run.metrics.exists()
            if not learned:
                abandon_run(run)
    interrupts.raise_received(f"the run is saved in {run.path}" if learned else "nothing was learned yet")
    return result


def _train(config: TrainConfig, run: RunDirectory, actors: ActorPool, interrupts: Interrupts) -> Result:
    if config.network is not None:
        check_can_be_saved(actors.network)
    learner = _make_learner(config, actors)
    updates_per_epoch = config.updates_per_epoch or _updates_per_epoch(config)
    callbacks = _make_callbacks(config, run, actors, learner, updates_per_epoch)
    progress = Progress(config.total_steps, quiet=config.quiet)
    metrics: dict[str, float] = {}
    try:
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(0)
        for metrics in updates(config, actors, learner, interrupts):
            append_metrics(run, metrics)
            if learner.updates == 1:
                confirm_run(run)
                record_choices(run, xla=learner.compiled_with_xla, updates_per_epoch=updates_per_epoch)
            progress.update(metrics)
            epoch, batch = divmod(learner.updates - 1, updates_per_epoch)
            callbacks.on_train_batch_end(batch, metrics)
            if batch + 1 == updates_per_epoch:
                callbacks.on_epoch_end(epoch, metrics)
                if _goes_on(config, learner, interrupts):
                    callbacks.on_epoch_begin(epoch + 1)
        if learner.updates % updates_per_epoch:
            callbacks.on_epoch_end(learner.updates // updates_per_epoch, metrics)
        learner.optimizer.finalize_variable_values(learner.network.trainable_variables)
        callbacks.on_train_end(metrics)
    finally:
        interrupts.saving = True
        progress.close()
        if learner.updates:
            _save(run, learner, actors.observation_space)
    return Result(learner.network, metrics, run.path)


def updates(
    config: TrainConfig, actors: ActorPool, learner: Learner, interrupts: Interrupts
) -> Iterator[dict[str, float]]:
    """The loop itself: yields the metrics of each update; weights are published when the caller comes back."""
    started = previous = time.perf_counter()
    finished = {name: deque[float](maxlen=EPISODE_WINDOW) for name in ("return", "length", *config.info_keys)}
    while _goes_on(config, learner, interrupts):
        before = learner.env_steps
        trajectory = actors.collect(timeout=COLLECT_TIMEOUT_SECONDS)
        lag = actors.version - np.asarray(trajectory.policy_version)
        collected = time.perf_counter()
        losses = learner.update(trajectory)
        now = time.perf_counter()
        for name, values in actors.episodes.items():
            finished[name].extend(values)
        yield {
            "env_steps": learner.env_steps,
            "updates": learner.updates,
            "time_seconds": now - started,
            "steps_per_second": (learner.env_steps - before) / (now - previous),
            **_episode_metrics(finished),
            "policy_lag": float(lag.mean()),
            "policy_lag_max": float(lag.max()),
            **losses,
            "time/learning": (now - collected) / (now - previous),
            **{f"time/{name}": share for name, share in actors.timings.items()},
        }
        previous = now
        actors.publish(learner.get_weights())


def _goes_on(config: TrainConfig, learner: Learner, interrupts: Interrupts) -> bool:
    return learner.env_steps < config.total_steps and not learner.network.stop_training and not interrupts.requested


def _episode_metrics(finished: dict[str, deque[float]]) -> dict[str, float]:
    names = {"return": "episode_return", "length": "episode_length"}
    return {names.get(key, f"episode/{key}"): float(np.mean(values)) for key, values in finished.items() if values}


def _start_actors(config: TrainConfig, run: RunDirectory) -> ActorPool:
    def make_network(observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
        return _make_network(config, observation_space, action_space)

    return ActorPool(
        config.env,
        make_network,
        env_kwargs=dict(config.env_kwargs),
        vectorization=config.vectorization,
        num_actors=config.num_actors,
        envs_per_actor=config.envs_per_actor,
        unroll_length=config.unroll_length,
        max_policy_lag=config.max_policy_lag,
        seed=config.seed,
        info_keys=config.info_keys,
        autoreset_mode=config.autoreset_mode,
        logs_dir=run.logs,
    )


def _make_network(config: TrainConfig, observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
    """The network of the config: passed in, taken from another run, or the default one."""
    import keras

    from actor_learner.callbacks import check_callbacks
    from actor_learner.learner import resolve_device
    from actor_learner.networks import cap_statistics, default_network, describe_image, with_normalization

    check_callbacks(config.callbacks)
    resolve_device(config.device)  # before a weight is made: TensorFlow can't be told about memory later
    keras.utils.set_random_seed(config.seed)
    if config.network is None and config.init_from is None:
        options = config.network_fields(all_fields=True)
        if not config.quiet and (described := describe_image(observation_space, config.channel_axis)):
            print(described)
        return default_network(observation_space, action_space, **options, seed=config.seed)
    if config.init_from is not None:
        network = load_network(config.init_from)
        return cap_statistics(network, config.init_from_count) if config.init_from_count else network
    network = config.network
    if not isinstance(network, keras.Model):
        network = network(observation_space, action_space)
    if config.normalize_observation:
        network = with_normalization(network, observation_space)
    return network


def _make_learner(config: TrainConfig, actors: ActorPool) -> Learner:
    from actor_learner.learner import Learner, warn_of_threads

    if config.max_policy_lag and config.num_actors:
        warn_of_threads(max(1, available_cores() - config.num_actors))
    return Learner(
        actors.network,
        config.algorithm,
        action_space=actors.action_space,
        total_steps=config.total_steps,
        seed=config.seed,
        device=config.device,
    )


def _make_callbacks(
    config: TrainConfig, run: RunDirectory, actors: ActorPool, learner: Learner, updates_per_epoch: int
) -> keras.callbacks.CallbackList:
    from actor_learner.callbacks import callback_list

    params = {
        "epochs": math.ceil(_planned_updates(config) / updates_per_epoch),
        "steps": updates_per_epoch,
        "verbose": 0 if config.quiet else 1,
        "config": config,
        "run_dir": run.path,
        "actors": actors,
    }
    return callback_list(config.callbacks, actors=actors, learner=learner, config=config, params=params)


def _planned_updates(config: TrainConfig) -> int:
    return math.ceil(config.total_steps / (max(config.num_actors, 1) * config.envs_per_actor * config.unroll_length))


def _updates_per_epoch(config: TrainConfig) -> int:
    """A hundredth of the planned updates: a function of the config alone, so that a run can be repeated."""
    return math.ceil(_planned_updates(config) / 100)


def _save(run: RunDirectory, learner: Learner, observation_space: Space[Any]) -> None:
    """The network, the learner's state, and the policy that needs no TensorFlow."""
    from actor_learner.policy.export import export_policy

    save_network(learner.network, run.path)
    learner.save(run.checkpoints / "final")
    export_policy(learner.network, learner.action_space, 1, observation_space, masked=True).save(run.policy)
