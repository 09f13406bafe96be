"""TrainConfig: all that a run needs, in one frozen dataclass of which the command line is the shadow.

Nothing here imports TensorFlow or keras, so that a refused value is answered at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import numbers
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from actor_learner.algorithms import BY_NAME
from actor_learner.algorithms.base import Algorithm
from actor_learner.algorithms.ppo import PPO
from actor_learner.system.fields import (
    NamedFields,
    check_choice,
    check_count,
    check_flag,
    check_info_keys,
    check_number,
    check_seconds,
    close_match,
    refusal,
)
from actor_learner.system.keras_import import import_keras_before


def _field(default: Any, help: str, group: str = "run") -> Any:
    """A dataclass field with its line of documentation, under which group of `--help` it stands, and its default."""
    metadata = {"help": help, "group": group}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(NamedFields):
    """What `train` runs. Every field is a flag of `actor-learner train`, except those that only code can give.

    A value that can't work raises ValueError here, before anything is started or written.

    Attributes:
        env: Gymnasium id, "module:Id-v0", "package.module:factory", or a callable: one with a parameter named
            `num_envs` returns a VectorEnv, any other (a class too) an Env.
        env_kwargs: keyword arguments for the environment.
        vectorization: "auto" takes the id's own vector environment where it has one; "sync" never does.
        autoreset_mode: of a vector environment that names none: "next_step", "same_step" or "disabled".
        info_keys: entries of the last step's `info` that go into the metrics, as `episode/<key>`.
        algorithm: hyperparameters: `PPO(...)`, `A2C(...)`, `Impala(...)`, or a dataclass of one's own.
        total_steps: env steps to train for, over all environments.
        num_actors: actor processes; 0 steps in this process, for debuggers.
        envs_per_actor: environments of each actor.
        unroll_length: env steps of each environment in a batch.
        max_policy_lag: 0: actors wait for each update; 1: they collect the next batch meanwhile; n > 1: they run
            freely, and what is learned from is at most n versions old (see `ActorPool`).
        learner_threads: cores that TensorFlow computes on, which is settled when it starts. None: at the command line
            all, or those that actors leave which go on during an update; from Python, as TensorFlow was told.
        seed: seeds networks, environments, sampling and shuffling.
        device: "auto" takes a GPU where TensorFlow sees one; "gpu" insists; "cpu".
        run_dir: where the run is kept. None: runs/<env>/<algorithm>-<seed>-<n>, n free.
        overwrite: replace the run that `run_dir` holds.
        init_from: directory of a run whose weights and statistics to start from; optimizer and counters are new.
        init_from_count: at most so many observations' weight for the statistics taken over; None: as they are.
        updates_per_epoch: updates between two calls of a callback's `on_epoch_end`. None: a hundredth of all.
        checkpoint_minutes: minutes between checkpoints, the first after the first update. None: not by the clock.
        checkpoint_updates: updates between checkpoints. None: not by their number. One is written at the end anyway.
        keep_checkpoints: how many of the newest to keep; every best one and the milestones stay beside them.
        milestone_steps: env steps between checkpoints that are kept for ever. None: none is.
        on_env_error: what an exception in an environment does: "restart" replaces the actor, "raise" ends the run.
        max_restarts: actors replaced over the whole run, beyond which it ends with the cause.
        actor_timeout: seconds without a sign of life after which an actor is replaced; longer than any env step takes.
        start_timeout: seconds for an actor to start, and to make and reset its environments.
        max_undone_updates: updates in a row that are undone, because they gave what isn't finite, and end the run.
        undone_rate_factor: the learning rate is multiplied by it after an update that is undone.
        tensorboard: write TensorBoard's event files into the run's directory.
        histogram_updates: updates between histograms of the weights in them. None: none are written.
        quiet: print no progress.
        verbose: print a line for every update, and what goes into the run's log.
        hidden_sizes: sizes of the hidden layers of the default network, for vectors.
        activation: Keras's name of their activation.
        orthogonal_init: orthogonal initialization as in SB3, else uniform by fan-in.
        initial_log_std: logarithm of the initial standard deviation of Box actions.
        image_network: "nature" or "impala", for images.
        channel_axis: which axis of an image holds the channels, where that is ambiguous: the first or the last of a
            frame, counted in the whole shape, a stack of frames included.
        normalize_observation: centre and scale observations by running statistics, inside the network.
        distribution: of Box actions: "gaussian", clipped to the bounds; "squashed" into them by tanh.
        noise_hold: env steps for which an environment keeps its draw of exploration noise.
        network: keras.Model, or callable(observation_space, action_space) -> keras.Model, in place of the default.
        callbacks: keras.callbacks.Callback objects.

    Example:
        >>> import actor_learner as al
        >>> config = al.TrainConfig(env="CartPole-v1", algorithm=al.PPO(learning_rate=1e-3), total_steps=50_000)
    """

    WHOSE: ClassVar[str] = "TrainConfig"

    env: str | Callable[..., Any] = _field("CartPole-v1", "Gymnasium id, module:Id-v0 or module:factory", "environment")
    env_kwargs: Mapping[str, Any] = _field(dict, "keyword arguments for the environment", "environment")
    vectorization: Literal["auto", "sync"] = _field(
        "auto", "auto: the id's own vector environment where it has one", "environment"
    )
    autoreset_mode: Literal["next_step", "same_step", "disabled"] | None = _field(
        None, "of a vector environment that names none", "environment"
    )
    info_keys: tuple[str, ...] = _field(("is_success",), "entries of the last step's info to report", "environment")
    algorithm: Any = _field(PPO, "ppo, a2c, impala or module:Class", "algorithm")
    total_steps: int = _field(500_000, "env steps to train for, over all environments")
    num_actors: int = _field(2, "actor processes; 0 steps in this process, for debuggers", "actors")
    envs_per_actor: int = _field(8, "environments of each actor", "actors")
    unroll_length: int = _field(128, "env steps of each environment in a batch", "actors")
    max_policy_lag: int = _field(
        0, "0: actors wait for each update; 1: they collect the next batch meanwhile; n: they run freely", "actors"
    )
    learner_threads: int | None = _field(
        None, "cores that TensorFlow computes on; default: all, or what actors that go on meanwhile leave", "actors"
    )
    seed: int = _field(0, "seeds networks, environments, sampling and shuffling")
    device: Literal["auto", "cpu", "gpu"] = _field("auto", "auto takes a GPU where TensorFlow sees one")
    run_dir: str | os.PathLike[str] | None = _field(
        None, "where the run is kept; default: runs/<env>/<algorithm>-<seed>-<n>, n free"
    )
    overwrite: bool = _field(False, "replace the run that the run directory holds")
    init_from: str | os.PathLike[str] | None = _field(
        None, "run whose weights and statistics to start from; optimizer and counters are new"
    )
    init_from_count: int | None = _field(
        None, "observations that the statistics taken over count as, at most; default: as they are"
    )
    updates_per_epoch: int | None = _field(
        None, "updates between two calls of a callback's on_epoch_end; default: a hundredth of all"
    )
    checkpoint_minutes: float | None = _field(1.0, "minutes between checkpoints; none: not by the clock", "checkpoints")
    checkpoint_updates: int | None = _field(
        None, "updates between checkpoints; default: not by their number", "checkpoints"
    )
    keep_checkpoints: int = _field(
        3, "newest checkpoints to keep; the best and the milestones stay beside them", "checkpoints"
    )
    milestone_steps: int | None = _field(
        None, "env steps between checkpoints kept for ever; default: none is", "checkpoints"
    )
    on_env_error: Literal["restart", "raise"] = _field(
        "restart", "what an exception in an environment does: restart replaces the actor, raise ends the run", "faults"
    )
    max_restarts: int = _field(1000, "actors replaced, beyond which the run ends with the cause", "faults")
    actor_timeout: float = _field(60.0, "seconds without a sign of life until an actor is replaced", "faults")
    start_timeout: float = _field(120.0, "seconds for an actor to start and to reset its environments", "faults")
    max_undone_updates: int = _field(10, "updates in a row that weren't finite, were undone, and end the run", "faults")
    undone_rate_factor: float = _field(
        1.0, "the learning rate is multiplied by it after an update that is undone", "faults"
    )
    tensorboard: bool = _field(True, "write TensorBoard's event files into the run's directory")
    histogram_updates: int | None = _field(None, "updates between histograms of the weights in them; default: none are")
    quiet: bool = _field(False, "print no progress")
    verbose: bool = _field(False, "print a line for every update, and the run's log")
    hidden_sizes: tuple[int, ...] = _field((64, 64), "sizes of the hidden layers", "network")
    activation: str = _field("tanh", "Keras's name of the hidden layers' activation", "network")
    orthogonal_init: bool = _field(True, "orthogonal initialization, else uniform by fan-in", "network")
    initial_log_std: float = _field(0.0, "log of the initial standard deviation of Box actions", "network")
    image_network: Literal["nature", "impala"] = _field("nature", "for image observations", "network")
    channel_axis: int | None = _field(
        None, "axis of an image's channels, a frame's first or last, where that is ambiguous", "network"
    )
    normalize_observation: bool = _field(False, "normalize observations by running statistics", "network")
    distribution: str = _field("gaussian", "distribution of Box actions", "network")
    noise_hold: int = _field(1, "env steps for which exploration noise is held", "network")
    network: Any = _field(None, "module:callable(observation_space, action_space) -> keras.Model", "network")
    callbacks: Sequence[Any] = _field(tuple, "keras.callbacks.Callback objects", "code")

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen: the one place where fields are brought into their final form
        for name, least in _LEAST.items():
            optional, most = name in _OPTIONAL_INTEGERS, _LARGEST.get(name, _LARGEST_INTEGER)
            set_field(self, name, check_count(name, getattr(self, name), least, most=most, optional=optional))
        for name in ("overwrite", "tensorboard", "quiet", "verbose", "orthogonal_init", "normalize_observation"):
            check_flag(name, getattr(self, name))
        set_field(self, "hidden_sizes", _hidden_sizes(self.hidden_sizes))
        set_field(self, "info_keys", _info_keys(self.info_keys))
        set_field(self, "env_kwargs", _env_kwargs(self.env_kwargs))
        set_field(self, "callbacks", _callbacks(self.callbacks))
        for name, bounds in _NUMBERS.items():
            set_field(self, name, check_number(name, getattr(self, name), **bounds))
        for name in ("actor_timeout", "start_timeout"):
            set_field(self, name, check_seconds(name, getattr(self, name)))
        self._check()

    def _check(self) -> None:
        check_backend()
        if not callable(self.env) and not (isinstance(self.env, str) and self.env):
            raise ValueError(f"`env` must be an id, module:factory or a callable. Received: env={self.env!r}")
        for name in ("run_dir", "init_from"):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, (str, os.PathLike)) and str(path)):
                raise refusal(name, "a path, or None", path)
        if self.quiet and self.verbose:
            raise ValueError("`quiet` and `verbose` exclude each other. Received: quiet=True, verbose=True")
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if not isinstance(self.activation, str):
            raise refusal("activation", "a Keras name", self.activation)
        if self.max_policy_lag > 1 and not self.num_actors:
            expected = "0 or 1 with num_actors=0, where nothing runs beside the learner"
            raise refusal("max_policy_lag", expected, self.max_policy_lag)
        is_instance = dataclasses.is_dataclass(self.algorithm) and not isinstance(self.algorithm, type)
        if not is_instance or not hasattr(self.algorithm, "loss"):
            raise ValueError(
                "`algorithm` must be an instance of an algorithm's dataclass, such as PPO(). "
                f"Received: algorithm={self.algorithm!r}"
            )
        if isinstance(self.algorithm, Algorithm):
            self.algorithm.check_unroll_length(self.unroll_length)
        self._check_undone_rate_factor()
        self._check_network()

    def _check_undone_rate_factor(self) -> None:
        if self.undone_rate_factor < 1 and getattr(self.algorithm, "changes_learning_rate", False):
            raise ValueError(
                "`undone_rate_factor` needs a constant learning rate; a schedule writes its own before each update. "
                f"Received: undone_rate_factor={self.undone_rate_factor}, "
                f"learning_rate={self.algorithm.learning_rate!r}"
            )

    def _check_network(self) -> None:
        given = self.network_fields()
        if self.network is not None:
            if self.init_from is not None:
                raise ValueError(
                    f"`network` and `init_from` exclude each other. Received: network, init_from={self.init_from}"
                )
            if not callable(self.network):
                raise refusal("network", "a keras.Model or a callable that returns one", self.network)
            given.pop("normalize_observation", None)  # wraps the network that was passed
        if given and (self.network is not None or self.init_from is not None):
            other = "network" if self.network is not None else "init_from"
            raise ValueError(
                f"Fields that describe the default network can't stand beside `{other}`, which brings one. "
                f"Received: {', '.join(f'{name}={value!r}' for name, value in given.items())}"
            )

    def network_fields(self, *, all_fields: bool = False) -> dict[str, Any]:
        """The fields that describe the default network: those that differ from their default, or all."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in DEFAULT_NETWORK_FIELDS and (all_fields or getattr(self, field.name) != field.default)
        }

    @property
    def algorithm_name(self) -> str:
        """The algorithm's class in lower case, as it stands in names of run directories: "ppo"."""
        return type(self.algorithm).__name__.lower()

    @property
    def env_name(self) -> str:
        """The environment as one reads it: the id, or the callable's module and name."""
        return self.env if isinstance(self.env, str) else callable_name(self.env)

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with other values, checked like a new one."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """The config as JSON types. Callables and objects stand as `{"callable": "module:name"}`.

        An environment or network that can be imported by its name stands as "module:name", as at a shell.
        """
        values = {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        values |= {name: found for name in NAMED_CODE if (found := importable_name(getattr(self, name)))}
        hyperparameters = {
            field.name: _to_json(getattr(self.algorithm, field.name)) for field in dataclasses.fields(self.algorithm)
        }
        return {**values, "algorithm": {"name": algorithm_reference(type(self.algorithm)), **hyperparameters}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], **passed: Any) -> TrainConfig:
        """The config that `to_json` wrote; `passed` replaces fields.

        Raises ValueError where a callable that can't be imported isn't among `passed`.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known} | passed
        if missing := {name: marks for name, value in values.items() if (marks := callable_marks(value))}:
            raise ValueError(f"A run's config.json {ask_again(missing)}")
        if isinstance(values.get("network"), str):
            values["network"] = recorded_network(values["network"])
        if isinstance(values.get("algorithm"), Mapping):
            values["algorithm"] = _algorithm_from_json(values["algorithm"])
        return cls(**values)


