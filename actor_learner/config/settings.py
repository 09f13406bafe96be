"""Settings: fields of dataclasses that say, once, their default, help, check, and what depends on them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from actor_learner.config.policies import PolicyConfig, PolicyRule, check_policies, check_policy_of, rule_of
from actor_learner.config.pool_checks import (
    ACTING,
    DEVICES,
    check_address,
    check_info_keys,
    env_counts,
    find_exploration,
)
from actor_learner.config.references import importable_name
from actor_learner.config.self_play import RESULT_KEYS, SelfPlay, check_self_play
from actor_learner.spaces.kinds import Dict
from actor_learner.spaces.structure import MASK_KEY, OWN_KEY, PRIVILEGED_KEY, VALUE_KEYS, without
from actor_learner.system import fields as checks
from actor_learner.system.fields import refusal

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

_MAX_INTEGER = 2**53  # a float, the type of metrics, holds every integer up to this one

Check = Callable[[str, Any], Any]
"""Name and value of a field -> the value in its final form; raises ValueError if it can't be used."""

Effect = Literal["learning", "pace", "none"]
"""What a field changes: what is learned; how fast, or how far; or only where and how, which reports leave out."""

_OWNERS = {"environment": "actors", "actors": "actors", "network": "network", "algorithm": "learner"}
"""The part of a run that uses the fields of a group, unless they say otherwise; that of others is the run itself."""


def setting(
    default: Any, group: str = "run", *, check: Check | None = None, effect: Effect = "learning", **more: Any
) -> Any:
    """Return a dataclass field.

    group: its flag's heading. more: `owner`, the part of a run that uses it: "actors", "cluster", "learner", "network"
    or "run"; `help`, its flag's text, if the docstring's doesn't fit; its flag's `metavar` and `alias`; `const`, the
    text that the flag alone stands for.
    """
    metadata = {"group": group, "check": check, "effect": effect, "owner": _OWNERS.get(group, "run"), **more}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def count(default: int | None, least: int | None, group: str = "run", **more: Any) -> Any:
    """Return a field for an integer of at least `least`; it may be None if the default is."""
    check = functools.partial(checks.check_count, least=least, most=_MAX_INTEGER, optional=default is None)
    return setting(default, group, check=check, **more)


def flag(default: bool | None, group: str = "run", **more: Any) -> Any:
    """Return a field for a flag; None is its value until the algorithm's own default takes its place."""

    def check(name: str, value: Any) -> bool | None:
        return None if value is None and default is None else checks.check_flag(name, value)

    return setting(default, group, check=check, **more)


def choice(choices: tuple[Any, ...], group: str = "run", **more: Any) -> Any:
    """Return a field for one of the choices; the first is the default."""
    return setting(choices[0], group, check=functools.partial(checks.check_choice, choices=choices), **more)


