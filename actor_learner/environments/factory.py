"""The factory that an actor process builds its vector environment with, from the `env` argument."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from actor_learner.environments.agents import AgentsVectorEnv, ParallelGames, TurnGames
from actor_learner.environments.atari import make_atari, make_single_atari
from actor_learner.environments.autoreset import AnyVectorEnv, declared_autoreset_mode
from actor_learner.environments.envpool import PREFIX, EnvPoolSource, find_envpool
from actor_learner.environments.errors import EnvError, calling, closing
from actor_learner.environments.games import agents_of, is_game, is_turn_based, of_supersuit
from actor_learner.environments.jax.source import JaxSource, find_jax_env, misfit_of
from actor_learner.environments.lookup import Wrapper, find_env, find_wrappers, sendable_spec, wrapper_name
from actor_learner.environments.self_play import Seats, SelfPlayVectorEnv
from actor_learner.environments.serial import SerialVectorEnv
from actor_learner.environments.teams import PolicyOf, TeamGames
from actor_learner.spaces.jax_env import JaxEnv, is_jax_env, names_jax_env
from actor_learner.system.fields import removed

_REQUIRED = ("num_envs", "single_observation_space", "single_action_space")
_NO_LIMIT = 2**31 - 1  # env steps, of vector environments that know no other word for it
_GIVE = "give the function (achieved goals, desired goals, infos) -> rewards, which hindsight needs"


@dataclass(frozen=True)
class EnvFactory:
    """Builds vector environments in any process."""

    name: str  # the id or the callable's name, for messages, logs and `config.json`
    source: EnvSpec | Callable[..., Any]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    native: bool = False  # True if `source` builds a whole vector environment; so do those of environments in JAX
    known_count: int | None = None  # a number of environments that it can build
    wrappers: tuple[Wrapper, ...] = ()  # around each single environment, the last one outermost
    seats: Seats | None = None  # how a game's seats are taken; None: a policy has all of them
    policy_of: PolicyOf | None = None  # which policy plays which agents; None: there is one policy
    with_state: bool = False  # True for a centralized value, which sees a Parallel game's state
    first_env: int = 0  # the number of the first environment, of those that a run has at a time

    @property
    def builds_singles(self) -> bool:
        """True if it can build single environments, too."""
        return not self.native or (isinstance(self.source, EnvSpec) and self.source.entry_point is not None)

    def jax_env(self) -> JaxEnv | None:
        """Build the environment as functions in JAX; None where it isn't written in JAX. Raises EnvError."""
        if not isinstance(self.source, JaxSource):
            return None
        with calling(f"env `{self.name}`", "can't be built:"):
            return self.source.make(_own_copies(self.env_kwargs))

    def make_about(self, num_envs: int, seed: int | None = None) -> AnyVectorEnv:
        """Build a vector environment of about `num_envs` environments: games of several agents have only multiples.

        Raises EnvError as `make` does.
        """
        try:
            return self.make(num_envs, seed, exact=False)
        except EnvError:
            if not self.native or self.known_count is None:
                raise
            return self.make(self.known_count, seed)

    def make(self, num_envs: int, seed: int | None = None, *, exact: bool = True) -> AnyVectorEnv:
        """Build a vector environment of `num_envs` environments that declares its autoreset mode on itself.

        Only vector factories get `seed`; every other environment gets its seed at its reset. exact: refuse another
        number of environments.

        Raises EnvError if the environment raised, or the result is no environment.
        """
        # AtariVectorEnv writes its mode into this dictionary of the base class. Emptied before the build, it has this
        # environment's own mode afterwards; another one's entry is then restored.
        inherited = VectorEnv.metadata.pop("autoreset_mode", None)
        try:
            vector_env = self._make_unchecked(num_envs, seed, exact=exact)
            mode = declared_autoreset_mode(vector_env) or VectorEnv.metadata.get("autoreset_mode")
        finally:
            VectorEnv.metadata.pop("autoreset_mode", None)
            if inherited is not None:
                VectorEnv.metadata["autoreset_mode"] = inherited
        if isinstance(mode, AutoresetMode):
            vector_env.unwrapped.metadata = {**vector_env.unwrapped.metadata, "autoreset_mode": mode}
        return vector_env

    def limited(self, max_episode_steps: int) -> EnvFactory:
        """Return a factory of single environments whose episodes are cut off after so many steps.

        Raises EnvError if there are only whole vector environments.
        """
        limit = functools.partial(gym.wrappers.TimeLimit, max_episode_steps=max_episode_steps)
        return self.wrapped(limit, "max_episode_steps", max_episode_steps)

    def wrapped(self, wrapper: Wrapper, name: str, value: object) -> EnvFactory:
        """Return a factory of single environments with a further wrapper, which the argument `name` asks for.

        Raises EnvError if there are only whole vector environments.
        """
        if not self.builds_singles:
            raise EnvError(
                f"`{name}` needs single environments, but `{self.name}` builds only whole vector environments. "
                f"Received: {name}={value!r}"
            )
        return replace(self, native=False, wrappers=(*self.wrappers, wrapper))

    def dumps(self) -> bytes:
        """Return this factory pickled, with definitions of `__main__` by value.

        Raises EnvError, naming the part, if a part can't be pickled.
        """
        try:
            return cloudpickle.dumps(self)  # type: ignore[no-any-return]
        except Exception as error:
            part, value, reason = _unpicklable_part(self, error)
            raise EnvError(
                f"env `{self.name}` can't be sent to actor processes, because {part} can't be pickled: create it "
                f"inside the callable. Received: {value!r} ({reason})"
            ) from error

    def _make_unchecked(self, num_envs: int, seed: int | None, *, exact: bool) -> AnyVectorEnv:
        with calling(f"env `{self.name}`", "can't be built:"):
            if not self.native:
                return self._make_of_singles(num_envs, exact=exact)
            vector_env = self._make_native(num_envs, seed)
            self._check_no_seats(vector_env)
            self._check_no_state(vector_env)
            if type(vector_env).__module__.startswith("supersuit."):
                vector_env = AgentsVectorEnv(ParallelGames(of_supersuit(vector_env), self.name))
        if not isinstance(vector_env, VectorEnv) or not all(hasattr(vector_env, name) for name in _REQUIRED):
            raise EnvError(
                f"`{self.name}` has a parameter `num_envs` and must return a gymnasium VectorEnv, with "
                f"{', '.join(f'`{name}`' for name in _REQUIRED)}. Received: {_kind(vector_env)}"
            )
        if exact and vector_env.num_envs != num_envs:
            received = f"num_envs={vector_env.num_envs}"
            raise EnvError(
                f"`{self.name}` must return a VectorEnv of {num_envs} environments, the `envs_per_actor`. "
                f"Received: {received}"
            )
        return vector_env

    def _make_native(self, num_envs: int, seed: int | None) -> Any:
        kwargs = _own_copies(self.env_kwargs)
        if isinstance(self.source, (EnvSpec, EnvPoolSource)) and "max_episode_steps" in kwargs:
            limit = kwargs.pop("max_episode_steps")  # as `gym.make` takes it
            kwargs |= {} if limit is None else {"max_episode_steps": _NO_LIMIT if limit == -1 else limit}
        if isinstance(self.source, EnvSpec):
            if self.source.namespace == "ALE":
                return make_atari(self.source, num_envs, kwargs)
            return gym.make_vec(self.source, num_envs, "vector_entry_point", **kwargs)
        seeded = {"seed": seed} if accepts(self.source, "seed") else {}
        return self.source(num_envs=num_envs, **seeded, **{**_numbered(self.source, self.first_env), **kwargs})

    def make_one(self, place: int = 0) -> Any:
        """Build a single environment in its wrappers; its exceptions pass through."""
        return self._as_one(self._make_bare(place), place)

    def make_one_or_game(self) -> Any:
        """Build a single environment in its wrappers, or a game of several agents."""
        built = self._make_bare()
        return built if is_game(built) else self._as_one(built)

    def _as_one(self, env: Any, place: int = 0) -> Any:
        """Put a single environment into its wrappers. Raises EnvError for anything else.

        place: its number among those of this vector environment.
        """
        number = self.first_env + place
        if is_game(env):
            raise EnvError(f"`{self.name}` is a game of several agents, no single environment. Received: {_kind(env)}")
        if isinstance(env, VectorEnv):
            raise EnvError(
                f"`{self.name}` returns a VectorEnv and needs a parameter named `num_envs`. Received: {_kind(env)}"
            )
        if not isinstance(env, gym.Env):
            hint = ", its base class; Gym's old API differs, too" if hasattr(env, "reset") else ""
            if is_jax_env(env):
                hint = ". Give an environment in JAX as an object, or by its name, jax:module:name"
            raise EnvError(f"`{self.name}` must return a gymnasium.Env{hint}. Received: {_kind(env)}")
        for wrapper in self.wrappers:
            what = f"wrapper `{wrapper_name(wrapper.func)}` of env `{self.name}`"
            kwargs = {**_numbered(wrapper.func, number), **_own_copies(wrapper.keywords)}
            with calling(what, "can't be built:"):
                if inspect.isclass(wrapper.func) and issubclass(wrapper.func, gym.wrappers.RecordVideo):
                    kwargs |= _own_files(kwargs, number)
                env = wrapper.func(*wrapper.args, env, **kwargs)
            if not isinstance(env, gym.Env):
                raise EnvError(f"{what} must return a gymnasium.Env. Received: {_kind(env)}")
            if isinstance(env, gym.Wrapper) and "env" not in vars(env):
                received = "a wrapper without `env`"
                raise EnvError(f"{what} must call super().__init__(env) in its __init__. Received: {received}")
        return env

    def _make_bare(self, place: int = 0) -> Any:
        kwargs = _own_copies(self.env_kwargs)
        if isinstance(self.source, EnvSpec):
            # The checker costs several microseconds a step; `Environments` checks instead.
            kwargs = {"disable_env_checker": True, **kwargs}
            if str(self.source.entry_point).startswith("ale_py"):
                return make_single_atari(self.source, kwargs)
            if str(self.source.entry_point).startswith("gymnasium.envs.mujoco"):
                _print_mujoco_warnings_once()
            return gym.make(self.source, **kwargs)
        return self.source(**{**_numbered(self.source, self.first_env + place), **kwargs})

    def _make_of_singles(self, num_envs: int, *, exact: bool) -> AnyVectorEnv:
        first = self._make_bare()
        if is_game(first):
            return self._make_of_games(first, num_envs, exact=exact)
        self._check_no_seats(first)
        self._check_no_state(first)
        vector_env = SerialVectorEnv([self._as_one(first), *map(self.make_one, range(1, num_envs))])
        self._check_new(vector_env.envs)
        return vector_env

    def _check_new(self, envs: Sequence[Any]) -> None:
        if len({id(getattr(env, "unwrapped", env)) for env in envs}) < len(envs):
            raise EnvError(f"`{self.name}` must build a new environment at each call. Received: the same object twice")

    def _make_of_games(self, first: Any, num_envs: int, *, exact: bool) -> AnyVectorEnv:
        """Build a vector environment of games like the first: a row for each agent, or with `seats` for each game."""
        if self.wrappers:
            raise EnvError(
                f"`wrappers` go around Gymnasium's environments, but `{self.name}` is a game of several agents: wrap "
                f"it in a factory of your own instead. Received: {_kind(first)}"
            )
        if self.policy_of is not None and is_turn_based(first):
            text = "`policies` need a game of PettingZoo's Parallel interface (its `parallel_env`)"
            raise EnvError(f"{text}, in which all agents act at once. Received: `{self.name}`, a {_kind(first)}")
        rows = len(agents_of(first, self.name)) if self.seats is None else 1
        count, rest = divmod(num_envs, rows)
        if exact and rest:
            nearest = " or ".join(str(rows * near) for near in (count, count + 1) if near)
            raise EnvError(
                f"`envs_per_actor` counts agents, of which each game of `{self.name}` has {rows}: give {nearest}. "
                f"Received: {num_envs}"
            )
        games = [first, *(self._make_bare(rows * game) for game in range(1, count + bool(rest)))]
        self._check_new(games)
        if self.seats is not None:
            return SelfPlayVectorEnv(games, self.seats, self.name)
        if self.policy_of is not None:
            return TeamGames(ParallelGames(games, self.name, with_state=self.with_state), self.policy_of)
        if is_turn_based(first):
            self._check_no_state(first)
            return TurnGames(games, self.name)
        return AgentsVectorEnv(ParallelGames(games, self.name, with_state=self.with_state))

    def _check_no_seats(self, env: Any) -> None:
        asked = "`self_play` needs" if self.seats is not None else "`policies` need" if self.policy_of else None
        if asked is not None:
            expected = f"{asked} a game of several agents in PettingZoo's interfaces"
            raise EnvError(f"{expected}. Received: `{self.name}`, a {_kind(env)}")

    def _check_no_state(self, env: Any) -> None:
        if self.with_state:
            expected = "`centralized_value` needs a game in PettingZoo's Parallel interface, where all decide at once"
            raise EnvError(f"{expected}. Received: `{self.name}`, a {_kind(env)}")