NAMED_CODE = ("env", "network")
"""Fields that a run's config.json names as a shell does, where their callables can be imported."""

_AT_A_SHELL = {"env": "module:factory", "network": "--network module:function"}

DEFAULT_NETWORK_FIELDS = (
    "hidden_sizes",
    "activation",
    "orthogonal_init",
    "initial_log_std",
    "image_network",
    "channel_axis",
    "normalize_observation",
    "distribution",
    "noise_hold",
)

_LEAST = {
    "num_actors": 0,
    "envs_per_actor": 1,
    "unroll_length": 1,
    "max_policy_lag": 0,
    "learner_threads": 1,
    "total_steps": 1,
    "seed": 0,
    "init_from_count": 1,
    "updates_per_epoch": 1,
    "checkpoint_updates": 1,
    "keep_checkpoints": 1,
    "milestone_steps": 1,
    "histogram_updates": 1,
    "max_restarts": 0,
    "max_undone_updates": 1,
    "noise_hold": 1,
    "channel_axis": None,
}
_OPTIONAL_INTEGERS = (
    "learner_threads",
    "init_from_count",
    "updates_per_epoch",
    "checkpoint_updates",
    "milestone_steps",
    "histogram_updates",
    "channel_axis",
)

_LARGEST_INTEGER = 2**53
"""A float, the type of metrics, holds every integer up to this one."""

