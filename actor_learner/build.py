"""The parts of a run that a config describes: checked, made and saved."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.actors.pool import ActorPool, PoolPolicy
from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.config.config import TrainConfig
from actor_learner.config.pool_checks import check_listens, check_memory, check_tf32
from actor_learner.config.settings import PoolSettings, names_of
from actor_learner.environments.factory import goal_environment, resolve_env
from actor_learner.networks.saving import check_can_be_saved, load_network, save_network
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import load_policy
from actor_learner.replay import minari_datasets
from actor_learner.replay.hindsight import ComputeReward, Hindsight
from actor_learner.runs.checkpoints import learner_folder
from actor_learner.runs.directory import RunDirectory, check_run_dir
from actor_learner.runs.league import League
from actor_learner.runs.resume import Start, check_resume
from actor_learner.spaces import structure, validate
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import choice_counts
from actor_learner.system import compile_cache
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import import_keras
from actor_learner.system.machine import learner_cores, renew_suggestion, size_text
from actor_learner.system.policies import of_one, policy_folder

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

    from actor_learner.learner.learner import Learner
    from actor_learner.learner.rewards import ReturnStatistics
    from actor_learner.replay.buffer import ReplayBuffer
    from actor_learner.spaces.trajectory import Trajectory


_NEEDED = {
    "eval_episodes": "eval_every",
    "memory_size": "memory",
    "histogram_updates": "tensorboard",
    "init_from_count": "init_from",
}


def check_run(config: TrainConfig, *, resume: bool, change: Collection[str] = ()) -> None:
    """Raise an error if a run can't start, and write nothing. Prepare the compile cache. change: as for `start_run`."""
    if resume:
        check_resume(config, change=change)
    else:
        check_run_dir(config)
    for name, needed in _NEEDED.items():
        if (given := getattr(config, name)) != getattr(TrainConfig, name) and not (found := getattr(config, needed)):
            text = f"`{name}` has no effect without `{needed}`. Received: {name}={given!r}, {needed}={found!r}"
            warnings.warn(text, stacklevel=3)
    resolve_env(**config.env_arguments)
    check_listens(config.ray_address)
    check_memory(config.local_actors)
    for each in config.of_policies.values():
        each.algorithm.check_batch(batch_rows(config), config.all_steps)
    if config.deterministic_ops:
        compile_cache.use_deterministic_ops(config.device)
    compile_cache.begin(config.learner_threads)
    # Only the backend finds GPUs. Where none is asked for, the actors start meanwhile.
    if config.device == "gpu" or config.devices > 1 or config.tf32:
        import_keras()
        from actor_learner.learner.backend import resolve_device

        device = resolve_device(config.device, config.devices)
        if config.tf32:
            check_tf32(device)


