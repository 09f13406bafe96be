"""`ActorPool`: actor processes that collect trajectories, whoever does the learning."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from actor_learner.actors.actor import Startup
from actor_learner.actors.capacity import check_memory
from actor_learner.actors.group import ActorGroup
from actor_learner.actors.local import LocalActors
from actor_learner.actors.processes.group import ProcessActors
from actor_learner.actors.processes.heartbeats import Heartbeats
from actor_learner.actors.processes.restarts import ActorError, OnEnvError, Restart, RestartPolicy
from actor_learner.actors.scheduling import FreeRunning, LockStep, Schedule
from actor_learner.actors.transport.batches import ArenaPlan, Block, BlockLayout
from actor_learner.actors.transport.messages import Done
from actor_learner.actors.transport.shared_memory import Arena
from actor_learner.actors.transport.weights import WeightSlots
from actor_learner.environments.calls import make_call
from actor_learner.environments.factory import EnvFactory, resolve_env
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.trajectory import Trajectory, TrajectorySpec, map_leaves, nest
from actor_learner.system.fields import check_choice, check_count, check_info_keys, check_seconds, refusal
from actor_learner.system.keras_import import import_keras
from actor_learner.system.machine import available_cores

if TYPE_CHECKING:
    import keras
    from gymnasium.spaces import Space

__all__ = ["ActorError", "ActorPool", "Restart"]

Array = np.ndarray[Any, Any]
_logger = logging.getLogger(__name__)
NICENESS = 5
"""Of actors that collect while the learner learns: it never waits for a core that one of them has, and they have the
rest. Whoever of the two is slower, no core is idle."""

_SPARE_SLOTS = 2
"""Beside those that actors may be reading: for the newest version, and for the one being written."""


class ActorPool:
    """Actors that step environments with a network's policy and fill batches of trajectories.

    ```python
    with al.ActorPool("CartPole-v1", num_actors=2) as actors:
        learner = al.Learner(actors.network, al.PPO(), action_space=actors.action_space)
        for _ in range(100):
            learner.update(actors.collect())
            actors.publish(learner.get_weights())
    ```

    Each `collect` hands out the columns of a batch: at `max_policy_lag=0` of the batch that it returns, at 1
    of the one after it, which the actors fill while the caller learns. With one `publish` per `collect`,
    batch j is acted by version max(0, j - max_policy_lag), whoever is faster.

    With `max_policy_lag=n` above 1 the actors run freely: whoever is done goes on at once by the newest weights, and
    a batch is what was filled first, by versions from that of the update it enters back to n before it (with one
    `publish` per `collect`). Columns whose time is up end early, with rows of `valid=False`. An environment may stand
    in a batch twice, or not at all: `env_index` tells.

    For one thread at a time; `close` may come from any.

    Attributes:
        network: The Keras network, as built.
        observation_space: Of one environment.
        action_space: Of one environment.
        env_name: Id of the environment, or the callable's name.
        episodes: Episodes that ended in the last batch: "return", "length" and those of `info_keys` that
            occurred, as 1-D float32 arrays.
        timings: Where the actors' time went in the last batch, as fractions: "env", "acting", "other", "waiting".
        exported: The policy as the actors have it, by the first weights.
        layout: Of a batch in shared memory.
        unrolls: What each actor did for the last batch, in seconds: `env`, `acting`, `other`, `waiting` before it,
            and when it had `ended` by `time.perf_counter`.
        restarts: Actors that were replaced while the last batch was collected, with the causes.
        restart_count: All that were replaced so far.
    """

    def __init__(
        self,
        env: str | Callable[..., Any] | EnvFactory,
        network: keras.Model | Callable[[Space[Any], Space[Any]], keras.Model] | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        vectorization: str = "auto",
        num_actors: int = 4,
        envs_per_actor: int = 8,
        unroll_length: int = 128,
        max_policy_lag: int = 0,
        seed: int = 0,
        info_keys: Sequence[str] = ("is_success",),
        autoreset_mode: str | None = None,
        logs_dir: str | Path | None = None,
        start_timeout: float = 120.0,
        actor_timeout: float = 60.0,
        on_env_error: OnEnvError = "restart",
        max_restarts: int = 1000,
    ) -> None:
        """Starts the actors and builds the network.

        Args:
            env: Gymnasium id, `module:Id-v0`, `module:factory`, or a callable that returns an environment
                (with a parameter `num_envs`: a vector environment).
            network: Keras model by the network contract, a callable that builds one from the spaces, or None
                for the default network. Actors get an exported copy of it.
            env_kwargs: Keyword arguments of each environment.
            vectorization: "auto" uses an id's own vector environment where it has one; "sync" never.
            num_actors: Actor processes; 0 steps in this process, for debuggers.
            envs_per_actor: Environments of each actor.
            unroll_length: Env steps of each environment in a batch (T).
            max_policy_lag: 0: actors wait for new weights; 1: they collect while the learner learns; n > 1: they
                never wait for each other, and batches are at most n versions old.
            seed: Of environments, actions and the default network.
            info_keys: Numeric entries of an episode's last `info` to report in `episodes`.
            autoreset_mode: For vector environments that name none.
            logs_dir: Folder for `actor-N.log`, what the actors print.
            start_timeout: Seconds for actors to make and reset their environments.
            actor_timeout: Seconds without a sign of life (an env step begun or done) after which an actor counts as
                hung, and is replaced. One that is slow, but faster than that, never is.
            on_env_error: What an exception of an environment leads to: "restart" replaces the actor, "raise" ends
                the pool.
            max_restarts: How many actors that died, hung or failed are replaced before the next one ends the pool; 0:
                the first one does. Three in a row without a finished unroll end it in any case.

        Raises:
            ValueError: An argument, the environment or the network can't be used (`EnvError` for the second).
            ActorError: An actor died, again and again.
            MemoryError: The batches, or so many actors, don't fit into memory.
            TimeoutError: Actors weren't ready in time.
        """
        _check_arguments(num_actors, envs_per_actor, unroll_length, max_policy_lag, seed)
        info_keys = check_info_keys(info_keys)
        _check_care(start_timeout, actor_timeout, on_env_error, max_restarts)
        check_memory(num_actors)
        _warn_of_crowding(num_actors)
        factory = resolve_env(env, env_kwargs, vectorization, check_pickle=num_actors > 0)
        self.env_name = factory.name
        self.episodes: dict[str, Array] = {}
        self.timings: dict[str, float] = {}
        self.unrolls: list[Done] = []
        self.restarts: list[Restart] = []
        self._restarts = RestartPolicy(on_env_error, max_restarts)
        self._num_actors, self._envs_per_actor = max(num_actors, 1), envs_per_actor
        self._unroll_length, self._lag = unroll_length, max_policy_lag
        self._info_keys = tuple(dict.fromkeys(info_keys))
        self._blocks: list[Block] = []
        self._trajectories: list[Trajectory] = []
        startups = [
            Startup(envs_per_actor, self._info_keys, autoreset_mode, seed, actor, niceness=NICENESS if self._lag else 0)
            for actor in range(self._num_actors)
        ]
        self._arena = Arena.create()
        self._end: weakref.finalize[..., ActorPool] = weakref.finalize(self, self._arena.close)
        try:
            if num_actors == 0:
                self._crew: ActorGroup = LocalActors(factory, startups[0], self._arena)
            else:
                heartbeats = Heartbeats(actor_timeout, start_timeout)
                folder = _made(logs_dir)
                self._crew = ProcessActors(factory, startups, self._arena, folder, self._restarts, heartbeats)
            self._end.detach()
            self._end = weakref.finalize(self, _close, self._crew, self._arena)
            self._crew.start()
            self._begin(network, seed, start_timeout)
        except BaseException:
            self.close()
            raise

    def _begin(self, network: Any, seed: int, start_timeout: float) -> None:
        """Builds what depends on the spaces, which the environments alone know."""
        _import_learner_side()
        described = self._crew.spaces(start_timeout)
        spaces = self._spaces = Spaces.from_json(described).gymnasium
        self.uses_masks = spaces.masked
        self.observation_space, self.action_space = spaces.observation_space, spaces.action_space
        self.network = _build_network(network, spaces, seed)
        exported = _export(self.network, spaces, self._envs_per_actor)
        policy = np.frombuffer(pickle.dumps(exported, pickle.HIGHEST_PROTOCOL), np.uint8)
        weights = self.network.get_weights()
        plan = self._plan(policy.size, sum(map(np.size, weights)))
        self._arena.reserve(plan.size)
        stop_words = plan.stop_words(self._arena)
        stop_words.fill(0)
        plan.heartbeats(self._arena).fill(0)
        plan.policy(self._arena)[...] = policy
        self.exported, self.layout = exported, plan.layout
        self._slots = WeightSlots(plan.slots(self._arena), weights)
        self._blocks = plan.blocks(self._arena)
        self._trajectories = [nest(block.views(), spaces) for block in self._blocks]
        self._hand_outs = self._make_hand_outs(stop_words[1:])
        self._crew.begin(plan, exported, self._hand_outs)

    def _plan(self, policy_size: int, weights_size: int) -> ArenaPlan:
        num_envs = self._num_actors * self._envs_per_actor
        spec = TrajectorySpec.from_spaces(self._spaces, unroll_length=self._unroll_length, num_envs=num_envs)
        versions_read = self._num_actors if self._lag > 1 else self._lag + 1
        return ArenaPlan(
            BlockLayout.of(spec, self._info_keys),
            self._num_actors,
            num_blocks=self._lag + 1,
            num_slots=versions_read + _SPARE_SLOTS,
            weights_size=weights_size,
            policy_size=policy_size,
        )

    def _make_hand_outs(self, stop_words: Array) -> Schedule:
        shape = {"num_actors": self._num_actors, "envs_per_actor": self._envs_per_actor, "lag": self._lag}
        if self._lag > 1:
            return FreeRunning(self._blocks, self._slots, self._crew.hand_out, stop_words, **shape)
        return LockStep(self._blocks, self._slots, self._crew.hand_out, **shape)

    @property
    def version(self) -> int:
        """The newest version of the weights: how often `publish` was called."""
        return self._slots.newest.number

    @property
    def restart_count(self) -> int:
        """How many actors were replaced so far."""
        return self._restarts.count

    @property
    def idle(self) -> bool:
        """Whether all that was handed out is filled."""
        return self._crew.idle

    @property
    def pids(self) -> dict[int, int]:
        """Process id of each actor that has a process now, which is the id of its process group as well."""
        return self._crew.process_ids()

    def restart(self, actors: Iterable[int] | None = None) -> None:
        """Replaces these actors' processes, or all; soon, and what they were at is begun anew.

        For environments that leak. It doesn't count for `max_restarts`. Raises ValueError with `num_actors=0`, and
        for a number that no actor has.
        """
        chosen = range(self._num_actors) if actors is None else list(actors)
        if unknown := [actor for actor in chosen if actor not in range(self._num_actors)]:
            raise ValueError(f"`actors` must be numbers below {self._num_actors}. Received: {unknown[0]!r}")
        self._crew.replace(chosen)

    def call(self, name: str, *args: Any) -> None:
        """Calls a method of every environment, such as `call("set_difficulty", 3)`, between two unrolls.

        Each actor does it before the first unroll that is handed out from now on. With `max_policy_lag=0` that is the
        batch that the next `collect()` returns; with 1, where the next batch is being filled already, the one after it;
        with more, whatever an actor goes on with when it is done with what it is at. What the environments have shown
        by then stays: a method shouldn't change what they are in the middle of.

        An actor that replaces another one makes these calls before its first unroll, in their order, and so does a run
        that goes on from a checkpoint. Of the calls of one name the last alone is repeated: let a method set something,
        not add to it.

        Args:
            name: Of the method: of each sub-environment, found through its wrappers as Gymnasium's `VectorEnv.call`
                does, else of the vector environment itself. What it returns is dropped.
            args: JSON alone, which is how the environments get it (tuples as lists), 15 KiB for all names together.

        Raises:
            ValueError: The name or the arguments can't be called. An environment without such a method is an
                `EnvError`: here with `num_actors=0`, else in the next `collect()` or `publish()`.
        """
        call = make_call(name, args)
        with self._closed_on_failure():
            self._crew.check()
        self._crew.call(call)

    @property
    def calls(self) -> list[list[Any]]:
        """What an actor that begins now has to call, as JSON: name and arguments of each."""
        return [[call.name, call.args] for call in self._crew.calls.since(0)]

    def repeat(self, calls: Iterable[Sequence[Any]]) -> None:
        """Makes the calls of an earlier pool; those that the environments don't know are warned of and left out."""
        for name, args in calls:
            self._crew.call(make_call(name, args, optional=True))

    def collect(self, timeout: float | None = 60.0) -> Trajectory:
        """The next batch, as read-only views `[T, B]` on shared memory; `B` = actors x `envs_per_actor`.

        The views live until the next `collect()`; `trajectory.copy()` keeps them. After a TimeoutError it may
        be called again, and waits on.

        Args:
            timeout: Seconds; None: as long as it takes, since actors that hang are replaced. With `num_actors=0` it
                always takes what it takes.

        Raises:
            ActorError: An actor failed or died and isn't replaced; every process is ended, the pool is closed.
            TimeoutError: Some actors (named) hadn't filled their columns in time.
        """
        with self._closed_on_failure():
            self._crew.check()
            hand_outs = self._hand_outs
            with self._crew.lock:
                hand_outs.begin()
            self._crew.wait(hand_outs, math.inf if timeout is None else timeout)
            with self._crew.lock:
                index, done = hand_outs.take()
            self._check_written(self._blocks[index])
        self._note_restarts()
        self.episodes = self._blocks[index].episodes()
        self.timings, self.unrolls = _fractions(done), done
        return self._trajectories[index]

    def upcoming(self) -> Trajectory | None:
        """The batch that the next `collect` returns, if it is complete by now: as views that live until then.

        From any thread; asking hands nothing out. None with `max_policy_lag` 0, and above 1, where which batch is next
        is settled when it is collected.
        """
        with self._crew.lock:
            index = self._hand_outs.upcoming()
            return None if index is None or not self._trajectories else self._trajectories[index]

    def blank_trajectory(self) -> Trajectory:
        """A batch as `collect` gives it, but all zeros, where each step ends an episode: to compile an update with."""
        block = self._trajectories[0]
        zeros: dict[str, Any] = {
            name: None if field is None else map_leaves(np.zeros_like, field) for name, field in block._asdict().items()
        }
        for name in ("valid", "terminated", "action_mask"):
            if zeros[name] is not None:
                zeros[name][...] = True
        return Trajectory(**zeros)

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """Whoever gets an actor's error has no pool to close any more."""
        try:
            yield
        except TimeoutError:
            raise
        except Exception:
            self._note_restarts()
            self.close()
            raise

    def _note_restarts(self) -> None:
        self.restarts = self._crew.replaced()
        for restart in self.restarts:
            _logger.warning("\n".join(filter(None, (str(restart), restart.details))))

    def _check_written(self, block: Block) -> None:
        if (missing := block.unwritten()) is None:
            return
        row, column = missing
        actor = int(block.arrays["env_index"][column]) // self._envs_per_actor
        raise ActorError(
            f"Actor {actor} didn't write row {row} of column {column}. Received: behaviour_log_prob=nan",
            actor,
        )

    def publish(self, weights: Sequence[Array]) -> None:
        """Gives the actors new weights, for the hand-outs from now on.

        Args:
            weights: The list that `network.get_weights()` and `learner.get_weights()` give.

        Raises:
            ValueError: Their number or a shape is another than the network's, or they aren't finite.
            ActorError: An actor has failed since the last `collect()`.
        """
        with self._closed_on_failure():
            self._crew.check()
        self._slots.publish(weights)

    def close(self) -> None:
        """Ends the actors and everything that they started; idempotent, from any thread."""
        self._end()
        self._blocks, self._trajectories = [], []
        if hasattr(self, "_hand_outs"):
            self._slots.close()
            self._hand_outs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_arguments(num_actors: int, envs_per_actor: int, unroll_length: int, max_policy_lag: int, seed: int) -> None:
    for name, value, least in (
        ("num_actors", num_actors, 0),
        ("envs_per_actor", envs_per_actor, 1),
        ("unroll_length", unroll_length, 1),
        ("max_policy_lag", max_policy_lag, 0),
        ("seed", seed, 0),
    ):
        check_count(name, value, least)
    if num_actors == 0 and max_policy_lag > 1:
        expected = "0 or 1 with num_actors=0, where nothing runs beside the learner"
        raise refusal("max_policy_lag", expected, max_policy_lag)