_LARGEST = {"seed": 2**32 - 1}

_NUMBERS: dict[str, dict[str, Any]] = {
    "initial_log_std": {},
    "checkpoint_minutes": {"above": 0, "optional": True},
    "undone_rate_factor": {"above": 0, "most": 1},
}

_CHOICES: dict[str, tuple[Any, ...]] = {
    "vectorization": ("auto", "sync"),
    "autoreset_mode": (None, "next_step", "same_step", "disabled"),
    "device": ("auto", "cpu", "gpu"),
    "on_env_error": ("restart", "raise"),
    "image_network": ("nature", "impala"),
    "distribution": ("gaussian", "squashed"),
}


def check_backend() -> None:
    """Raises ValueError if Keras runs, or would run, on another backend than TensorFlow."""
    keras = sys.modules.get("keras")
    loaded = keras.config.backend() if keras is not None and hasattr(keras, "config") else None
    backend = loaded or os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend != "tensorflow":
        raise ValueError(
            "actor_learner runs on Keras's TensorFlow backend; unset KERAS_BACKEND or set it to tensorflow. "
            f"Received: KERAS_BACKEND={backend}"
        )


def algorithm_class(name: str) -> type[Any]:
    """The algorithm's class: "ppo", "a2c", "impala" or "package.module:Class".

    Raises ValueError for a name that isn't known, a module that doesn't import, or what is no dataclass.
    """
    if ":" not in name:
        if name not in BY_NAME:
            known = f"one of {', '.join(BY_NAME)}, or module:Class{close_match(name, BY_NAME)}"
            raise refusal("algorithm", known, name)
        return BY_NAME[name]
    found = resolve_reference(name, "algorithm")
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or not hasattr(found, "loss"):
        raise refusal("algorithm", "a dataclass with a method `loss`", name)
    return found