def start_actors(config: TrainConfig, start: Start) -> ActorPool:
    """Start the actors of a run. Those of a resumed run don't play its first episodes again."""

    def network_maker(config: TrainConfig, checkpoint: Path | None) -> Callable[[Space[Any], Space[Any]], keras.Model]:
        def network(observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
            from actor_learner.learner.backend import use_only

            use_only(config.device)
            return make_network(config, checkpoint, observation_space, action_space)

        return network

    networks = {
        name: network_maker(own, _policy_checkpoint(start.checkpoint, name)) for name, own in config.of_policies.items()
    }
    seed, updates = config.seed, start.state.updates
    if updates:
        seed = int(np.random.SeedSequence([seed, updates]).generate_state(1)[0])
    return make_pool(config, of_one(networks), seed=seed, logs_dir=start.run.logs, calls=start.state.calls)


def _policy_checkpoint(checkpoint: Path | None, name: str) -> Path | None:
    """Return a policy's part of a checkpoint."""
    return None if checkpoint is None else policy_folder(checkpoint, name)


def make_pool(
    config: TrainConfig, network: Any, *, seed: int, logs_dir: Path | None, calls: Sequence[Sequence[Any]] = ()
) -> ActorPool:
    """Start the actors that a config describes. network, calls: as for `ActorPool`."""
    settings = {name: getattr(config, name) for name in names_of(PoolSettings)} | {"seed": seed}
    settings["terminal_observations"] |= any(with_hindsight(config))
    if not config.total_steps:  # nothing is collected: an environment is needed for its spaces alone
        settings |= {"num_actors": 0, "max_policy_lag": 0}
    options: dict[str, Any] = {"env_kwargs": dict(config.env_kwargs), "logs_dir": logs_dir, "calls": calls}
    return ActorPool(config.env, network, **options, **settings)


def with_hindsight(config: TrainConfig) -> list[TrainConfig]:
    """Return the configs of the policies that learn with hindsight."""
    return [each for each in config.of_policies.values() if getattr(each.algorithm, "hindsight", None) is not None]


@contextlib.contextmanager
def goal_rewards(config: TrainConfig) -> Iterator[ComputeReward | None]:
    """Yield the environment's function of rewards, where hindsight needs it, and close the environment afterwards.

    Raises ValueError if there is no such function, or it can't be used.
    """
    needing = [each for each in with_hindsight(config) if each.compute_reward is None]
    if not needing:
        yield None
        return
    with goal_environment(resolve_env(**config.env_arguments)) as (env, compute_reward):
        for each in needing:
            goals = Hindsight(each.algorithm.hindsight, each.algorithm.hindsight_goals, compute_reward)
            goals.check(structure.observation_structure(env.observation_space))
        yield compute_reward


def make_league(config: TrainConfig, start: Start) -> League | None:
    """Return the league of a run by self-play, of its checkpoint where it is resumed; None without self-play."""
    if config.self_play is None:
        return None
    if start.checkpoint is None or start.state.league is None:
        return League(config.self_play)
    return League.from_json(config.self_play, start.state.league, start.checkpoint)


def batch_rows(config: TrainConfig) -> int:
    """Return the env steps in a batch."""
    return sum(config.env_counts) * config.unroll_length


def make_network(
    config: TrainConfig, checkpoint: Path | None, observation_space: Space[Any], action_space: Space[Any]
) -> keras.Model:
    """Return the network of a checkpoint, or of the config: passed in, taken from another run, or the default one."""
    settle_threads(config, observation_space)
    with on_device(config):
        return _make_network(config, checkpoint, observation_space, action_space)


@contextlib.contextmanager
def on_device(config: TrainConfig) -> Iterator[None]:
    """Let new weights and tensors be on the run's device. Raises MemoryError where they don't fit there."""
    from actor_learner.learner import backend

    device = backend.resolve_device(config.device)  # before a weight is made: TensorFlow isn't told of memory later
    try:
        with backend.device(device), backend.eagerly(config.debug):
            yield
    except Exception as error:
        if "GPU" not in device or not backend.is_out_of_memory(error):
            raise
        advice = " end what else uses it (nvidia-smi), name another GPU in CUDA_VISIBLE_DEVICES, or take device='cpu'"
        raise MemoryError(f"The GPU's memory is full:{advice}. Received: {one_line(error)[:200]}") from error


def _make_network(
    config: TrainConfig, checkpoint: Path | None, observation_space: Space[Any], action_space: Space[Any]
) -> keras.Model:
    import keras

    from actor_learner.networks.contract import building_in, cap_statistics, check_network, require_model
    from actor_learner.networks.default import default_network, with_normalization
    from actor_learner.networks.images import describe_image

    keras.utils.set_random_seed(config.seed)
    if config.network is None and checkpoint is not None:
        return load_network(checkpoint)
    if config.network is None and config.init_from is None:
        options = config.network_fields(all_fields=True)
        described = describe_image(observation_space, config.channel_axis, config.image_network)
        if described and not config.quiet:
            print(described)
        action = structure.action_structure(action_space)
        config.algorithm.check_action_space(action)
        options |= {"value_only": config.value_only(observation_space), **config.algorithm.network_options(action)}
        with building_in(config.precision):
            network = default_network(observation_space, action_space, **options, seed=config.seed)
        return _beginning(config, network)
    if config.init_from is not None:
        network = _beginning(config, load_network(config.init_from))
        return cap_statistics(network, config.init_from_count) if config.init_from_count else network
    network = config.network
    with building_in(config.precision):
        if not isinstance(network, keras.Model):
            network = require_model(network(observation_space, action_space))
        if config.normalize_observation:
            network = with_normalization(network, observation_space)
    if checkpoint is None:
        return _beginning(config, network)
    check_network(network, Spaces(observation_space, action_space))  # builds it, so that its weights have a place
    return load_network(checkpoint, network)


def _beginning(config: TrainConfig, network: keras.Model) -> keras.Model:
    """Return a new network with the probability of random actions that a run begins with."""
    from actor_learner.networks.contract import set_epsilon

    if network.built:
        set_epsilon(network, config.algorithm.epsilon(0, 1.0))
    return network


def settle_threads(config: TrainConfig, observation_space: Space[Any]) -> None:
    """Set the number of TensorFlow's threads by the observations and the config, before its first operation."""
    from actor_learner.learner.backend import use_threads

    renew_suggestion(_learner_cores(config, observation_space))
    use_threads(config.learner_threads)


def _learner_cores(config: TrainConfig, observation_space: Space[Any]) -> int:
    """Return one core for a network so small that a second one only disturbs the actors."""
    from actor_learner.learner.cost import is_small
    from actor_learner.networks.images import is_image

    leaves = structure.observation_structure(observation_space).leaves
    images = any(is_image(leaf.space, config.image_network, config.channel_axis) for leaf in leaves)
    if config.network is None and config.init_from is None and not images:
        inputs = sum(sum(choice_counts(leaf.space)) or math.prod(leaf.shape) for leaf in leaves)
        trunk = sum(map(math.prod, itertools.pairwise((inputs, *config.hidden_sizes))))
        rows = config.algorithm.minibatch_rows(batch_rows(config))
        if is_small(6.0 * 2 * trunk * rows):  # policy and value each have a trunk
            return 1
    return learner_cores(config.local_actors, config.max_policy_lag, images=images)


def make_learner(
    config: TrainConfig, start: Start, actors: ActorPool, compute_reward: ComputeReward | None = None
) -> Any:
    """Return the learner of a checkpoint, or a new one that the config describes, of the actors' network.

    With several policies it is a `Team` of their learners. compute_reward: see `goal_rewards`.
    """
    from actor_learner.learner.backend import warn_of_threads

    of_its_own = config.max_policy_lag not in (0, config.algorithm.config_defaults["max_policy_lag"])
    if of_its_own and config.num_actors and config.learner_threads is None:
        warn_of_threads(_learner_cores(config, actors.policies[0].observation_space))
    if config.policies is None:
        return _policy_learner(config, start.checkpoint, actors.policies[0], compute_reward, start.precision)
    from actor_learner.learner.teams import Team

    learning = [policy for policy in actors.policies if config.policies[policy.name].learning]
    share = sum(policy.share for policy in learning)
    members = {}
    for policy in learning:
        steps = max(1, round(config.total_steps * policy.share / share))
        try:
            own = config.of_policies[policy.name].replace(total_steps=steps)
        except ValueError as error:
            text = f"`policies`, {policy.name}: {steps} of total_steps={config.total_steps} are its share. {error}"
            raise ValueError(text) from error
        checkpoint = _policy_checkpoint(start.checkpoint, policy.name)
        precision = start.precision.get(policy.name) if isinstance(start.precision, Mapping) else None
        members[policy.name] = _policy_learner(own, checkpoint, policy, compute_reward, precision)
    networks = {policy.name: policy.network for policy in actors.policies}
    fixed = {policy.name: policy.exported.weights for policy in actors.policies if policy.name not in members}
    return Team(members, networks, fixed, config.total_steps, start.state.updates)


def _policy_learner(
    config: TrainConfig,
    checkpoint: Path | None,
    policy: PoolPolicy,
    compute_reward: ComputeReward | None,
    precision: Any,
) -> Learner:
    """Return the learner of one policy, of a checkpoint or a new one. precision: as the run chose it, or None."""
    from actor_learner.learner.learner import Learner

    if checkpoint is None:
        return new_learner(config, policy, compute_reward, precision)
    options = {name: getattr(config, name) for name in ("algorithm", "device", "devices", "diagnose")}
    options |= {"tf32": in_tf32(config, policy.network, precision)}
    options["compute_reward"] = _reward_of(config, compute_reward)
    learner = Learner.load(checkpoint, network=policy.network, critics=config.critics, **options)
    learner.extend(config.all_steps)
    return _with_buffer(config, learner, policy)


def in_tf32(config: TrainConfig, network: keras.Model, chosen: Any = None) -> bool:
    """Return whether a learner of a network multiplies in TF32. chosen: the run's precision so far, if any.

    Warns if the run did so before, by rule, and the device can't.
    """
    from actor_learner.learner.backend import has_tf32
    from actor_learner.networks.contract import computes_in, convolves

    if config.precision != "auto":
        return config.tf32
    wanted = chosen == "tf32" if chosen else convolves(network) and not computes_in(network, "bfloat16")
    found = wanted and has_tf32(config.device)
    if chosen == "tf32" and not found:
        text = "The run learned in TF32, which this device doesn't have, and goes on in float32"
        warnings.warn(f"{text}. Received: device={config.device!r}", UserWarning, stacklevel=2)
    return found


def precisions(learner: Any) -> Any:
    """Return the precision of a run, to be recorded; a dict by name with several policies."""
    return of_one({name: member.precision for name, member in learner.members.items()})


def new_learner(
    config: TrainConfig,
    actors: PoolPolicy | ActorPool,
    compute_reward: ComputeReward | None = None,
    precision: Any = None,
) -> Learner:
    """Return a new learner that a config describes, of the actors' network.

    compute_reward: see `goal_rewards`. precision: as for `in_tf32`.
    """
    from actor_learner.learner.learner import Learner
    from actor_learner.learner.replay import ReplayLearner
    from actor_learner.learner.state import read_variables

    names = ("seed", "device", "devices", "sequence_length", "burn_in", "diagnose")
    fields: dict[str, Any] = {"total_steps": config.all_steps} | {name: getattr(config, name) for name in names}
    fields["tf32"] = in_tf32(config, actors.network, precision)
    if config.init_from is not None:
        fields["return_statistics"] = _return_statistics(config)
    if config.algorithm.REPLAYS or type(config.algorithm).models is not Hyperparameters.models:
        fields["observation_space"] = actors.observation_space
    if config.algorithm.REPLAYS:
        fields["critics"] = _critics(config, actors.network, structure.choices(actors.action_space))
        fields["compute_reward"] = _reward_of(config, compute_reward)
    learner = Learner(actors.network, config.algorithm, action_space=actors.action_space, **fields)
    if isinstance(learner, ReplayLearner) and (folder := _saved_learner(config)) is not None:
        variables: Mapping[str, Any] = {}
        with _starting_anew("variables"):
            variables = read_variables(folder)
        learner.start_from(variables)
    return _with_buffer(config, learner, actors)


def _reward_of(config: TrainConfig, of_env: ComputeReward | None) -> ComputeReward | None:
    """Return the function of rewards for a policy's learner: the config's, or the environment's."""
    return (config.compute_reward or of_env) if with_hindsight(config) else None


def _saved_learner(config: TrainConfig) -> Path | None:
    """Return the folder of the learner of the run that `init_from` names; None if there is none."""
    return None if config.init_from is None else learner_folder(config.init_from)


@contextlib.contextmanager
def _starting_anew(what: str) -> Iterator[None]:
    """Warns, instead of a ValueError, that a part of `init_from` can't be taken."""
    try:
        yield
    except ValueError as error:
        warnings.warn(f"The {what} of `init_from` start anew: {one_line(error)}", UserWarning, stacklevel=3)


def _critics(config: TrainConfig, network: keras.Model, choices: int) -> Any:
    """Return the function that makes a critic, or gives one of `init_from`; None for algorithms without any.

    choices: of a Discrete action space; 0: of another space.
    """
    if config.critics is not None or not config.algorithm.num_critics:
        return config.critics
    if len(saved := _saved_critics(config, choices)) == config.algorithm.num_critics:
        return lambda observation_space, action_space: saved.pop(0)
    from actor_learner.networks.contract import building_in
    from actor_learner.networks.default import critic_seeds, default_critic, normalizes_vectors

    names = "hidden_sizes activation orthogonal_init layer_norm image_network channel_axis"
    options = {name: getattr(config, name) for name in names.split()} | dict(config.algorithm.critic_options)
    seeds = iter(critic_seeds(config.seed, config.algorithm.num_critics))

    def make(observation_space: Space[Any], action_space: Space[Any]) -> keras.Model:
        normalizes = config.normalize_observation or normalizes_vectors(network, observation_space)
        with building_in(config.precision):
            return default_critic(
                observation_space, action_space, **options, normalize_observation=normalizes, seed=next(seeds)
            )

    return make


def _saved_critics(config: TrainConfig, choices: int = 0) -> list[keras.Model]:
    """Return the critics of the run that `init_from` names, none if it has none. Warns if they can't be read."""
    if (folder := _saved_learner(config)) is None:
        return []
    from actor_learner.learner.state import read_critics
    from actor_learner.networks.contract import cap_statistics

    critics: list[keras.Model] = []
    with _starting_anew("critics"):
        found = read_critics(folder)
        _check_sizes(config.algorithm, found, choices or 1)
        critics = found
    return [cap_statistics(critic, config.init_from_count) if config.init_from_count else critic for critic in critics]


def _check_sizes(algorithm: Any, critics: Sequence[keras.Model], choices: int) -> None:
    """Raise ValueError for saved critics of another number or size than an algorithm's; none are no error."""
    wanted = [size := algorithm.critic_size * choices] * algorithm.num_critics
    shapes = [getattr(critic, "output_shape", None) for critic in critics]  # a subclassed model's is unknown
    sizes = [size if shape is None else math.prod(shape[1:]) for shape in shapes]
    if critics and sizes != wanted:
        raise ValueError(f"{type(algorithm).__name__}'s have {wanted} outputs. Received: critics with {sizes} outputs")


def _initial_buffer(
    config: TrainConfig, folder: str | os.PathLike[str], actors: PoolPolicy | ActorPool, hindsight: Hindsight | None
) -> ReplayBuffer:
    from actor_learner.replay.buffer import ReplayBuffer

    if minari_datasets.is_name(folder):
        names = ("n_step", "gamma", "clip_reward", "priority_exponent")
        return ReplayBuffer.from_minari(
            folder,
            max(config.algorithm.buffer_size, config.unroll_length),
            squashed=actors.exported.distribution == "squashed",
            unroll_length=config.unroll_length,
            action_masks=actors.uses_masks,
            hindsight=hindsight,
            seed=config.seed,
            **{name: getattr(config.algorithm, name) for name in names},
        )
    compute_reward = None if hindsight is None else hindsight.compute_reward
    buffer = ReplayBuffer.load(folder, capacity=config.algorithm.buffer_size, compute_reward=compute_reward)
    if config.total_steps and config.unroll_length % buffer.unroll_length:
        raise ValueError(
            f"`unroll_length` must be a multiple of the buffer's, {buffer.unroll_length}, whose rows would stay unused "
            f"else: give that one, or make the buffer with the run's. Received: unroll_length={config.unroll_length}, "
            f"init_buffer={str(folder)!r}"
        )
    return buffer


def _with_buffer(config: TrainConfig, learner: Learner, actors: PoolPolicy | ActorPool) -> Learner:
    """Return the learner with a replay buffer, if it needs one, and say how large it is."""
    from actor_learner.learner.replay import ReplayLearner

    if isinstance(learner, ReplayLearner):
        if learner.buffer is None and config.init_buffer is not None:
            buffer = _initial_buffer(config, config.init_buffer, actors, learner.hindsight)
            try:
                learner.use_buffer(buffer)
            except ValueError as error:
                raise ValueError(f"`init_buffer` {str(config.init_buffer)!r} doesn't fit: {error}") from error
        buffer = learner.make_buffer(config.unroll_length, action_masks=actors.uses_masks)
        if not config.quiet:
            print(f"The replay buffer takes {size_text(buffer.nbytes)}: {buffer.capacity:,} env steps.")
    return learner


def _return_statistics(config: TrainConfig) -> ReturnStatistics:
    """Return the statistics by which the run that `init_from` names scaled rewards, new ones if this run doesn't.

    Warns if only one of them does.
    """
    from actor_learner.learner.rewards import NO_RETURNS
    from actor_learner.learner.state import read_return_statistics

    assert config.init_from is not None
    learner = learner_folder(config.init_from)
    statistics = None if learner is None else read_return_statistics(learner)
    scales = config.algorithm.rewards.scale
    if scales != (statistics is not None):
        what = "has no statistics of scaled rewards, which start anew" if scales else "scaled rewards, this run doesn't"
        warnings.warn(
            f"`init_from` {what}: the values that its network predicts are in another unit, and must be learned again. "
            f"Received: normalize_reward={scales}, init_from={str(config.init_from)!r}",
            UserWarning,
            stacklevel=2,
        )
    if statistics is None or not scales:
        return NO_RETURNS
    return dataclasses.replace(statistics, count=min(statistics.count, config.init_from_count or math.inf))


def check_networks(config: TrainConfig, actors: ActorPool, run: RunDirectory) -> None:
    """Raise ValueError for a network of one's own that can't be saved."""
    for policy in actors.policies:
        if config.of_policies[policy.name].network is not None:
            check_can_be_saved(policy.network, run.path)


def has_rows(learner: Any, batch: Trajectory | Mapping[str, Trajectory]) -> bool:
    """Return whether a learner finds rows in a batch: a pool returns no other where there is one policy."""
    return not isinstance(batch, Mapping) or any(batch[name].valid.any() for name in learner.members)


def warn_of_bounds(actors: ActorPool, batch: Trajectory | Mapping[str, Trajectory]) -> None:
    """Warn where the first batch hardly fits the bounds of its spaces."""
    for policy in actors.policies:
        trajectory = batch[policy.name] if isinstance(batch, Mapping) else batch
        validate.warn_of_bounds(trajectory, policy.spaces, policy.exported.distribution)


def export_result(actors: ActorPool) -> dict[str, ExportedPolicy]:
    """Return the policies that a run saves, for one observation; `save_result` replaces their weights."""
    return {policy.name: _export_policy(policy) for policy in actors.policies}


def _export_policy(policy: PoolPolicy) -> ExportedPolicy:
    """Return a policy for one observation.

    The actors' own graphs serve if they take one observation, too, and masks where there are choices.
    """
    from actor_learner.policy.export.exporting import export_policy

    exported, network = policy.exported, policy.policy_network
    resizable = exported.step_graph.resizable and exported.value_graph.resizable and network is policy.network
    if resizable and exported.masked == (exported.spaces().masks.size > 0) and exported.fits(network):
        return dataclasses.replace(exported, batch_size=1)
    return export_policy(network, policy.action_space, 1, policy.policy_space, masked=True)


def save_result(run: RunDirectory, actors: ActorPool, exported: Mapping[str, ExportedPolicy] | None) -> None:
    """Write a run's network, and its policy, which needs no TensorFlow; with several policies, those of each.

    exported: an earlier result of `export_result`, of which only the weights have to be replaced.
    """
    for policy in actors.policies:
        folder, network = policy_folder(run.path, policy.name), policy.policy_network
        folder.mkdir(parents=True, exist_ok=True)
        save_network(policy.network, folder)
        of_actors = None if exported is None else exported[policy.name]
        if of_actors is None or not of_actors.fits(network):
            of_actors = _export_policy(policy)
        weights = of_actors.as_vector(network.get_weights())
        saved = dataclasses.replace(of_actors, weights=weights, trained_with_masks=policy.uses_masks)
        saved.save(folder / run.policy.name)


def result_network(learner: Any) -> Any:
    """Return a learner's network; a dict by name with several policies."""
    return getattr(learner.network, "networks", learner.network)


def finished_network(config: TrainConfig, run: RunDirectory) -> Any:
    """Return the network of a run that has taken all its steps; a dict by name with several policies."""
    if not config.quiet:
        print(f"The run in {run.path} has finished: it took its {config.all_steps:,} steps.")
    found = {name: _finished_network(own, policy_folder(run.path, name)) for name, own in config.of_policies.items()}
    return of_one(found)


def _finished_network(config: TrainConfig, folder: Path) -> keras.Model:
    """Return a network as its file has it: the policy's space may lack entries. A model of one's own gets weights."""
    import keras

    if not isinstance(config.network, keras.Model):
        try:
            return load_network(folder)
        except ValueError:  # of which Keras couldn't save the whole
            if config.network is None:
                raise
    policy = load_policy(folder)
    try:
        return make_network(config, folder, policy.observation_space, policy.action_space)
    except ValueError:
        return load_network(folder)