def resolve_env(
    env: str | EnvSpec | Callable[..., Any] | EnvFactory,
    env_kwargs: Mapping[str, Any] | None = None,
    vectorization: str = "auto",
    wrappers: Sequence[str | Callable[..., Any]] = (),
    wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    check_pickle: bool = True,
) -> EnvFactory:
    """Resolve `env` in the caller's process, without building an environment.

    Args:
        env: A Gymnasium id, `module:Id-v0`, `module:factory`, `envpool:Id`, an `EnvSpec`, an environment in JAX or its
            name (`gymnax:Id`, `jax:module:name`), or a callable. A callable
            with a parameter named `num_envs` is called as `(num_envs=..., seed=..., **env_kwargs)` and returns a
            `VectorEnv`; any other is called with `env_kwargs` for each environment and returns an `Env`. A parameter
            named `env_index` gets the environment's number.
        env_kwargs: Keyword arguments of each environment, which gets deep copies of them.
        vectorization: `"auto"` uses an id's own vector environment if there is one, `"sync"` steps single environments
            one after the other.
        wrappers: Wrappers around each single environment, as `find_wrappers` takes them: with them, `"auto"` means
            `"sync"`.
        wrapper_kwargs: Their keyword arguments.
        check_pickle: False if the environment stays in this process.

    Raises EnvError for an unknown id, a missing package, a value that isn't callable or can't be pickled.
    """
    if vectorization not in ("auto", "sync"):
        expected = f"`vectorization` must be 'auto' or 'sync'. Received: {vectorization=}"
        raise EnvError(removed("vectorization", vectorization) or expected)
    if isinstance(env, EnvFactory):
        return env
    if not isinstance(env_kwargs, Mapping | None):
        raise EnvError(f"`env_kwargs` must be a dict with names as keys. Received: env_kwargs={env_kwargs!r}")
    kwargs, found = dict(env_kwargs or {}), find_wrappers(wrappers, wrapper_kwargs)
    if found and vectorization == "auto":
        vectorization = "sync"
    source = find_jax_env(env, kwargs) if names_jax_env(env) else _source(env)
    if isinstance(source, JaxSource):
        factory = EnvFactory(env if isinstance(env, str) else type(env).__name__, source, kwargs, native=True)
    elif isinstance(source, EnvSpec):
        native = vectorization == "auto" and source.vector_entry_point is not None and not source.additional_wrappers
        factory = EnvFactory(source.id, source, kwargs, native=native or source.entry_point is None)
    else:
        factory = _callable_factory(env if isinstance(env, str) else _callable_name(source), source, kwargs)
    factory = replace(factory, wrappers=found)
    in_actors = isinstance(source, JaxSource) and vectorization == "sync" and not found
    if factory.native and vectorization != "auto" and not in_actors:
        asked = f"wrappers={tuple(wrappers)}" if found else f"{vectorization=}"
        subject = "`wrappers` (--wrappers) go around" if found else f"{asked} needs"
        advice = ": wrap them in a factory of your own instead" if found else ""
        raise EnvError(
            f"{subject} single environments, but `{factory.name}` builds only whole vector environments{advice}. "
            f"Received: {asked}"
        )
    if check_pickle:
        factory.dumps()
    return factory