def _algorithm_from_json(data: Mapping[str, Any]) -> Any:
    name, hyperparameters = data.get("name"), {key: value for key, value in data.items() if key != "name"}
    if not isinstance(name, str):
        raise refusal("algorithm", "an object with the name of a class", dict(data))
    try:
        return algorithm_class(name)(**_tuples(hyperparameters))
    except TypeError as error:  # hyperparameters that it doesn't have
        raise ValueError(f"`algorithm`: {error}") from error


def algorithm_reference(cls: type[Any]) -> str:
    """What `algorithm_class` takes to give this class."""
    for name, known in BY_NAME.items():
        if cls is known:
            return name
    return f"{cls.__module__}:{cls.__qualname__}"


def resolve_reference(reference: str, name: str) -> Any:
    """What "package.module:attribute" stands for. Raises ValueError, naming the argument, where there is none."""
    module_name, _, attribute = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"`{name}`: can't import {module_name!r} ({error}). Received: {name}={reference!r}") from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError as error:
        hint = close_match(attribute, vars(module))
        raise ValueError(
            f"`{name}`: module {module_name!r} has no attribute {attribute!r}{hint}. Received: {name}={reference!r}"
        ) from error


def recorded_network(reference: str) -> Any:
    """What a file names as network, keras imported before it. Raises ValueError for one of Python's own modules."""
    if reference.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
        raise refusal("network", "module:function, the module not one of Python's own", reference)
    import_keras_before(reference)
    return resolve_reference(reference, "network")


