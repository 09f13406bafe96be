"""`ActorPool`: actors that collect trajectories, for `train` or for a loop of the user's own."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import importlib
import inspect
import logging
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from actor_learner.actors.actor import make_startups
from actor_learner.actors.cluster.group import ClusterActors
from actor_learner.actors.group import ActorError, ActorGroup, ColumnSchedule, HostStatus, Plan, Restart
from actor_learner.actors.local import LocalActors
from actor_learner.actors.processes.group import ProcessActors
from actor_learner.actors.scheduling import FreeRunning, LockStep
from actor_learner.actors.transport.batches import BlockLayout, Blocks
from actor_learner.actors.transport.messages import Done
from actor_learner.actors.transport.weights import check_finite
from actor_learner.config.policies import rule_of, seed_of
from actor_learner.config.pool_checks import check_info_keys, check_memory, check_shared_envs, first_envs
from actor_learner.config.self_play import RESULT_KEYS, SelfPlay
from actor_learner.config.settings import OF_PROCESSES, PoolSettings, names_of, on_device, with_texts_of
from actor_learner.environments.calls import make_call
from actor_learner.environments.factory import EnvFactory, resolve_env
from actor_learner.environments.self_play import Seats
from actor_learner.environments.teams import PolicyOf
from actor_learner.policy.exported import ExportedPolicy, vector_of
from actor_learner.spaces.jax_env import steps_on_device
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import observation_structure
from actor_learner.spaces.trajectory import Trajectories, Trajectory, nest
from actor_learner.system.fields import refusal
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import import_keras, keras_backend
from actor_learner.system.policies import ONLY_POLICY, of_one
from actor_learner.system.types import Array, Tensor

if TYPE_CHECKING:
    import keras


_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PoolPolicy:
    """A policy in a pool.

    Attributes:
        name: Its name; "" where there is only one.
        network: The Keras network, as built.
        spaces: The spaces of one environment, or of each of its agents.
        share: Its part of a game's agents.
        exported: The policy that the actors got, with the first weights.
        layout: The fields of its batches.
        policy_network: The network that is saved as the policy: where the value sees more, that part of `network` which
            takes what the policy sees, of `policy_space`.
        policy_space: The space of its observations.
    """

    name: str
    network: keras.Model
    spaces: Spaces
    share: float
    exported: ExportedPolicy
    layout: BlockLayout
    policy_network: keras.Model
    policy_space: Any

    @property
    def observation_space(self) -> Any:
        return self.spaces.observation_space

    @property
    def action_space(self) -> Any:
        return self.spaces.action_space

    @property
    def uses_masks(self) -> bool:
        """True where the environments report which actions are allowed."""
        return self.spaces.masked


class ActorPool:
    """Actors that step environments with a network's policy and fill batches of trajectories.

    ```python
    with al.ActorPool("CartPole-v1", num_actors=2) as actors:
        learner = al.Learner(actors.network, al.PPO(), action_space=actors.action_space)
        for _ in range(100):
            learner.update(actors.collect())
            actors.publish(learner.get_weights())
    ```

    Each `collect` assigns the columns of a batch to the actors. At `max_policy_lag=0` it is the batch that `collect`
    returns. At n it is the one n batches later, so that the actors have work while the caller learns. With one
    `publish` per `collect`, the actors fill batch j with version max(0, j - max_policy_lag), however fast either side
    is. A network that normalizes observations gets its statistics from batch 0; the actors then fill batches
    1 to max_policy_lag + 1 with version 1.

    With `asynchronous=True` the actors run freely: an actor that finishes an unroll begins the next one at once, with
    the newest weights. `collect` returns the first batch that is full. Its versions are at most n older than the
    update that it enters (with one `publish` per `collect`). Columns that would become too old end early, with rows of
    `valid=False`. An environment may be in a batch twice, or not at all: see `env_index`.

    With `policies`, several policies play the same games. `collect` then returns a dict with a trajectory for each,
    `publish` takes a dict of weights, and `network`, the spaces, `uses_masks`, `episodes`, `exported`, `layout`,
    `policy_network` and `policy_space` are dicts by the policies' names.

    Use it from one thread; only `close` and `upcoming` may be called from another.

    Attributes:
        policies: A `PoolPolicy` for each policy.
        network: The Keras network, as built.
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        policy_network: The network that is saved as a policy: where the value sees more, that part of `network` which
            takes what the policy sees, of `policy_space`.
        policy_space: The space of its observations.
        uses_masks: True where the environments report which actions are allowed.
        env_name: Id of the environment, or the callable's name.
        episodes: Episodes that ended in the last batch: "return", "length" and those of `info_keys` that
            occurred, as 1-D float32 arrays.
        ended_envs: The number of the environment of each of these episodes, 1-D.
        results: With `self_play`, a row for each of these episodes, `[K, 2]` float64: the opponent's number, and the
            learner's outcome from 0 to 1.
        timings: Fractions of the actors' time in the last batch: "env", "acting", "other", "waiting".
        exported: The policy that the actors got, with the first weights.
        acting: The place where the policy runs, "actors" or "device".
        layout: The fields of a batch.
        unrolls: Seconds that each actor spent on the last batch: `env`, `acting`, `other`, `waiting` before it, and
            the time when it `ended`, by `time.perf_counter`.
        restarts: Actors that were replaced while the last batch was collected, with the causes.
    """

    @with_texts_of(PoolSettings)
    def __init__(  # noqa: D417  the decorator adds the others
        self,
        env: str | Callable[..., Any] | EnvFactory,
        network: Any = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        vectorization: str = "auto",
        wrappers: Sequence[str | Callable[..., Any]] = (),
        wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        num_actors: int = 4,
        envs_per_actor: int | None = None,
        num_envs: int | None = None,
        unroll_length: int = 128,
        max_policy_lag: int = 0,
        asynchronous: bool = False,
        seed: int = 0,
        info_keys: Sequence[str] = ("is_success",),
        autoreset_mode: str | None = None,
        terminal_observations: bool = False,
        envs_see_gpu: bool = False,
        self_play: SelfPlay | Mapping[str, Any] | bool | None = None,
        centralized_value: bool = False,
        value_keys: Sequence[str] | None = None,
        policies: Mapping[str, Any] | Sequence[str] | None = None,
        policy_of: Mapping[str, str] | Callable[[Any], str] | None = None,
        logs_dir: str | Path | None = None,
        calls: Iterable[Sequence[Any]] = (),
        start_timeout: float = 120.0,
        actor_timeout: float = 60.0,
        close_timeout: float = 30.0,
        on_env_error: Literal["restart", "raise"] = "restart",
        max_restarts: int = 1000,
        acting: str = "actors",
        exploration: str | Callable[..., Any] | None = None,
        device: str = "auto",
        devices: int = 1,
        ray_address: str | None = None,
        actors_per_host: int | None = None,
        ray_wait: float | None = None,
        group: ActorGroup | None = None,
    ) -> None:
        """Start the actors and build the network.

        Args:
            env: Gymnasium id, `module:Id-v0`, `module:factory`, or a callable that returns an environment
                (with a parameter `num_envs`: a vector environment). Or an environment in JAX, `al.JaxEnv`, or its name
                (`gymnax:Id`, `jax:module:name`), which the learner's device steps: then `num_envs` is the one size.
            network: Keras model by the network contract, a callable that builds one from the spaces, or None
                for the default network. Actors get an exported copy of it. With `policies`: a dict of these by name.
            env_kwargs: keyword arguments of each environment.
            logs_dir: folder for `actor-N.log`, the output of each actor.
            calls: the `calls` of an earlier pool, which the environments get before their first reset.
            group: another kind of actors in place of processes, for tests and for embedding. It must have `num_actors`
                actors, and the pool closes it. See `actor_learner.actors.group.ActorGroup`.

        Raises:
            ValueError: An argument, the environment or the network can't be used (`EnvError` for the environment).
            ActorError: An actor died again and again.
            MemoryError: The batches, or so many actors, don't fit into memory.
            TimeoutError: Actors weren't ready in time.
        """
        arguments = {**locals(), "info_keys": tuple(dict.fromkeys(check_info_keys(info_keys)))}  # each one once
        if in_jax := steps_on_device(env, vectorization):
            parameters = inspect.signature(ActorPool).parameters
            defaults = {name: parameters[name].default for name in OF_PROCESSES}
            arguments |= on_device(arguments, defaults, keras_backend())
        self._settings = PoolSettings(**{name: arguments[name] for name in names_of(PoolSettings)})
        self._env_counts = self._settings.env_counts
        self.episodes: dict[str, Any] = {}
        self.ended_envs: Any = np.zeros(0, np.int32)
        self.results: Array = np.zeros((0, 2))
        self.timings: dict[str, float] = {}
        self.unrolls: list[Done] = []
        self.restarts: list[Restart] = []
        self._opponents: set[int] = set()
        self._newest_opponent = -1  # of all that were ever frozen
        self._blocks: Sequence[Blocks] = ()
        self._views: dict[int, dict[str, Trajectory]] = {}
        settings = self._settings
        wrapping = settings.vectorization, settings.wrappers, settings.wrapper_kwargs
        factory = resolve_env(env, env_kwargs, *wrapping, check_pickle=settings.num_actors > 0)
        if settings.self_play is not None:
            factory = dataclasses.replace(factory, seats=Seats.of(settings.self_play))
        if settings.policies is not None:
            rule = rule_of(settings.policies, settings.policy_of)
            factory = dataclasses.replace(factory, policy_of=PolicyOf(tuple(settings.policies), rule))
        factory = dataclasses.replace(factory, with_state=settings.centralized_value)
        self.env_name = factory.name
        if group is None:
            group = self._device_group(factory) if in_jax else self._make_group(factory, logs_dir)
        self._group = group
        self._process = os.getpid()
        self._end = weakref.finalize(self, self._group.close)  # at the interpreter's end, too
        try:
            self.repeat(calls)
            self._group.start()
            self._begin(network)
        except BaseException:
            self.close()
            raise

    def _make_group(self, factory: EnvFactory, logs_dir: str | Path | None) -> ActorGroup:
        settings, counts = self._settings, self._env_counts
        if settings.ray_address is None:
            check_memory(min(settings.num_actors, len(counts)))
        startups = make_startups(counts, settings)
        if settings.num_actors == 0:
            return LocalActors(factory, startups[0])
        kind = ProcessActors if settings.ray_address is None else ClusterActors
        return kind(factory.dumps(), startups, settings, None if logs_dir is None else Path(logs_dir))

    def _device_group(self, factory: EnvFactory) -> ActorGroup:
        """Return the group that steps environments in JAX on the learner's device."""
        env = factory.jax_env()
        num_envs = sum(self._env_counts)
        check_shared_envs(self._settings.devices, num_envs)
        _import_learner_side()
        settings, kind = self._settings, importlib.import_module("actor_learner.actors.device_actors").DeviceActors
        names = ("seed", "device", "devices", "info_keys")
        options = {name: getattr(settings, name) for name in names}
        group: ActorGroup = kind(env, num_envs, name=self.env_name, **options)
        return group

    def _begin(self, network: Any) -> None:
        """Build everything that depends on the environments' spaces, and give the group its plan."""
        backend, settings, counts = _import_learner_side(), self._settings, self._env_counts
        from actor_learner.learner.acting import DeviceStep
        from actor_learner.policy.export.exporting import export_network

        found = self._group.spaces(settings.start_timeout)
        spaces = {name: own.gymnasium for name, own in found.items()}
        of_game = sum(own.share for own in spaces.values())
        given = _by_policy(network, spaces)
        policy_spaces = {name: settings.policy_space(own.observation_space) for name, own in spaces.items()}
        networks = {
            name: _build_network(given[name], own, settings, backend, seed_of(settings.seed, number))
            for number, (name, own) in enumerate(spaces.items())
        }
        parts = {name: _policy_part(networks[name], spaces[name], own, settings) for name, own in policy_spaces.items()}
        exported: dict[str, ExportedPolicy] = {}
        step = None
        with backend.device(backend.resolve_device(settings.device)):
            for name, own in spaces.items():
                exported[name] = export_network(networks[name], own, max(counts) * own.share // of_game)
                if settings.exploration is not None and not exported[name].noise_normal:
                    expected = f"None for actions of {own.action_space}, which no normal noise changes"
                    raise refusal("exploration", expected, settings.exploration)
            self.acting = "device" if self.acts_on_device else settings.acting
            if self.acting == "device":
                step = DeviceStep(networks[ONLY_POLICY], spaces[ONLY_POLICY], settings.device)
        plan = Plan.of(settings, spaces, exported, counts, step)
        self.policies = tuple(
            PoolPolicy(name, networks[name], own, own.share / of_game, exported[name], layout, *parts[name])
            for (name, own), layout in zip(spaces.items(), plan.layouts, strict=True)
        )
        lag = settings.max_policy_lag
        kind = FreeRunning if settings.asynchronous else LockStep
        waits = any(_waits_for_statistics(network) for network in networks.values())
        self._schedule: ColumnSchedule = kind(self._group, counts, lag=lag, first_alone=waits)
        self._blocks = self._group.begin(plan, self._schedule)

    def _batch(self, found: Mapping[str, Trajectory]) -> Any:
        return of_one(Trajectories(found))

    def _of_block(self, index: int) -> dict[str, Trajectory]:
        """Return a block's trajectory for each policy: the same views on its memory each time, but on a device."""
        if (found := self._views.get(index)) is None:
            found = self._trajectories(self._blocks[index])
            if not self.acts_on_device:  # where each unroll has arrays of its own
                self._views[index] = found
        return found

    def _trajectories(self, blocks: Blocks, *, blank: bool = False) -> dict[str, Trajectory]:
        """Return the trajectory of each policy's block, or zeros in their shapes."""
        return {
            policy.name: nest(block.blank_views() if blank else block.views(), policy.spaces, block.trajectory_type)
            for policy, block in zip(self.policies, blocks, strict=True)
        }

    def _attribute(self, name: str) -> Any:
        return of_one({policy.name: getattr(policy, name) for policy in self.policies})

    network = property(lambda self: self._attribute("network"))
    observation_space = property(lambda self: self._attribute("observation_space"))
    action_space = property(lambda self: self._attribute("action_space"))
    uses_masks = property(lambda self: self._attribute("uses_masks"))
    exported = property(lambda self: self._attribute("exported"))
    layout = property(lambda self: self._attribute("layout"))
    policy_network = property(lambda self: self._attribute("policy_network"))
    policy_space = property(lambda self: self._attribute("policy_space"))

    @property
    def version(self) -> int:
        """The newest version of the weights: the number of calls of `publish`."""
        return self._group.version

    @property
    def restart_count(self) -> int:
        """The number of replacements so far."""
        return self._group.restart_count

    @property
    def idle(self) -> bool:
        """True where the actors have filled all columns that were assigned to them."""
        return self._group.idle

    @property
    def hosts(self) -> list[HostStatus]:
        """The machines of a cluster that run actors now, and what has come from each."""
        return self._group.hosts()

    @property
    def pids(self) -> dict[int, int]:
        """Process id of each actor that has a process now: the id of its process group as well."""
        return self._group.process_ids()

    def restart(self, actors: Iterable[int] | None = None) -> None:
        """Replace these actors' processes, or all, soon; their unrolls begin anew.

        For environments that leak. It doesn't count for `max_restarts`. Raises ValueError with `num_actors=0`, and for
        a number that no actor has.
        """
        count = len(self._env_counts)
        chosen = range(count) if actors is None else list(actors)
        if unknown := [actor for actor in chosen if actor not in range(count)]:
            raise ValueError(f"`actors` must be numbers below {count}. Received: {unknown[0]!r}")
        self._group.replace(chosen)

    def call(self, name: str, *args: Any) -> None:
        """Call a method of every environment, such as `call("set_difficulty", 3)`, between two unrolls.

        Each actor makes the call before the first unroll that is assigned to it from now on. With `max_policy_lag=0`
        that is in the batch that the next `collect()` returns. With n, the actors already fill that batch, so it is the
        one n batches after it. With `asynchronous`, it is the actor's next unroll. Earlier observations don't change,
        so a method shouldn't change an episode that is under way.

        All calls are made, in their order. An actor that replaces another one repeats them before its environments'
        first reset, in their order, and so does a run that resumes from a checkpoint; a method that raises there is
        called after the reset. Of calls that set the same only the last one is repeated: those of one method with
        as many arguments, and before the last one the same texts, whole numbers directly after a text, and keys of
        dicts. So let a method set a value, not add to it.

        Args:
            name: The name of a method of each sub-environment, which is found through its wrappers as in Gymnasium's
                `VectorEnv.call`; otherwise of the vector environment itself. Its return value is dropped.
            args: JSON only (tuples arrive as lists), at most 15 KiB for all names together.

        Raises:
            ValueError: The name or the arguments can't be called. An environment without such a method is an
                `EnvError`: here with `num_actors=0`, else in the next `collect()` or `publish()`.
        """
        call = make_call(name, args)
        self._check()
        self._group.call(call)

    @property
    def calls(self) -> list[list[Any]]:
        """The calls that a new actor makes first, as JSON: name and arguments of each."""
        return [[call.name, call.args] for call in self._group.calls.repeated()]

    def repeat(self, calls: Iterable[Sequence[Any]]) -> None:
        """Make the calls of an earlier pool; those that the environments refuse are left out with a warning."""
        for name, args in calls:
            self._group.call(make_call(name, args, optional=True))

    def assign(self) -> None:
        """Let the actors begin the next batch now. `collect` does so, too; an earlier call shortens its wait.

        Raises ActorError as `collect` does.
        """
        self._check()
        with self._closed_on_failure(), self._group.lock:
            self._schedule.begin()

    def _check(self) -> None:
        """Raise the error that ended the actors, if any did, and RuntimeError in a fork of the pool's process."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"A pool belongs to the process that made it, {self._process}; make another one here. "
                f"Received: a call in process {os.getpid()}"
            )
        with self._closed_on_failure():
            self._group.check()

    def collect(self, timeout: float | None = 60.0) -> Any:
        """Return the next batch, an `al.Trajectory` of read-only views `[T, B]` on the group's memory.

        B: all environments.

        With `policies`: a dict with a batch for each, which have the same T rows; some may be without a valid row.

        A batch without a valid row, whose rows only reset environments, is skipped.

        The views live until the next `collect()`; `trajectory.copy()` keeps them. After a TimeoutError call it again to
        go on waiting.

        Args:
            timeout: Seconds; None: no limit, since actors that hang are replaced. `num_actors=0` has no limit.

        Raises:
            ActorError: An actor failed or died and isn't replaced; every process is ended, the pool is closed.
            TimeoutError: Some actors (named) hadn't filled their columns in time.
        """
        self.restarts = []
        while True:
            self.assign()
            with self._closed_on_failure():
                self._group.wait(math.inf if timeout is None else timeout)
                with self._group.lock:
                    index, done = self._schedule.take()
                self._check_written(self._blocks[index])
            self._take_restarts()
            blocks = {policy.name: block for policy, block in zip(self.policies, self._blocks[index], strict=True)}
            self.episodes = of_one({name: block.episodes() for name, block in blocks.items()})
            self.ended_envs = of_one({name: block.ended_envs() for name, block in blocks.items()})
            if self._settings.self_play is not None:
                self.results = _taken(self.episodes, kept=self._settings.info_keys)
            self.timings, self.unrolls = _fractions(done), done
            found = self._of_block(index)
            if any(trajectory.valid.any() for trajectory in found.values()):
                return self._batch(found)

    def upcoming(self) -> Any:
        """Return the batch that the next `collect` will return, if it is complete: as views that live until then.

        Any thread may call it; it assigns nothing. The result is None with `max_policy_lag` 0, and with
        `asynchronous`, where `collect` chooses the next batch.
        """
        with self._group.lock:
            index = self._schedule.upcoming()
            found = None if index is None or not self._blocks else self._of_block(index)
        return None if found is None else self._batch(found)

    def blank_trajectory(self) -> Any:
        """Return a batch of zeros, shaped as by `collect`, in which each step is an episode. It serves to compile an
        update.
        """
        found = self._trajectories(self._blocks[0], blank=True)
        return self._batch({name: _ended_everywhere(trajectory) for name, trajectory in found.items()})

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """Close the pool on an actor's error, so that the caller has nothing to close."""
        try:
            yield
        except TimeoutError:
            raise
        except Exception:
            self._take_restarts()
            self.close()
            raise

    def _take_restarts(self) -> None:
        restarts = self._group.take_restarts()
        self.restarts += restarts
        for restart in restarts:
            _logger.warning("\n".join(filter(None, (str(restart), restart.details))))

    def _check_written(self, blocks: Blocks) -> None:
        for policy, block in zip(self.policies, blocks, strict=True):
            if (place := block.unwritten()) is not None:
                row, column = place
                first = [start * policy.share for start in first_envs(self._env_counts)]
                actor = bisect.bisect(first, block.arrays["env_index"][column]) - 1
                text = f"Actor {actor} didn't write row {row} of column {column}."
                raise ActorError(f"{text} Received: behaviour_log_prob=nan", actor)

    def publish(self, weights: Sequence[Array] | Array | Mapping[str, Any]) -> None:
        """Give the actors new weights, for all columns that are assigned from now on.

        Args:
            weights: The list that `network.get_weights()` and `learner.get_weights()` return, or all of its arrays
                raveled into one float32 vector, as `learner.flat_weights()` returns it. With `policies`: a dict of
                these by name. For environments in JAX also `learner.device_weights()`, which isn't checked.

        Raises:
            ValueError: Their number or a shape differs from the network's, or they aren't finite.
            ActorError: An actor has failed since the last `collect()`.
        """
        self._check()
        vector: Any = weights
        if not self.acts_on_device or isinstance(weights, np.ndarray | Sequence):  # else they are on the device
            vector = vector_of({policy.name: policy.exported for policy in self.policies}, weights)
            shapes = [shape for policy in self.policies for shape in policy.exported.weight_shapes]
            check_finite(vector, shapes)
        self._group.publish(vector)

    @property
    def acts_on_device(self) -> bool:
        """True if the learner's device steps the environments, which are written in JAX."""
        return self._group.acts_on_device

    def act_ahead(self, weights: Tensor) -> tuple[Trajectory, bool] | None:
        """Begin the next unroll of environments in JAX, as if these `device_weights` were published next.

        If others are, or a tensor that equals it but is another, the unroll is dropped. Call it while the device
        computes an update, as `learner.meanwhile` is called.

        Returns the batch that `collect` will return then, whose arrays the device still computes, and whether these
        weights act in it, for `learner.update_ahead`; None where no unroll is begun.
        """
        if (begun := self._group.act_ahead(weights)) is None:
            return None
        return self._trajectories((begun[0],))[ONLY_POLICY], begun[1]

    def set_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array] | None = None) -> None:
        """Have the columns that are assigned from now on played against these opponents, with `self_play`.

        Each episode draws one at its start and keeps it to its end. The first episodes of all, which begin before there
        is a policy, are played against the random player.

        Args:
            weights: The shares of the draws by number: -1 is the random player, -2, -3, ... are those of
                `SelfPlay.players` in their order, and 0, 1, 2, ... are frozen versions.
            frozen: The weights of new versions, whose numbers are higher than all before: finite float32 vectors
                as `learner.flat_weights()` returns them.

        Raises:
            ValueError: There is no such player, too many versions, or none that is drawn; weights don't fit; or columns
                in progress still need the versions that so many new ones would replace.
        """
        self._check()
        exported = self.policies[0].exported
        given = {number: exported.as_vector(vector) for number, vector in (frozen or {}).items()}
        for vector in given.values():
            check_finite(vector, exported.weight_shapes)
        self._check_opponents(weights, given)
        self._group.set_opponents(weights, given)
        self._opponents, self._newest_opponent = set(weights), max([self._newest_opponent, *given])

    def _check_opponents(self, weights: Mapping[int, float], frozen: Mapping[int, Array]) -> None:
        settings = self._settings.self_play
        if settings is None:
            raise ValueError("`set_opponents` needs a pool with `self_play`. Received: self_play=None")
        if strange := [number for number in weights if type(number) is not int]:
            raise ValueError(
                f"`weights` must have integers as keys, -1 for the random player. Received: {strange[0]!r}"
            )
        least = -1 - len(settings.players)
        if unknown := [n for n in weights if n < least or (n >= 0 and n not in self._opponents and n not in frozen)]:
            text = "`weights` must be of the random player, -1, of own players, or of versions that `frozen` brings"
            raise ValueError(f"{text}. Received: {unknown[0]}")
        if old := [number for number in frozen if number <= self._newest_opponent]:
            text = "`frozen` must number versions upwards, since a number stands for its first weights; the next is"
            raise ValueError(f"{text} {self._newest_opponent + 1}. Received: {min(old)}")
        if not sum(weights.values()) > 0 or min(weights.values()) < 0:
            raise ValueError(f"`weights` must be shares, of which some are above 0. Received: {dict(weights)}")
        if (count := sum(number >= 0 for number in weights)) > settings.size:
            received = f"{count} versions, size={settings.size}"
            raise ValueError(f"`weights` must be of at most `size` frozen versions. Received: {received}")

    def close(self) -> None:
        """End the actors and everything that they started; idempotent, from any thread."""
        self._end()
        self._blocks, self._views = (), {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _import_learner_side() -> Any:
    """Import TensorFlow, which takes seconds, while the actors make their environments. Returns the backend."""
    import_keras()
    importlib.import_module("actor_learner.policy.export.exporting")
    return importlib.import_module("actor_learner.learner.backend")


def _by_policy(network: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the argument `network` for each policy. Raises ValueError unless it is a dict by several's names."""
    names = list(names)
    if ONLY_POLICY in names:
        return {ONLY_POLICY: network}
    if network is None:
        return dict.fromkeys(names)
    if not isinstance(network, Mapping) or set(network) - set(names):
        received = list(network) if isinstance(network, Mapping) else repr(network)
        raise ValueError(f"`network` must be a dict by the names of `policies`, {names}. Received: {received}")
    return {name: network.get(name) for name in names}


def _ended_everywhere(trajectory: Trajectory) -> Trajectory:
    """Return a batch in which each step is valid, ends an episode and allows all actions."""
    names = ("valid", "terminated", "action_mask")
    flags = {name: field for name in names if (field := getattr(trajectory, name)) is not None}
    return trajectory._replace(**{name: field | True for name, field in flags.items()})


def _build_network(network: Any, spaces: Spaces, settings: PoolSettings, backend: Any, seed: int) -> keras.Model:
    import keras

    from actor_learner.networks.contract import check_network
    from actor_learner.networks.default import default_network

    with backend.prepare_devices(settings.device):
        if not isinstance(network, keras.Model) and callable(network):
            network = network(spaces.observation_space, spaces.action_space)
    with backend.device(backend.resolve_device(settings.device)):
        if network is None:
            options: dict[str, Any] = {"value_only": settings.value_only(spaces.observation_space), "seed": seed}
            network = default_network(spaces.observation_space, spaces.action_space, **options)
        check_network(network, spaces)
    return network


def _policy_part(network: keras.Model, spaces: Spaces, own: Any, settings: PoolSettings) -> tuple[keras.Model, Any]:
    """Return the part of a network that acts without the entries for the value alone, and the space that it takes.

    own: the space without these. A network of one's own, or of an earlier run, may read those that nobody named.
    """
    if own is spaces.observation_space:
        return network, own
    from actor_learner.networks.contract import policy_part

    try:
        return policy_part(network, observation_structure(own)), own
    except ValueError as error:
        if settings.value_keys is not None or settings.centralized_value:
            raise
        text = "The policy sees `privileged_state`, an entry for the value alone by default; with value_keys=() it may"
        warnings.warn(f"{text}. {one_line(error)}", stacklevel=2)
        return network, spaces.observation_space


def _taken(episodes: dict[str, Array], kept: Sequence[str]) -> Array:
    """Take the results of games out of the entries of episodes, as `[K, 2]` float64. kept: entries that stay there."""
    found = np.stack([episodes.get(key, np.zeros(0)).astype(np.float64) for key in RESULT_KEYS], axis=1)
    for key in set(RESULT_KEYS) - set(kept):
        episodes.pop(key, None)
    return found


def _waits_for_statistics(network: keras.Model) -> bool:
    """Return whether the first batch sets the statistics that all others are normalized by."""
    from actor_learner.networks.contract import normalization_layers

    return any(float(layer.count) == 0 for layer in normalization_layers(network))


def _fractions(done: Sequence[Done]) -> dict[str, float]:
    names = ("env", "acting", "other", "waiting")
    seconds = {name: sum(getattr(unroll, name) for unroll in done) for name in names}
    total = sum(seconds.values())
    return {name: value / total if total > 0 else 0.0 for name, value in seconds.items()}