@contextlib.contextmanager
def goal_environment(factory: EnvFactory) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Build a single environment; yield it with its `compute_reward`, and close it afterwards.

    Raises EnvError if there is no single environment, if it can't be built, or has no such method.
    """
    if not factory.builds_singles:
        text = f"`{factory.name}` builds only whole vector environments"
        raise EnvError(f"`compute_reward`: {text}; {_GIVE}. Received: compute_reward=None")
    with calling(f"env `{factory.name}`", "can't be built:"):
        env = replace(factory, native=False).make_one()
    with closing(env, f"env `{factory.name}`"):
        if not callable(function := getattr(env.unwrapped, "compute_reward", None)):
            text = f"`{factory.name}` has no method of this name"
            raise EnvError(f"`compute_reward`: {text}; {_GIVE}. Received: compute_reward=None")
        with calling(f"env `{factory.name}`", "can't be reset:"):
            env.reset()  # which some functions rely on
        yield env, function


def _print_mujoco_warnings_once() -> None:
    """Print each warning once, instead of MuJoCo's MUJOCO_LOG.TXT and a warning for each environment.

    Drop deprecation warnings: they are about Gymnasium's own model files, which users can't change.
    """
    import mujoco

    if mujoco.get_mju_user_warning() is not None:
        return
    printed = set()

    def print_once(message: str) -> None:
        if message not in printed and "deprecated" not in message:
            printed.add(message)
            print(f"MuJoCo: {message}", file=sys.stderr)

    mujoco.set_mju_user_warning(print_once)


def _source(env: Any) -> EnvSpec | Callable[..., Any]:
    if isinstance(env, str):
        return find_envpool(env) if env.startswith(PREFIX) else find_env(env)
    if isinstance(env, EnvSpec):
        return sendable_spec(env, env.id)
    if isinstance(env, (gym.Env, VectorEnv)) or (is_game(env) and not isinstance(env, type)):
        raise EnvError(f"`env` must be a callable that builds the environment. Received: a ready one, {_kind(env)}")
    if not callable(env) and hasattr(env, "step"):
        raise EnvError(
            f"An environment in JAX must be one by the protocol al.JaxEnv: {misfit_of(env)}. Received: {_kind(env)}"
        )
    if not callable(env):
        raise EnvError(f"`env` must be a Gymnasium id, 'module:factory' or a callable. Received: {_kind(env)}")
    return env  # type: ignore[no-any-return]


def _callable_factory(name: str, source: Callable[..., Any], kwargs: dict[str, Any]) -> EnvFactory:
    signature = _signature(source)
    if signature is None:
        return EnvFactory(name, source, kwargs)
    native = "num_envs" in signature.parameters
    added = {"num_envs": 1} if native else {}
    if native and accepts(source, "seed"):
        added["seed"] = 0
    added |= {name: number for name, number in _numbered(source, 0).items() if name not in kwargs}
    try:
        signature.bind(**added, **kwargs)
    except TypeError as error:
        hint = "; a parameter `env_index` gets the environment's number" if "rank" in str(error) else ""
        raise EnvError(
            f"`{name}{signature}` can't be called with these `env_kwargs`: {error}{hint}. Received: env_kwargs={kwargs}"
        ) from error
    return EnvFactory(name, source, kwargs, native=native)


def _signature(source: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(source)
    except (TypeError, ValueError):  # some callables written in C have none
        return None


def accepts(source: Callable[..., Any], name: str) -> bool:
    """Return True if the callable has a parameter of this name, or any keyword argument."""
    signature = _signature(source)
    parameters = {} if signature is None else signature.parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _numbered(source: Any, number: int) -> dict[str, int]:
    """Return the number of an environment as an argument, where the callable has a parameter for it."""
    signature = _signature(source)
    return {"env_index": number} if signature is not None and "env_index" in signature.parameters else {}


def _own_files(kwargs: Mapping[str, Any], number: int) -> dict[str, str]:
    """Return the prefix of a RecordVideo's files where another environment, or an earlier process, has the usual one.

    Each would begin with episode 0 and write over the other's.
    """
    given = kwargs.get("name_prefix", "rl-video")
    prefix = own = f"{given}-env-{number}" if number else given
    folder = kwargs.get("video_folder", "")
    files = os.listdir(folder) if os.path.isdir(folder) else []
    for again in itertools.count(2):
        if not any(file.startswith((f"{prefix}-episode-", f"{prefix}-step-")) for file in files):
            break
        prefix = f"{own}-{again}"
    return {} if prefix == given else {"name_prefix": prefix}


def _own_copies(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for one environment alone: deep copies, but of read-only arrays and what can't be copied."""
    memo: dict[int, Any] = {}
    with contextlib.suppress(RecursionError):  # a list may hold itself
        memo.update((id(array), array) for array in _read_only_arrays(kwargs))
    found, trials = dict(kwargs), []
    for name, value in kwargs.items():
        trials.append(trial := dict(memo))  # a copy that fails leaves half of itself there; all live, for their ids
        with contextlib.suppress(Exception):
            found[name] = copy.deepcopy(value, trial)
            memo = trial
    return found