def importable_name(value: object) -> str | None:
    """ "module:name" where that, imported by another process, is this very callable; else None."""
    module, name = (getattr(value, attribute, None) for attribute in ("__module__", "__qualname__"))
    if not callable(value) or not isinstance(module, str) or not isinstance(name, str):
        return None
    if module == "__main__" or module.partition(".")[0] in sys.stdlib_module_names:
        return None
    return f"{module}:{name}" if vars(sys.modules.get(module, object)).get(name) is value else None


def ask_again(missing: Mapping[str, Sequence[str]]) -> str:
    """For each field, by the names of the callables that it held, how it is given at a shell and in Python."""
    spelled = {name: f"{_AT_A_SHELL[name]} at a shell, " if name in _AT_A_SHELL else "" for name in missing}
    listed = "; ".join(f"{spelled[name]}{name}= in Python (was {', '.join(missing[name])})" for name in missing)
    return f"holds callables that can't be imported by their names; give them again: {listed}"


def callable_name(value: object) -> str:
    """ "module:qualified name" of a callable, or of an object's class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _hidden_sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise refusal("hidden_sizes", "a sequence of integers", value)
    sizes = tuple(value)
    try:
        return tuple(check_count("hidden_sizes", size) for size in sizes)
    except ValueError:
        raise refusal("hidden_sizes", "integers of at least 1", sizes) from None


def _info_keys(value: Any) -> tuple[str, ...]:
    keys = check_info_keys(value)
    if not all(keys) or len(set(keys)) < len(keys):
        raise refusal("info_keys", "different, non-empty strings", keys)
    return keys


def _callbacks(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, Iterable):
        raise refusal("callbacks", "a list of keras.callbacks.Callback objects", value)
    return tuple(value or ())


def _env_kwargs(kwargs: Any) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise refusal("env_kwargs", "a dict with names as keys", kwargs)
    return dict(kwargs)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return {"callable": callable_name(value)}


def callable_marks(value: Any) -> list[str]:
    """The names of the callables anywhere inside a value that was read from config.json."""
    if isinstance(value, Mapping):
        if set(value) == {"callable"}:
            return [str(value["callable"])]
        return [mark for item in value.values() for mark in callable_marks(item)]
    if isinstance(value, list):
        return [mark for item in value for mark in callable_marks(item)]
    return []


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples: hyperparameters that were tuples are tuples again."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


RECORDED = ("versions", "machine", "git", "chosen", "finished")
"""What config.json holds beside the fields of the config."""
