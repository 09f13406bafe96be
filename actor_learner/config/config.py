"""TrainConfig: the settings of a run in one frozen dataclass, from which the command line is derived.

Nothing here imports TensorFlow or keras, so that refusals are quick.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from actor_learner.algorithms import BY_NAME
from actor_learner.algorithms.hyperparameters import Hyperparameters
from actor_learner.algorithms.ppo import PPO
from actor_learner.config import references
from actor_learner.config.policies import PolicyConfig, seed_of
from actor_learner.config.pool_checks import check_sequences, check_shared_envs, check_tf32
from actor_learner.config.references import algorithm_class, callable_name
from actor_learner.config.self_play import SelfPlay
from actor_learner.config.settings import (
    OF_PROCESSES,
    OF_SCHEDULE,
    Check,
    PoolSettings,
    choice,
    count,
    flag,
    names_of,
    number,
    on_device,
    setting,
    with_help,
)
from actor_learner.spaces.jax_env import steps_on_device
from actor_learner.system import fields as checks
from actor_learner.system.fields import close_match, refusal
from actor_learner.system.hub import is_on_hub
from actor_learner.system.keras_import import BACKENDS, use_backend
from actor_learner.system.policies import ONLY_POLICY, POLICIES_FOLDER

PRECISIONS = ("float32", "tf32", "bfloat16")
_BY_RULE = ("auto", None)  # precisions that Keras's dtype policy, and the device, decide

ENV_HELP = "Gymnasium id, module:Id-v0, module:factory, or in JAX gymnax:Id, brax:Id, jax:module:name"
_NETWORK_HELP = "a function of the observation and the action space that returns a Keras model"

ENV_ARGUMENTS = ("env", "env_kwargs", "vectorization", "wrappers", "wrapper_kwargs")

FORMAT = 1
"""The number of the format of config.json, and of all of a run directory that has no number of its own."""

RECORDED = ("versions", "machine", "git", "chosen", "finished", "changes", "seeds")
"""Entries of config.json beside the fields of the config."""


def _env(name: str, value: Any) -> Any:
    if not callable(value) and not (isinstance(value, str) and value) and not hasattr(value, "step"):
        raise refusal(name, "an id, module:factory or a callable", value)
    return value


def _optional(expected: str, is_usable: Callable[[Any], bool]) -> Check:
    """Return a check that takes None, too."""

    def check(name: str, value: Any) -> Any:
        if value is not None and not is_usable(value):
            raise refusal(name, expected, value)
        return value

    return check


_path = _optional("a path, or None", lambda value: isinstance(value, str | os.PathLike) and bool(str(value)))


def _folder(name: str, value: Any) -> Any:
    """Return a path to write to."""
    if is_on_hub(value):
        raise refusal(name, "a folder of this machine; to go on from a run of the Hub, give --init-from", str(value))
    return _path(name, value)


_activation = _optional("a Keras name", lambda value: isinstance(value, str))
_critics = _optional("a callable that returns a keras.Model, or None", callable)
_compute_reward = _optional("a function (achieved goals, desired goals, infos) -> rewards, or None", callable)


def _hidden_sizes(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise refusal(name, "a sequence of integers", value)
    sizes = tuple(value)
    try:
        return tuple(checks.check_count(name, size) for size in sizes)
    except ValueError:
        raise refusal(name, "integers of at least 1", sizes) from None


def _callbacks(name: str, value: Any) -> tuple[Any, ...]:
    expected = "a list of keras.callbacks.Callback objects or names, module:factory"
    if isinstance(value, str) or (value is not None and not isinstance(value, Iterable)):
        raise refusal(name, expected, value)
    callbacks = tuple(value or ())
    if unnamed := [one for one in callbacks if isinstance(one, str) and not all(one.partition(":"))]:
        raise refusal(name, expected, unnamed)
    return callbacks


def _env_kwargs(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refusal(name, "a dict with names as keys", value)
    return dict(value)


@dataclass(frozen=True, kw_only=True)
@with_help
class TrainConfig(checks.NamedFields, PoolSettings):
    """All settings of a run, those of its actors included: `PoolSettings`.

    Every field is a flag of `actor-learner train`; that of `callbacks` is `--callback`, once for each.
    An unusable value raises ValueError here, before anything is started or written.

    Attributes:
        env: Gymnasium id, "module:Id-v0", "package.module:factory", or a callable. A callable with a parameter named
            `num_envs` returns a VectorEnv; any other (a class too) returns an Env. Or an environment in JAX: an
            `al.JaxEnv`, "jax:module:name", or an id of gymnax:, brax:, playground:, jumanji: or craftax:.
        env_kwargs: keyword arguments for the environment.
        algorithm: hyperparameters: `PPO(...)`, `A2C(...)`, `Impala(...)`, `DQN(...)`, `QRDQN(...)`, `PQN(...)`,
            `SAC(...)`, `TQC(...)`, `CrossQ(...)`, `TD3(...)`, `BC(...)`, `IQL(...)`, or a dataclass of your own.
        total_steps: env steps to train for, over all environments; 0: none, with `offline_steps`.
        offline_steps: gradient steps on the rows of `init_buffer` before the first env step. They count as steps of the
            run for schedules, epochs and evaluations. `learning_starts` is then 0.
        unroll_length: env steps of each environment in a batch; None: 128, or 4 with a replay buffer, 32
            with PQN.
        max_policy_lag: 0: actors wait for each update; n: they collect up to n batches ahead, batch j with version
            max(0, j - n) of the weights, so that runs repeat their bytes; None: 1 for PPO and IMPALA, 0 for other
            algorithms.
        asynchronous: actors run freely, as in IMPALA and Sample Factory: none waits for another, weights
            are at most `max_policy_lag` (2 or more) versions old, and runs don't repeat their bytes (see `ActorPool`);
            None: with IMPALA where the lag is above 1.
        sequence_length: env steps of the sequences from which a network with memory learns; None: whole unrolls, or
            the longest equal parts of them that a minibatch holds. Gradients don't teach the policy to remember
            events older than one sequence.
        burn_in: first rows of each sequence without a loss, which only bring the state up to date.
        learner_threads: cores for the learner, fixed once the backend has started; None: at the command line all cores
            in lock-step, otherwise those that the actors leave; in Python the backend's own setting.
        seed: seed of networks, environments, sampling and shuffling.
        deterministic_ops: compute each operation in a fixed order on a GPU, so that runs repeat there, too, if more
            slowly. Without effect on a CPU, where they repeat anyway.
        debug: run updates operation by operation: a breakpoint or `print` in a loss sees numbers. Slow.
        diagnose: measure each layer in each minibatch: its gradient, its step and its dead units, as metrics
            `diagnose/...`, which the report draws. The weights stay the same.
        backend: "tensorflow" or "jax", the backend of Keras, fixed once Keras is imported; None: KERAS_BACKEND,
            otherwise "tensorflow".
        run_dir: directory of the run; None: runs/<env>/<algorithm>-<seed>-<n>, with the first free n.
        overwrite: replace the run in `run_dir`.
        init_from: run to start from, in a directory or on the Hub (hf://owner/name): its weights, also of critics, and
            its statistics of observations and of scaled rewards. Optimizer, counters and replay buffer are new.
        init_from_count: largest weight of those statistics, in observations; None: their own number.
        init_buffer: replay buffer to begin with, such as demonstrations: a saved buffer's or a checkpoint's folder, or
            minari:NAME of a Minari dataset. The buffer gets the algorithm's `buffer_size`.
        compute_reward: with `hindsight`, the function (achieved goals, desired goals, infos) -> rewards, where the
            learner can't build the environment; None: that of an environment that it builds.
        eval_every: env steps between evaluations, which report `evaluation/return_mean` and the `info_keys`; None: no
            evaluations; in Python also by an `al.callbacks.Evaluate`.
        eval_episodes: episodes of each.
        stop_at: mean return at which the run ends: of an evaluation, or else of the last 100 episodes of training.
        updates_per_epoch: updates of an epoch, after which callbacks are called; None: a hundredth of all.
        checkpoint_minutes: minutes between checkpoints; the first follows the first update; None: not by time.
        checkpoint_updates: updates between checkpoints; None: not by updates. The end of a run always writes one.
        keep_checkpoints: number of newest checkpoints to keep, beside the best ones and milestones.
        keep_best_checkpoints: number of best checkpoints to keep: the last ones whose return was the highest so far.
        best_by: the return that chooses them: "training", of 100 episodes or more, or "evaluation", of the first
            callback that evaluates. "auto": evaluation's if there is one.
        checkpoint_buffer: whether checkpoints hold the replay buffer. Without it, a resumed run first fills a tenth of
            a buffer with the loaded policy.
        milestone_steps: env steps between checkpoints that are kept forever; None: no milestones.
        max_undone_updates: number of undone updates in a row that ends the run; an update is undone if it isn't finite.
        undone_rate_factor: factor on the learning rate after each undone update.
        tensorboard: write TensorBoard's event files into the run's directory.
        histogram_updates: updates between histograms of the weights in the event files; None: no histograms.
        quiet: print no progress.
        verbose: print a line for every update, and the run's log.
        hidden_sizes: sizes of the hidden layers for vectors, in the default network and default critics; None: 64,64,
            or 256,256 with a replay buffer or PQN.
        activation: activation of the hidden layers, by Keras's name; None: tanh, or relu with a replay buffer or
            PQN.
        orthogonal_init: orthogonal initialization as in SB3's PPO, otherwise uniform by fan-in; None: orthogonal,
            except with a replay buffer or PQN.
        layer_norm: layer normalization before the activation of each hidden layer and convolution, in the default
            network and default critics; None: with PQN alone.
        initial_log_std: logarithm of the initial standard deviation of Box actions.
        image_network: default network for images: "nature", "impala", "impoola" or "small". "auto": nature from 36 x 36
            pixels on, small from 4 x 4 on; below, images are vectors.
        channel_axis: axis of an image's channels, if it is ambiguous: a frame's first or last axis. It is counted in
            the whole shape, including the axis of stacked frames.
        normalize_observation: normalize observations by running statistics, inside the network.
        distribution: distribution of Box actions: "gaussian", clipped to the bounds, or "squashed" into them by tanh.
        noise_hold: env steps for which an environment keeps its exploration noise. Above 1, this biases the policy
            gradient.
        memory: memory behind the hidden layers of the default network: "lstm", "gru" or "attention" (over the last 32
            steps). Policy and value then share both. None: no memory.
        memory_size: units of the memory.
        precision: precision of the computations in the network's layers: "float32" or "bfloat16"; or "tf32": layers in
            float32, whose products round to 10 bits of mantissa in an NVIDIA GPU. Weights are float32. "auto": by
            Keras's dtype policy, and "tf32" for a network with convolutions in float32, where the GPU has it. None: by
            that policy alone.
        network: keras.Model, or callable(observation_space, action_space) -> keras.Model, in place of the default.
        critics: callable(observation_space, action_space) -> keras.Model, called for each critic, in place of
            `default_critic`.
        callbacks: keras.callbacks.Callback objects, or names of functions that return one: "module:factory".

    Example:
        >>> import actor_learner as al
        >>> config = al.TrainConfig(env="CartPole-v1", algorithm=al.PPO(learning_rate=1e-3), total_steps=50_000)
    """

    OWNER: ClassVar[str] = "TrainConfig"

    env: str | Callable[..., Any] = setting("CartPole-v1", "environment", check=_env, help=ENV_HELP)
    env_kwargs: Mapping[str, Any] = setting(dict, "environment", check=_env_kwargs)
    algorithm: Any = setting(PPO, "algorithm", help=f"{', '.join(BY_NAME)} or module:Class")
    total_steps: int = count(500_000, 0, effect="pace")
    offline_steps: int = count(0, 0, effect="pace")
    unroll_length: int = count(None, 1, "actors")
    max_policy_lag: int = count(
        None,
        0,
        "actors",
        help="0: actors wait for each update; n: they collect up to n batches ahead, by weights n versions old; "
        "default: 1 for PPO and IMPALA, else 0",
    )
    asynchronous: bool = flag(None, "actors")
    sequence_length: int | None = count(None, 1, "algorithm")
    burn_in: int = count(0, 0, "algorithm")
    compute_reward: Any = setting(None, "algorithm", check=_compute_reward, metavar="MODULE:NAME")
    learner_threads: int | None = count(
        None,
        1,
        "actors",
        effect="pace",
        help="cores for the learner; default: all with lag 0, otherwise those that the actors leave",
    )
    seed: int = setting(0, check=functools.partial(checks.check_count, least=0, most=2**32 - 1), owner="learner")
    deterministic_ops: bool = flag(False, owner="learner", effect="none")
    debug: bool = flag(False, owner="learner", effect="none")
    diagnose: bool = flag(False, owner="learner", effect="none")
    backend: Literal["tensorflow", "jax"] | None = choice((None, *BACKENDS), owner="learner")
    run_dir: str | os.PathLike[str] | None = setting(None, check=_folder, effect="none")
    overwrite: bool = flag(False, effect="none")
    init_from: str | os.PathLike[str] | None = setting(None, check=_path)
    init_from_count: int | None = count(None, 1)
    init_buffer: str | os.PathLike[str] | None = setting(None, check=_path)
    eval_every: int | None = count(None, 1, effect="none")
    eval_episodes: int = count(10, 1, effect="none")
    stop_at: float | None = number(None, effect="none", bounds={"optional": True})
    updates_per_epoch: int | None = count(None, 1, effect="none")
    checkpoint_minutes: float | None = number(1.0, "checkpoints", effect="none", bounds={"above": 0, "optional": True})
    checkpoint_updates: int | None = count(None, 1, "checkpoints", effect="none")
    keep_checkpoints: int = count(3, 1, "checkpoints", effect="none")
    keep_best_checkpoints: int = count(1, 0, "checkpoints", effect="none")
    best_by: Literal["auto", "training", "evaluation"] = choice(
        ("auto", "training", "evaluation"), "checkpoints", effect="none"
    )
    milestone_steps: int | None = count(None, 1, "checkpoints", effect="none")
    checkpoint_buffer: bool = flag(True, "checkpoints", effect="none")
    max_undone_updates: int = count(10, 1, "faults", effect="none")
    undone_rate_factor: float = number(1.0, "faults", effect="pace", bounds={"above": 0, "most": 1})
    tensorboard: bool = flag(True, effect="none")
    histogram_updates: int | None = count(None, 1, effect="none")
    quiet: bool = flag(False, effect="none")
    verbose: bool = flag(False, effect="none")
    hidden_sizes: tuple[int, ...] = setting(None, "network", check=_hidden_sizes)
    activation: str = setting(None, "network", check=_activation)
    orthogonal_init: bool = flag(None, "network")
    layer_norm: bool = flag(None, "network")
    initial_log_std: float = number(0.0, "network")
    image_network: Literal["auto", "nature", "impala", "impoola", "small"] = choice(
        ("auto", "nature", "impala", "impoola", "small"), "network"
    )
    channel_axis: int | None = count(None, None, "network")
    normalize_observation: bool = flag(False, "network")
    distribution: str = choice(("gaussian", "squashed"), "network")
    noise_hold: int = count(1, 1, "network")
    memory: Literal["lstm", "gru", "attention"] | None = choice((None, *checks.MEMORIES), "network")
    memory_size: int = count(128, 1, "network")
    precision: Literal["auto", "float32", "tf32", "bfloat16"] | None = choice(("auto", *PRECISIONS, None), "network")
    network: Any = setting(None, "network", help=_NETWORK_HELP, metavar="MODULE:NAME")
    critics: Any = setting(None, "network", check=_critics, help=_NETWORK_HELP, metavar="MODULE:NAME")
    callbacks: Sequence[Any] = setting(tuple, check=_callbacks, effect="none")

    def __post_init__(self) -> None:
        self._check_fields()
        object.__setattr__(self, "_asked", {"num_actors": self.num_actors, "num_envs": self.num_envs})
        object.__setattr__(self, "backend", use_backend(self.backend))
        self._take_defaults()
        self._check_algorithm()
        self._check_network()
        self._record_precision()
        if self.quiet and self.verbose:
            raise ValueError("`quiet` and `verbose` exclude each other. Received: quiet=True, verbose=True")
        self._check_pool()
        self._split_environments()
        self._check_devices()
        self._check_sequences()
        if self.policies is not None:
            object.__setattr__(self, "_of_policies", self._policy_configs(self.policies))

    @property
    def all_steps(self) -> int:
        """The steps of the run: gradient steps offline, then env steps."""
        return self.total_steps + self.offline_steps

    def _begin_offline(self) -> None:
        """Check a run that learns offline; it has no warm-up."""
        if not self.offline_steps:
            if not self.total_steps:
                raise refusal("total_steps", "at least 1, or 0 with `offline_steps`", 0)
            return
        kind, given = type(self.algorithm).__name__, self.offline_steps
        if not self.algorithm.REPLAYS:
            raise refusal("offline_steps", f"0 for {kind}, which has no replay buffer", given)
        if self.init_buffer is None:
            expected = "`offline_steps` needs rows to learn from: `init_buffer`, a run's checkpoint or 'minari:NAME'"
            raise ValueError(f"{expected}. Received: offline_steps={given}, init_buffer=None")
        if self.policies is not None or self.self_play is not None:
            other = "policies" if self.policies is not None else "self_play"
            raise ValueError(f"`offline_steps` and `{other}` exclude each other. Received: offline_steps={given}")
        object.__setattr__(self, "algorithm", dataclasses.replace(self.algorithm, learning_starts=0))

    def require_one_policy(self, what: str) -> None:
        """Raise ValueError for several policies. what: the command that is of one."""
        if self.policies is not None:
            text = f"`policies` must be left out of {what}, which measures one policy"
            raise ValueError(f"{text}. Received: policies={list(self.policies)}")

    @property
    def acts_on_device(self) -> bool:
        """True if the learner's device steps the environments, which are written in JAX."""
        return steps_on_device(self.env, self.vectorization)

    def require_actors(self, what: str) -> None:
        """Raise ValueError where the device steps the environments. what: the command that measures actors."""
        if self.acts_on_device:
            text = f"{what} measures actors, of which an environment in JAX has none; `train` shows its speed"
            raise ValueError(f"{text}. Received: env={self.env!r}")

    @property
    def of_policies(self) -> Mapping[str, TrainConfig]:
        """The config of each policy by its name: the run's, where several play with the policy's own fields over it."""
        return vars(self).get("_of_policies") or {ONLY_POLICY: self}

    def _policy_configs(self, policies: Mapping[str, PolicyConfig]) -> dict[str, TrainConfig]:
        if self.devices > 1:
            raise ValueError(f"`policies` learn on one device each. Received: devices={self.devices}")
        if hasattr(self.network, "get_weights"):
            raise refusal("network", "a callable, beside `policies`, so that each gets one of its own", self.network)
        configs: dict[str, TrainConfig] = {}
        for place, (name, policy) in enumerate(policies.items()):
            try:
                configs[name] = self._policy_config(place, name, policy)
            except ValueError as error:
                raise ValueError(f"`policies`, {name}: {error}") from error
        if not any(policy.learning for policy in policies.values()):
            raise ValueError(f"`policies` must have one that learns. Received: learning=False for {list(policies)}")
        return configs

    def _policy_config(self, place: int, name: str, policy: PolicyConfig) -> TrainConfig:
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in policy.fields.items()}
        algorithm = fields.pop("algorithm", None) or self.algorithm
        if isinstance(algorithm, Mapping):
            algorithm = references.algorithm_from_json(algorithm)
        elif isinstance(algorithm, str):
            algorithm = algorithm_class(algorithm)()
        if isinstance(network := fields.get("network"), str):
            fields["network"] = references.resolve_recorded(network, "network")
        if isinstance(algorithm, Hyperparameters):
            hyperparameters = names_of(type(algorithm)) & fields.keys()
            known = names_of(type(algorithm)) | POLICY_FIELDS
            check_known(f"A policy of {type(algorithm).__name__} has", fields, known)
            changes: dict[str, Any] = {key: fields.pop(key) for key in hyperparameters}
            algorithm = dataclasses.replace(algorithm, **changes)
        source: Any = fields.get("init_from")
        if source is not None and os.path.isdir(folder := os.path.join(source, POLICIES_FOLDER, name)):
            fields["init_from"] = folder  # of a run with several, the one of this name
        if self.init_from is not None and not {"network", "init_from"} & fields.keys():
            fields["init_from"] = os.path.join(self.init_from, POLICIES_FOLDER, name)
        elif self.init_from is not None:
            fields.setdefault("init_from", None)
        shared: dict[str, Any] = {key: getattr(self, key) for key in ("unroll_length", *OF_SCHEDULE)}
        if fields.get("init_from", fields.get("network")) is not None:  # which brings a network
            given = self.network_fields()
            shared |= {field.name: field.default for field in dataclasses.fields(self) if field.name in given}
        shared |= {"policies": None, "policy_of": None, "callbacks": (), "seed": seed_of(self.seed, place)}
        return self.replace(**shared, **fields, algorithm=algorithm)

    def _algorithm_defaults(self) -> Mapping[str, Any]:
        chosen = isinstance(self.algorithm, Hyperparameters)
        return self.algorithm.config_defaults if chosen else Hyperparameters.CONFIG_DEFAULTS

    def _take_defaults(self) -> None:
        """Take the algorithm's defaults where fields are left open."""
        defaults = self._algorithm_defaults()
        object.__setattr__(self, "_left_open", {name for name in defaults if getattr(self, name) is None})
        if self.acts_on_device:  # where others have processes
            given = {name: getattr(self, name) for name in (*OF_PROCESSES, "num_envs", "env")}
            of_processes = {field.name: field.default for field in dataclasses.fields(self) if field.name in given}
            for name, value in on_device(given, of_processes, str(self.backend)).items():
                object.__setattr__(self, name, value)
        for name in self.left_open:
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[name])
        if "asynchronous" in self.left_open and (self.max_policy_lag < 2 or not self.num_actors):
            object.__setattr__(self, "asynchronous", False)  # where nothing runs freely

    @property
    def left_open(self) -> Collection[str]:
        """The names of the fields that weren't given, and have the algorithm's defaults."""
        names: Collection[str] = vars(self)["_left_open"]
        return names

    def _check_devices(self) -> None:
        if self.devices == 1:
            return
        if self.backend != "jax":
            received = f"devices={self.devices}, backend={self.backend!r}"
            raise ValueError(f"`devices` above 1 needs JAX (--backend jax). Received: {received}")
        check_shared_envs(self.devices, sum(self.env_counts))
        self.algorithm.check_devices(self.devices)

    def _check_sequences(self) -> None:
        """Check what only matters to a network with memory, which one that is given may have."""
        if self.memory is None and self.network is None and self.init_from is None:
            if self.sequence_length is not None or self.burn_in:
                received = f"sequence_length={self.sequence_length}, burn_in={self.burn_in}"
                raise ValueError(f"`sequence_length` and `burn_in` need a network with memory. Received: {received}")
            return
        if self.algorithm.REPLAYS:
            if self.memory is not None:
                kind = type(self.algorithm).__name__
                raise refusal(
                    "memory", f"None for {kind}, whose rows are drawn one by one; PQN and PPO take one", self.memory
                )
            return
        if self.memory == "attention":
            checks.check_heads("memory_size", self.memory_size)
        source = self.algorithm.source().share(self.devices)
        longest = source.longest_sequence(self.unroll_length)
        length = check_sequences(self.sequence_length, self.burn_in, self.unroll_length, longest)
        if self.memory is not None:
            source.of_sequences(length)

    def _split_environments(self) -> None:
        counts = self.env_counts
        if self.num_envs is not None:  # fewer actors or environments than asked for
            object.__setattr__(self, "num_actors", min(self.num_actors, len(counts)))
            object.__setattr__(self, "num_envs", sum(counts))

    def _check_algorithm(self) -> None:
        if not isinstance(self.algorithm, Hyperparameters):
            known = BY_NAME.get(self.algorithm, PPO) if isinstance(self.algorithm, str) else PPO
            what = f"an instance of an algorithm's dataclass, such as al.{known.__name__}()"
            raise refusal("algorithm", what, self.algorithm)
        self._begin_offline()
        self.algorithm.check_unroll_length(self.unroll_length)
        self.algorithm.check_config(self)
        if self.undone_rate_factor < 1 and (source := self.algorithm.rate_source):
            raise ValueError(
                "`undone_rate_factor` needs a constant learning rate; a schedule writes its own before each update. "
                f"Received: undone_rate_factor={self.undone_rate_factor}, {source}"
            )

    def _check_network(self) -> None:
        given = self.network_fields()
        if self.network is not None:
            if self.init_from is not None:
                received = f"network, init_from={self.init_from}"
                raise ValueError(f"`network` and `init_from` exclude each other. Received: {received}")
            if not callable(self.network):
                raise refusal("network", "a keras.Model or a callable that returns one", self.network)
            given.pop("normalize_observation", None)  # wraps the network that was passed
            if self.normalize_observation and (self.centralized_value or self.value_keys):
                name = "centralized_value" if self.centralized_value else "value_keys"
                text = f"With `{name}`, build al.ObservationNormalization layers into the network of your own"
                raise ValueError(f"{text}. Received: normalize_observation=True")
        if given and (self.network is not None or self.init_from is not None):
            other = "network" if self.network is not None else "init_from"
            received = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(
                f"Fields of the default network can't be combined with `{other}`, which brings a network. "
                f"Received: {received}"
            )

    def _record_precision(self) -> None:
        """Take the precision from Keras's dtype policy, where that decides, so that the run can be repeated."""
        if self.tf32:  # of the device, whatever the network
            check_tf32(self.device)
            return
        layers = list(self.network._flatten_layers()) if hasattr(self.network, "dtype_policy") else []
        built_already = self.init_from is not None or bool(layers)
        computed_in = {layer.compute_dtype for layer in layers}
        if self.precision not in _BY_RULE and built_already and self.precision not in computed_in:
            raise ValueError(
                "`precision` is for a network that the run builds; one that is given computes in its own, by the dtype "
                f"policy that it was built under. Received: precision={self.precision!r}"
            )
        if self.precision in _BY_RULE and not built_already and "keras" in sys.modules:
            policy = sys.modules["keras"].config.dtype_policy()
            found = next((name for name in PRECISIONS if policy.name == f"mixed_{name}"), self.precision)
            object.__setattr__(self, "precision", found)
            computed_in = {policy.compute_dtype}
        if "float16" in computed_in:
            raise ValueError(
                "The network must compute in bfloat16 or float32 (the dtype policy 'mixed_bfloat16' or 'float32'): "
                f"float16 is no longer supported. Received: {', '.join(sorted(computed_in))}"
            )

    def network_fields(self, *, all_fields: bool = False) -> dict[str, Any]:
        """Return the fields of the default network: those that differ from their default, or all."""
        defaults = self._algorithm_defaults()
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name in DEFAULT_NETWORK_FIELDS
            and ((value := getattr(self, field.name)) != defaults.get(field.name, field.default) or all_fields)
        }

    @property
    def local_actors(self) -> int:
        """The number of actors that are known to run on this machine: none where a cluster's machines run them."""
        return 0 if self.ray_address is not None else self.num_actors

    @property
    def tf32(self) -> bool:
        """True if products of float32 are to be computed in TF32, whatever the network."""
        return self.precision == "tf32"

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The environment and all that it is built from: the arguments of `resolve_env`."""
        return {name: getattr(self, name) for name in ENV_ARGUMENTS}

    @property
    def algorithm_name(self) -> str:
        """The algorithm's class in lower case, as in names of run directories: "ppo"."""
        return type(self.algorithm).__name__.lower()

    @property
    def env_name(self) -> str:
        """The environment's id, or its callable's module and name."""
        return self.env if isinstance(self.env, str) else callable_name(self.env)

    def replace(self, **changes: Any) -> TrainConfig:
        """Return a copy with other values, checked like a new config.

        Of `num_envs` and `envs_per_actor`, a new one takes the place of the other. The environments are split anew from
        the numbers that were asked for.
        """
        asked = vars(self)["_asked"]
        if not changes.keys() & {*asked, "envs_per_actor", *OF_SCHEDULE}:
            asked = {}
        left_open = dict.fromkeys(self.left_open)
        return dataclasses.replace(self, **{**left_open, **asked, **_without_other_counts(changes), **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the config as JSON types.

        An environment or network that can be imported by its name becomes "module:name", as at a shell, and any other
        function or class `{"import": "module:name"}`. What JSON can't hold becomes `{"callable": "module:name"}`.
        """
        values = _fields_to_json(self)
        for name in ("env", "exploration", *references.FUNCTIONS):
            if found := references.importable_name(getattr(self, name)):
                values[name] = found
        name = references.algorithm_reference(type(self.algorithm))
        return {**values, "algorithm": {"name": name, **_fields_to_json(self.algorithm)}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], **passed: Any) -> TrainConfig:
        """Return the config that `to_json` wrote; `passed` replaces fields.

        Raises ValueError for what can't be imported, or isn't stored, and isn't in `passed`.
        """
        names = names_of(cls) - passed.keys()
        recorded = {name: value for name, value in of_this_version(data).items() if name in names}
        if missing := {name: marks for name, value in recorded.items() if (marks := references.callable_marks(value))}:
            raise ValueError(f"A run's config.json {references.ask_again(missing)}")
        values = {name: references.imported(value, name) for name, value in recorded.items()} | passed
        for name in references.FUNCTIONS:
            if isinstance(values.get(name), str):
                values[name] = references.resolve_recorded(values[name], name)
        if isinstance(values.get("algorithm"), Mapping):
            values["algorithm"] = references.algorithm_from_json(values["algorithm"])
        return cls(**values)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TrainConfig:
        """Return the config of flat fields: its own and its algorithm's, which `algorithm` names or is.

        Raises ValueError for fields that neither has, with the close match.
        """
        values = dict(fields)
        algorithm = values.pop("algorithm", None) or "ppo"
        kind = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
        own, names = names_of(cls), names_of(kind) if dataclasses.is_dataclass(kind) else frozenset()
        check_known(f"TrainConfig and {kind.__name__} have", values, own | names)
        hyperparameters = {name: values.pop(name) for name in names & values.keys()}
        if isinstance(algorithm, str):
            algorithm = kind(**hyperparameters)
        elif hyperparameters:
            algorithm = dataclasses.replace(algorithm, **hyperparameters)
        return cls(**values, algorithm=algorithm)


def _without_other_counts(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return None for `num_envs` or `envs_per_actor` where changes give the other one alone."""
    names = {"num_envs", "envs_per_actor"}
    given = {name for name in names if changes.get(name) is not None}
    return dict.fromkeys(names - changes.keys()) if given else {}


def of_this_version(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run's config.json, of an earlier version, as this one means them.

    An earlier default of `image_network` beside another network is left out. Above lag 1, actors ran freely.
    """
    default_network = recorded.get("network") is None and recorded.get("init_from") is None
    found = {name: value for name, value in recorded.items() if default_network or name != "image_network"}
    if isinstance(lag := recorded.get("max_policy_lag"), int) and lag > 1:
        found.setdefault("asynchronous", True)
    return found


def check_known(owner: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ValueError for an unknown field, with the close match. owner: "PPO has"."""
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{owner} no such field{close_match(name, known)}. Received: {name}={value!r}")


POLICY_FIELDS = frozenset(
    {field.name for field in dataclasses.fields(TrainConfig) if field.metadata["group"] in ("network", "algorithm")}
    | {"init_from", "init_from_count", "init_buffer"}
)
"""The fields of a config that a `PolicyConfig` may have."""

_NETWORK_GROUP = [field.name for field in dataclasses.fields(TrainConfig) if field.metadata["group"] == "network"]
DEFAULT_NETWORK_FIELDS = tuple(name for name in _NETWORK_GROUP if name not in ("network", "critics", "precision"))


def _fields_to_json(fields: Any) -> dict[str, Any]:
    found = {field.name: getattr(fields, field.name) for field in dataclasses.fields(fields)}
    return {name: (_exactly if name in _KWARGS else _to_json)(value) for name, value in found.items()}


_KWARGS = ("env_kwargs", "wrapper_kwargs")


def plain_kwargs(config: TrainConfig) -> dict[str, Any]:
    """Return the keyword arguments as earlier versions wrote them, without the types of their values."""
    return {name: _to_json(getattr(config, name)) for name in _KWARGS}


def _exactly(kwargs: Any) -> Any:
    if isinstance(kwargs, Mapping):
        return {name: references.exact_json(value) for name, value in kwargs.items()}
    return [references.exact_json(value) for value in kwargs]


def _policy_field_to_json(value: Any) -> Any:
    if isinstance(value, Hyperparameters):
        return {"name": references.algorithm_reference(type(value)), **_fields_to_json(value)}
    return (references.importable_name(value) if callable(value) else None) or _to_json(value)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, SelfPlay):
        return value.to_json()
    if isinstance(value, PolicyConfig):
        fields = {"agents": value.agents, "learning": value.learning, **value.fields}
        return {key: _policy_field_to_json(field) for key, field in fields.items()}
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and not references.marked_name(value):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return references.as_mark(value)