def _read_only_arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray) and not (value.flags.writeable or value.dtype.hasobject):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _read_only_arrays(part)


def _callable_name(source: Callable[..., Any]) -> str:
    if isinstance(source, functools.partial):
        return _callable_name(source.func)
    return getattr(source, "__qualname__", None) or type(source).__qualname__


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _unpicklable_part(factory: EnvFactory, error: Exception) -> tuple[str, Any, str]:
    """Return name, value and error of the first part of a factory that can't be pickled by itself."""
    parts = [part for wrapper in factory.wrappers for part in _parts(wrapper, {})]
    if factory.seats is not None:
        parts += [(f"`players[{name!r}]`", player) for name, player in factory.seats.players.items()]
        parts.append(("`outcome`", factory.seats.outcome))
    if factory.policy_of is not None:
        parts.append(("`policy_of`", factory.policy_of.rule))
    for name, value in [*_parts(factory.source, factory.env_kwargs), *parts]:
        try:
            cloudpickle.dumps(value)
        except Exception as reason:
            return name, value, str(reason)
    return "it", factory.source, str(error)


def _parts(source: Any, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    parts = [(f"`env_kwargs[{key!r}]`", value) for key, value in kwargs.items()]
    if isinstance(source, functools.partial):
        parts += [(f"argument {index} of the partial", value) for index, value in enumerate(source.args)]
        parts += [(f"argument `{key}` of the partial", value) for key, value in source.keywords.items()]
        return parts + _parts(source.func, {})
    functions = [source, *vars(source).values()] if inspect.isclass(source) else [source]
    for function in filter(inspect.isfunction, functions):
        used = inspect.getclosurevars(function)
        parts += [(f"its variable `{key}`", value) for key, value in {**used.nonlocals, **used.globals}.items()]
    if isinstance(source, EnvSpec):
        parts += [(f"its registered argument `{key}`", value) for key, value in source.kwargs.items()]
        return [*parts, ("its entry point", source.entry_point), ("its vector entry point", source.vector_entry_point)]
    owner = getattr(source, "__self__", source)
    if not inspect.isclass(owner):
        parts += [(f"its attribute `{key}`", value) for key, value in getattr(owner, "__dict__", {}).items()]
    return parts
