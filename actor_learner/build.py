"""The pool, the network and the learner that a config describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.actors.pool import ActorPool
from actor_learner.config.config import TrainConfig
from actor_learner.networks.saving import load_network
from actor_learner.spaces import structure
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.machine import learner_cores, renew_suggestion

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

    from actor_learner.learner.learner import Learner


def make_pool(config: TrainConfig, network: Any, *, seed: int, logs_dir: Path | None) -> ActorPool:
    """The actors that a config describes. network: as for `ActorPool`."""
    return ActorPool(
        config.env,
        network,
        env_kwargs=dict(config.env_kwargs),
        vectorization=config.vectorization,
        num_actors=config.num_actors,
        envs_per_actor=config.envs_per_actor,
        unroll_length=config.unroll_length,
        max_policy_lag=config.max_policy_lag,
        seed=seed,
        info_keys=config.info_keys,
        autoreset_mode=config.autoreset_mode,
        logs_dir=logs_dir,
        start_timeout=config.start_timeout,
        actor_timeout=config.actor_timeout,
        on_env_error=config.on_env_error,
        max_restarts=config.max_restarts,
    )


def make_network(
    config: TrainConfig, checkpoint: Path | None, observation_space: Space[Any], action_space: Space[Any]
) -> keras.Model:
    """The network of a checkpoint, or of the config: passed in, taken from another run, or the default one."""
    import keras

    from actor_learner.learner.backend import resolve_device
    from actor_learner.networks.contract import cap_statistics, check_network
    from actor_learner.networks.default import default_network, with_normalization
    from actor_learner.networks.images import describe_image

    settle_threads(config, observation_space)
    resolve_device(config.device)  # before a weight is made: TensorFlow can't be told about memory later
    keras.utils.set_random_seed(config.seed)
    if config.network is None and checkpoint is not None:
        return load_network(checkpoint)
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
    if checkpoint is None:
        return network
    check_network(network, Spaces(observation_space, action_space))  # builds it, so that its weights have a place
    return load_network(checkpoint, network)


def settle_threads(config: TrainConfig, observation_space: Space[Any]) -> None:
    """How many TensorFlow uses, by what is observed and the config; before its first operation."""
    from actor_learner.learner.backend import use_threads

    renew_suggestion(_learner_cores(config, observation_space))
    use_threads(config.learner_threads)


def _learner_cores(config: TrainConfig, observation_space: Space[Any]) -> int:
    """What TensorFlow should compute on, once it is known what is observed."""
    from actor_learner.networks.images import is_image

    images = any(is_image(leaf.space) for leaf in structure.observation_structure(observation_space).leaves)
    return learner_cores(config.num_actors, config.max_policy_lag, images=images)


def new_learner(config: TrainConfig, actors: ActorPool) -> Learner:
    """The learner that a config describes, of the actors' network."""
    from actor_learner.learner.learner import Learner

    return Learner(
        actors.network,
        config.algorithm,
        action_space=actors.action_space,
        total_steps=config.total_steps,
        seed=config.seed,
        device=config.device,
    )