def number(default: float | None, group: str = "run", *, bounds: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Return a field for a number. bounds: arguments of `check_number`."""
    return setting(default, group, check=functools.partial(checks.check_number, **bounds or {}), **more)


def with_help(cls: type[T]) -> type[T]:
    """Copy the docstring's text of each field into its metadata, for `--help` and the comments of config files.

    The fields of base classes are added to the docstring.
    """
    texts = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.cleandoc(cls.__doc__ or ""), re.MULTILINE)
    for name, text in texts:
        field = cls.__dict__[name]
        flag_text = " ".join(text.split()).removesuffix(".").replace("`", "")
        flag_text = flag_text.replace("None: ", "default: " if field.default is None else "none: ")
        field.metadata = {"help": flag_text, **field.metadata}
    docs = "\n".join(base.__doc__ or "" for base in cls.__bases__)
    others = re.finditer(r"^ {8}(\w+): .+\n(?: {12}.+\n)*", docs, re.MULTILINE)
    inherited = "".join(other[0] for other in others if other[1] not in dict(texts))
    cls.__doc__ = (cls.__doc__ or "").replace("Attributes:\n", f"Attributes:\n{inherited}", 1)
    return cls


def with_texts_of(settings: type[Any]) -> Callable[[Function], Function]:
    """Return a decorator that adds the texts of settings to the "Args" of a function that takes them as arguments."""
    texts = re.findall(r"^    \w+: .+\n(?: {8}.+\n)*", f"{inspect.getdoc(settings)}\n", re.MULTILINE)

    def decorate(function: Function) -> Function:
        text = inspect.getdoc(function) or ""
        function.__doc__ = text.replace("\n\nRaises:", f"\n{''.join(texts)}\nRaises:", 1)
        return function

    return decorate


OF_SCHEDULE = ("max_policy_lag", "asynchronous")
"""Settings that say which version of the weights collects which batch."""

OF_PROCESSES = (
    *("num_actors", "envs_per_actor", *OF_SCHEDULE, "acting", "on_env_error", "max_restarts", "autoreset_mode"),
    *("terminal_observations", "envs_see_gpu", "ray_address", "self_play", "policies", "centralized_value"),
    "exploration",
)
"""Settings that mean nothing where the learner's device steps the environments, and those of several agents."""

_AS_ON_DEVICE = {"num_actors": 0, **dict.fromkeys(OF_SCHEDULE, 0), "on_env_error": "raise", "max_restarts": 0}
"""Settings of processes that say what happens there."""

_ENVS_ON_DEVICE = 64
MAX_EXACT_LAG = 64
"""Batches that an actor is assigned ahead, at most: their messages, and the answers, fit into its socket."""

_MAX_OPPONENTS_AHEAD = 5000  # in these messages


def on_device(given: Mapping[str, Any], defaults: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return the settings that others have where the learner's device steps environments in JAX.

    given: with the environment, `env`. defaults: the values of `OF_PROCESSES` that weren't given. backend: Keras's.

    Raises ValueError for one of `OF_PROCESSES` that is given, and where Keras doesn't run on JAX.
    """
    if backend != "jax":
        raise ValueError(
            "An environment in JAX needs JAX (--backend jax, or KERAS_BACKEND=jax), or actors that step it "
            f"(vectorization='sync'). Received: backend={backend!r}, env={given['env']!r}"
        )
    for name in OF_PROCESSES:
        value = given[name]
        if value != defaults[name] and (name not in _AS_ON_DEVICE or value != _AS_ON_DEVICE[name]):
            expected = "left out for an environment in JAX, which the learner's device steps (vectorization='sync' has"
            raise refusal(name, f"{expected} actors step it)", value)
    return {
        "num_actors": 0,
        "max_policy_lag": 0,
        "num_envs": _ENVS_ON_DEVICE if given["num_envs"] is None else given["num_envs"],
    }


def names_of(settings: type[Any], *effects: Effect) -> frozenset[str]:
    """Return the names of the fields that can be given, of an algorithm too, or of those that have these effects."""
    fields = [field for field in dataclasses.fields(settings) if field.init]
    return frozenset(field.name for field in fields if not effects or field.metadata["effect"] in effects)


def _autoreset_mode(name: str, value: Any) -> Any:
    value = value.name.lower() if isinstance(value, enum.Enum) else value  # Gymnasium's AutoresetMode
    return checks.check_choice(name, value, (None, "next_step", "same_step", "disabled"))


def _info_keys(name: str, value: Any) -> tuple[str, ...]:
    keys = check_info_keys(value)
    if not all(keys) or len(set(keys)) < len(keys):
        raise refusal(name, "different, non-empty strings", keys)
    return keys


def _value_keys(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    keys = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(key and isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise refusal(name, "different entries of a Dict observation, such as ('privileged', 'a/b')", value)
    return keys


def check_wrappers(name: str, value: Any) -> tuple[str | Callable[..., Any], ...]:
    """Return wrappers as a tuple: "module:Class", or a callable where that can't be imported by its name."""
    if value is None or isinstance(value, str):
        value = [part for part in (value or "").split(",") if part]
    found = tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(wrapper and (isinstance(wrapper, str) or callable(wrapper)) for wrapper in found):
        raise refusal(name, "names like minigrid.wrappers:ImgObsWrapper, or callables", value)
    return tuple(importable_name(wrapper) or wrapper for wrapper in found if wrapper != "none")


def _wrapper_kwargs(name: str, value: Any) -> dict[str, Any] | tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence | None):
        raise refusal(name, "a dict by class name, or a dict for each wrapper", value)
    return dict(value) if isinstance(value, Mapping) else tuple(value or ())


@dataclass(frozen=True, kw_only=True)
@with_help
class PoolSettings:
    """Settings of a pool of actors, checked; they reach the actors' processes and hosts as they are.

    Attributes:
        vectorization: "auto" uses the id's own vector environment if it has one; "sync" steps the environments of an
            actor one after the other, and those in JAX in actors.
        wrappers: Gymnasium wrappers around each environment, in this order, the last one outermost: "module:Class", or
            callables that take an environment. They are inside of the record of episodes. The id's own vector
            environment isn't used then.
        wrapper_kwargs: keyword arguments of the wrappers, by class name: {"TimeLimit": {"max_episode_steps": 50}}; in
            Python also a dict for each wrapper.
        autoreset_mode: autoreset mode of a vector environment that doesn't declare one: "next_step", "same_step" or
            "disabled".
        info_keys: numeric entries of the last step's `info` to report, as the metrics `episode/<key>`, in place of
            `is_success`; in Python also in `ActorPool.episodes`.
        self_play: for games of several agents in PettingZoo's interfaces: the learner has one seat of each game, and
            frozen versions of its policy play the others. size=8,every=20,rule=pfsp, or nothing for the defaults;
            None: no self-play; in Python `SelfPlay(...)`.
        centralized_value: for Parallel games of several agents (PettingZoo's interface): the value sees the game's
            state and the agent's number beside its observation, as in MAPPO. The policy doesn't, and is saved without
            the value. In Python, observations are {"observation": the agent's own, "agent": its number, "state": ...}.
        value_keys: entries of a Dict observation that only the value, or the critics, see, nested ones by path ("a/b"):
            what a simulator knows and a robot doesn't measure. The policy acts without them, is saved without them, and
            drops them where they are given. None: an entry "privileged_state", which a network of one's own may read.
        policies: several policies that play the agents of Parallel games: a TOML file with a table of settings for
            each, of which `agents` names the agents that it plays. None: one policy. In Python {name:
            PolicyConfig(...)}; a pool also takes their names alone.
        policy_of: which policy plays which agent: {"pattern of agents' names": "policy"}, of which the first match
            counts; None: by the policies' `agents`; in Python also a callable agent -> policy.
        terminal_observations: keep the last observation of terminated episodes in trajectories, too, as a replay buffer
            with hindsight needs it; a run with hindsight does so in any case.
        envs_see_gpu: let environments use the GPU, which actors' processes hide by default, by the variables
            CUDA_VISIBLE_DEVICES and JAX_PLATFORMS: libraries that see a GPU keep a part of its memory in each process.
        num_actors: number of actor processes; 0 steps the environments in this process, for debuggers.
        envs_per_actor: environments of each actor; None: 8, or its share of `num_envs`.
        num_envs: environments of all actors together, split as evenly as possible (equally with `asynchronous`);
            None: `envs_per_actor` for each.
        unroll_length: env steps of each environment in a batch; T in `[T, B]`.
        max_policy_lag: 0: actors wait for each update; n: they collect up to n batches ahead, batch j with version
            max(0, j - n) of the weights, so that runs repeat their bytes.
        asynchronous: actors run freely, as in IMPALA and Sample Factory: none waits for another, weights
            are at most `max_policy_lag` (2 or more) versions old, and runs don't repeat their bytes.
        acting: "actors": each actor runs the policy on its core; "device": the learner's device runs it, in one call
            for half of the environments. The latter suits networks that are too large for a core.
        exploration: noise of actions in place of white noise, for SAC, TQC, CrossQ and TD3: "pink" (arXiv:2206.04415),
            "ou" (Ornstein-Uhlenbeck), or a function (generator, size), "module:function", that yields the `size`
            numbers of each step, of standard deviation 1. Each environment has its own, which begins anew with an
            episode.
        ray_address: Ray cluster whose machines run the actors, with this one: "auto" or "host:port"; None: only this
            machine.
        actors_per_host: actors on each machine of the cluster; None: one for each of its free CPUs.
        ray_wait: seconds to wait for a free CPU for each actor, before the run refuses; None: start at once.
        seed: seed of environments, actions and the default network.
        device: "auto" uses a GPU if the backend sees one; "gpu" requires one; "cpu".
        devices: GPUs that share each update, and environments in JAX, each with a part of the batch's columns; above 1
            only on JAX.
        on_env_error: after an exception in an environment, "restart" replaces its actor, and "raise" ends the run.
        max_restarts: largest number of replaced actors; the next failure ends the run or pool with its cause. Three
            failures of an actor in a row, without a finished unroll between, end it in any case.
        actor_timeout: seconds without a sign of life (an env step begun or done) until an actor is replaced; must be
            longer than any env step.
        start_timeout: seconds for an actor to start, and to make and reset its environments.
        close_timeout: seconds for an actor's environments to close when the pool is closed, e.g. to write videos.
    """

    vectorization: Literal["auto", "sync"] = choice(("auto", "sync"), "environment")
    wrappers: tuple[Any, ...] = setting(
        (),
        "environment",
        check=check_wrappers,
        metavar="MODULE:CLASS,...",
        help="Gymnasium wrappers around each environment, in this order, the last one outermost; default: none",
    )
    wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] = setting(
        dict, "environment", check=_wrapper_kwargs, metavar="JSON"
    )
    autoreset_mode: Literal["next_step", "same_step", "disabled"] | None = setting(
        None, "environment", check=_autoreset_mode
    )
    info_keys: tuple[str, ...] = setting(("is_success",), "environment", check=_info_keys, effect="none")
    terminal_observations: bool = flag(False, "environment", effect="none")
    envs_see_gpu: bool = flag(False, "environment", effect="none")
    self_play: SelfPlay | None = setting(
        None, "environment", check=check_self_play, metavar="SETTING=VALUE,...", const=""
    )
    centralized_value: bool = flag(False, "environment")
    value_keys: tuple[str, ...] | None = setting(None, "environment", check=_value_keys)
    policies: Mapping[str, PolicyConfig] | None = setting(
        None, "environment", check=check_policies, metavar="FILE.toml"
    )
    policy_of: PolicyRule | None = setting(None, "environment", check=check_policy_of, metavar="JSON")
    num_actors: int = count(2, 0, "actors", effect="pace", alias="--num-workers")
    envs_per_actor: int | None = count(
        None, 1, "actors", effect="pace", help="environments of each actor; default: 8, or a share of num_envs"
    )
    num_envs: int | None = count(
        None,
        1,
        "actors",
        effect="pace",
        help="environments of all actors together, split evenly; default: envs_per_actor for each",
    )
    unroll_length: int = count(128, 1, "actors")
    max_policy_lag: int = count(
        0,
        0,
        "actors",
        help="0: actors wait for each update; n: they collect up to n batches ahead, by weights n versions old",
    )
    asynchronous: bool = flag(False, "actors")
    acting: Literal["actors", "device"] = choice(ACTING, "actors", effect="none")
    exploration: str | Callable[..., Any] | None = setting(
        None,
        "actors",
        metavar="NAME",
        help="noise of actions for SAC, TQC, CrossQ and TD3: pink, ou (Ornstein-Uhlenbeck) or module:function",
    )
    ray_address: str | None = setting(
        None, "actors", check=check_address, effect="none", owner="cluster", alias="--ray"
    )
    actors_per_host: int | None = count(None, 1, "actors", effect="none", owner="cluster")
    ray_wait: float | None = number(
        None, "actors", effect="none", owner="cluster", bounds={"least": 0, "optional": True}
    )
    seed: int = setting(0, check=functools.partial(checks.check_count, least=0))
    device: Literal["auto", "cpu", "gpu"] = choice(DEVICES, effect="none", owner="learner")
    devices: int = count(1, 1, owner="learner")
    on_env_error: Literal["restart", "raise"] = choice(("restart", "raise"), "faults", effect="none")
    max_restarts: int = count(1000, 0, "faults", effect="none")
    actor_timeout: float = setting(60.0, "faults", check=checks.check_seconds, effect="none", owner="actors")
    start_timeout: float = setting(120.0, "faults", check=checks.check_seconds, effect="none", owner="actors")
    close_timeout: float = setting(30.0, "faults", check=checks.check_seconds, effect="none", owner="actors")

    def __post_init__(self) -> None:
        self._check_fields()
        self._check_pool()

    def _check_fields(self) -> None:
        """Give each field its final form."""
        for field in dataclasses.fields(self):
            if (check := field.metadata["check"]) is not None:
                object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))

    def _check_pool(self) -> None:
        """Check the fields of a pool together."""
        if self.exploration is not None:
            find_exploration(self.exploration)
        if self.asynchronous and (self.max_policy_lag < 2 or not self.num_actors):
            received = f"max_policy_lag={self.max_policy_lag}, num_actors={self.num_actors}"
            raise ValueError(f"`asynchronous` needs actor processes and a lag of at least 2. Received: {received}")
        if self.max_policy_lag > MAX_EXACT_LAG and not self.asynchronous:
            raise refusal("max_policy_lag", f"at most {MAX_EXACT_LAG} without `asynchronous`", self.max_policy_lag)
        if self.self_play is not None and self.max_policy_lag * (self.self_play.size + 10) > _MAX_OPPONENTS_AHEAD:
            expected = f"at most {_MAX_OPPONENTS_AHEAD // (self.self_play.size + 10)} with so many opponents"
            raise refusal("max_policy_lag", expected, self.max_policy_lag)
        for name in ("self_play", "policies"):
            if getattr(self, name) is not None and self.ray_address is not None:
                raise ValueError(
                    f"`{name}` needs all actors on this machine; leave out `ray_address`. "
                    f"Received: ray_address={self.ray_address!r}"
                )
        if self.policies is not None:
            self._check_policies(self.policies)
        elif self.policy_of is not None:
            raise ValueError("`policy_of` needs `policies`, which it shares out. Received: policies=None")
        if self.centralized_value and self.self_play is not None:
            raise ValueError(
                "`centralized_value` is for agents that learn together; leave it out with `self_play`. "
                "Received: centralized_value=True"
            )
        if self.ray_address is None:
            for name in ("actors_per_host", "ray_wait"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(f"`{name}` needs `ray_address` (--ray ADDRESS). Received: {name}={value!r}")
            return
        received = f"ray_address={self.ray_address!r}"
        if not self.num_actors:
            raise ValueError(f"A cluster needs actors: num_actors of at least 1. Received: {received}, num_actors=0")
        if self.acting == "device":
            raise ValueError(
                "acting='device' needs all actors on the learner's machine. Received: acting='device', " + received
            )

    def _check_policies(self, policies: Mapping[str, PolicyConfig]) -> None:
        rule_of(policies, self.policy_of)
        if self.self_play is not None:
            raise ValueError(
                "`policies` and `self_play` exclude each other: opponents are of one policy. Received: both"
            )
        if self.acting == "device":
            received = "acting='device'"
            raise ValueError(f"`policies` act in the actors; leave out `acting`. Received: {received}")

    def value_only(self, observation_space: Any) -> tuple[str, ...]:
        """Return the entries of observations that are for the value alone."""
        if not self.centralized_value:
            return self._own_value_only(observation_space)
        own = self._own_value_only(observation_space[OWN_KEY])
        return (*VALUE_KEYS, *(f"{OWN_KEY}/{key}" for key in own))

    def _own_value_only(self, space: Any) -> tuple[str, ...]:
        if self.value_keys is not None:
            return self.value_keys
        names = {*space.spaces} - {MASK_KEY} if isinstance(space, Dict) else set()
        return (PRIVILEGED_KEY,) if {PRIVILEGED_KEY} < names else ()

    def policy_space(self, observation_space: Any) -> Any:
        """Return the space of what the policy acts on. Raises ValueError for `value_keys` that don't leave one."""
        own = observation_space[OWN_KEY] if self.centralized_value else observation_space
        return without(own, self._own_value_only(own))

    @property
    def recorded_keys(self) -> tuple[str, ...]:
        """The entries of an episode's last info that actors write into batches."""
        return self.info_keys if self.self_play is None else tuple(dict.fromkeys((*self.info_keys, *RESULT_KEYS)))

    @property
    def env_counts(self) -> tuple[int, ...]:
        """The number of environments of each actor."""
        return env_counts(self.num_actors, self.envs_per_actor, self.num_envs, equal=self.asynchronous)