def _check_care(start_timeout: float, actor_timeout: float, on_env_error: str, max_restarts: int) -> None:
    for name, seconds in (("start_timeout", start_timeout), ("actor_timeout", actor_timeout)):
        check_seconds(name, seconds)
    check_choice("on_env_error", on_env_error, get_args(OnEnvError))
    check_count("max_restarts", max_restarts, 0)


def _warn_of_crowding(num_actors: int) -> None:
    cores = available_cores()
    if num_actors > cores:
        warnings.warn(
            f"There are more actors than cores, which helps only where environments wait for something. "
            f"Received: num_actors={num_actors}, cores={cores}",
            UserWarning,
            stacklevel=3,
        )


def _made(folder: str | Path | None) -> Path | None:
    """The folder, which is there afterwards."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def _close(crew: ActorGroup, arena: Arena) -> None:
    """Not a method: at the interpreter's end, and when a pool is forgotten, the pool itself is gone."""
    crew.close()
    arena.close()


def _import_learner_side() -> None:
    """TensorFlow takes seconds to import; the actors make their environments meanwhile."""
    import_keras()
    importlib.import_module("actor_learner.policy.export.litert")
    importlib.import_module("actor_learner.learner.backend").resolve_device("auto")  # before a weight is made


def _build_network(network: Any, spaces: Spaces, seed: int) -> keras.Model:
    import keras

    from actor_learner.networks.contract import check_network
    from actor_learner.networks.default import default_network

    if network is None:
        network = default_network(spaces.observation_space, spaces.action_space, seed=seed)
    elif not isinstance(network, keras.Model) and callable(network):
        network = network(spaces.observation_space, spaces.action_space)
    check_network(network, spaces)
    return network


def _export(network: keras.Model, spaces: Spaces, batch_size: int) -> ExportedPolicy:
    from actor_learner.policy.export.litert import export_network

    return export_network(network, spaces, batch_size)


def _fractions(done: Sequence[Done]) -> dict[str, float]:
    """Where the actors' time went, all of them together."""
    names = ("env", "acting", "other", "waiting")
    seconds = {name: sum(getattr(one, name) for one in done) for name in names}
    total = sum(seconds.values())
    return {name: value / total if total > 0 else 0.0 for name, value in seconds.items()}
