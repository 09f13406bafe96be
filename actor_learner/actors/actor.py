"""An actor, in any process: steps its environments and writes the steps into its columns. Loads no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import time
from collections.abc import Generator, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np

from actor_learner.actors.transport.batches import ActorColumns, ArenaParts, Block, share_of
from actor_learner.actors.transport.messages import Assignment, Done
from actor_learner.actors.transport.weights import read_weights
from actor_learner.actors.turns import TurnWriter
from actor_learner.config.pool_checks import find_exploration, first_envs
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.agents import AgentsVectorEnv, TurnGames
from actor_learner.environments.calls import Call, CallError
from actor_learner.environments.environments import Environments
from actor_learner.environments.episodes import Episodes
from actor_learner.environments.errors import ApiError, EnvError
from actor_learner.environments.factory import EnvFactory
from actor_learner.environments.opponents import Opponent
from actor_learner.environments.self_play import SelfPlayVectorEnv
from actor_learner.environments.teams import environments_of
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.graph import LoadedGraph
from actor_learner.policy.policy import Policy
from actor_learner.system.fields import refusal
from actor_learner.system.files import one_line
from actor_learner.system.machine import current_core
from actor_learner.system.types import Array, Leaves

T = TypeVar("T")

NICENESS = 5  # of actors that collect while the learner learns: they get the time that the learner leaves


@dataclass(frozen=True)
class Startup:
    """The description of an actor."""

    num_envs: int
    info_keys: tuple[str, ...]
    autoreset_mode: str | None
    seed: int
    actor: int  # its number
    first_env: int = 0  # the number of its first environment among those of all actors
    incarnation: int = 0  # the number of actors before it that had this number
    niceness: int = 0  # of its process
    all_envs: int = 1  # the number of all actors' environments
    role: int = 0  # the number of the policy, where several play
    terminal_observations: bool = False  # True if the last observations of terminated episodes are kept, too
    calls: tuple[Call, ...] = ()  # of the environments' methods, which it makes before their first reset
    exploration: bytes = b""  # a pickled process of its noise; none: white noise

    def env_seed(self) -> int:
        """Return the seed of the first environment; those of the others follow it, across all actors."""
        base = int(self._seeds()[0].generate_state(1)[0] >> 2)  # below 2^30, so that the sum is below 2^31, C's limit
        return base + self.first_env

    def make_policy(self, exported: ExportedPolicy, step_graph: LoadedGraph | None = None) -> Policy:
        """Return the policy, with a random stream for each environment, whichever actor steps it.

        step_graph: Runs in place of the exported one.
        """
        options: dict[str, Any] = {"first_stream": self.first_env, "streams": self.all_envs, "step_graph": step_graph}
        options["exploration"] = pickle.loads(self.exploration) if self.exploration else None  # noqa: S301 - ours
        return Policy(exported, self.action_seeds(), **options)

    def make_policies(
        self,
        exported: Mapping[str, ExportedPolicy],
        environments: Mapping[str, Environments],
        step_graph: LoadedGraph | None = None,
    ) -> list[Policy]:
        """Return the policy of each of the environments, with random streams of its own."""
        return [
            self._of_role(role, own.num_envs).make_policy(exported[name], step_graph)
            for role, (name, own) in enumerate(environments.items())
        ]

    def _of_role(self, role: int, num_envs: int) -> Startup:
        """Return the description of one of several policies, which has so many of the actor's rows."""
        first_env, all_envs = share_of(num_envs, self.num_envs, self.first_env, self.all_envs)
        return dataclasses.replace(self, role=role, num_envs=num_envs, first_env=first_env, all_envs=all_envs)

    def action_seeds(self) -> np.random.SeedSequence:
        """Return the seeds of the actions' noise."""
        return self._seeds()[1]

    def _seeds(self) -> list[np.random.SeedSequence]:
        of_role = [self.role] if self.role else []
        return np.random.SeedSequence([self.seed, self.incarnation, *of_role]).spawn(2)


def make_startups(env_counts: Sequence[int], settings: PoolSettings) -> list[Startup]:
    """Return the descriptions of actors that have these numbers of environments."""
    common = settings.recorded_keys, settings.autoreset_mode, settings.seed
    others: dict[str, Any] = {"niceness": NICENESS if settings.max_policy_lag else 0, "all_envs": sum(env_counts)}
    others["terminal_observations"] = settings.terminal_observations
    if settings.exploration is not None:
        process = find_exploration(settings.exploration)
        try:
            others["exploration"] = cloudpickle.dumps(process)
        except Exception as error:
            raise refusal("exploration", f"one that can be sent to actors ({one_line(error)})", process) from error
    return [
        Startup(count, *common, actor, first, **others)
        for actor, (count, first) in enumerate(zip(env_counts, first_envs(env_counts), strict=True))
    ]


class Position(NamedTuple):
    """The point in their episodes that the environments of an actor have reached."""

    observation: Leaves  # to act on next, `[b, ...]`
    started: Array | None  # bool `[b]`, True where an episode begins with it; None: nowhere


class Times(NamedTuple):
    """The times of an unroll, in seconds, and the exception of an environment that ended it early."""

    env: float
    acting: float
    error: Exception | None = None


class Stopped(Exception):
    """The error of an unroll that is given up because the pool is closing."""


def make_environments(factory: EnvFactory, startup: Startup) -> dict[str, Environments]:
    """Make and reset an actor's environments, by the policies' names. Raises EnvError if it fails."""
    seed = startup.env_seed()
    vector_env = dataclasses.replace(factory, first_env=startup.first_env).make(startup.num_envs, seed)
    names = ("autoreset_mode", "info_keys", "actor", "terminal_observations")
    options: dict[str, Any] = {name: getattr(startup, name) for name in names}
    try:
        environments = environments_of(vector_env, factory.name, **options)
        first = next(iter(environments.values()))
        left = [call for call in startup.calls if not is_called(first, call)]
        for each in environments.values():
            each.reset(seed)
        for call in left:
            first.call(call)
        return environments
    except BaseException:
        with contextlib.suppress(Exception):  # the first error counts
            vector_env.close()
        raise


def is_called(environments: Environments, call: Call) -> bool:
    """Call a method before the first reset; return False if it raises, perhaps because it needs one."""
    try:
        environments.call(call)
    except CallError:
        raise
    except EnvError:
        return False
    return True


Unroll = Generator[Any, None, T]
"""An unroll that yields the actions of each step just before its environments step, and returns its result."""


def steps(
    environments: Environments,
    policy: Policy,
    columns: ActorColumns,
    position: Position,
    *,
    version: int,
    first_env: int,
    stop: Sequence[int],
    block: int = 0,
    heartbeat: MutableSequence[int] | None = None,
    shared: bool = False,
) -> Unroll[tuple[Position, Times]]:
    """Step `b` environments `T` times and write every row of `columns`, `[T, b, ...]`.

    Yields the actions of each step before it. Returns the position to act on next, and the times. Raises Stopped if the
    first stop word isn't 0. If that of the block isn't 0, the unroll ends early, with the rows so far. So it does if
    the environments raise after a valid row; the times then hold the exception.

    environments: in the state in which the last unroll left them, at `position`. version: of the policy's weights.
    first_env: the number of the first environment; the others follow. stop: the arena's stop words. block: the number
    of the columns' block. heartbeat: its first number grows by 2 with each step, and is odd while the environments
    step. shared: several policies play, whose rows are kept together: an error ends the unroll early without a valid
    row, too. Such an error may be thrown into it where it waits.
    """
    observation, started = position
    _prepare(columns, version, first_env, started, policy.state_leaves)
    policy.renew_noise()
    noise_is_held = policy.holds_noise
    clock, choose, env_action, step = time.perf_counter, policy.step_leaves, policy.env_action, environments.step
    stop_block = 1 + block
    beat = heartbeat if heartbeat is not None else [0]
    beats = beat[0]
    in_env = acting = 0.0
    error: Exception | None = None
    # Each line of this loop runs once per env step; rare events are handled outside of it.
    for t, (seen, chosen, allowed, chosen_log_prob, received, ended, cut_off, counts) in enumerate(columns.rows()):
        if stop[0]:
            raise Stopped
        shown = environments.shown_mask
        if stop[stop_block]:
            _end_early(columns, t, policy, observation, shown)
            break
        for row, leaf in zip(seen, observation, strict=True):
            row[...] = leaf
        mask = environments.action_mask
        if allowed is not None:
            allowed[...] = shown
        before = clock()
        action, log_prob = choose(observation, mask, started)
        answer = env_action(action)
        acting += clock() - before
        for row, leaf in zip(chosen, action, strict=True):
            row[...] = leaf
        chosen_log_prob[...] = log_prob
        beat[0] = beats + 1
        try:
            yield answer
            before = clock()
            observation, reward, terminated, truncated, valid, final, episodes, started = step(answer)
        except Exception as raised:
            if not t or not (shared or columns.valid[:t].any()):
                raise
            error = raised
            _end_early(columns, t, policy, observation, shown)
            break
        in_env += clock() - before
        beats += 2
        beat[0] = beats
        received[...] = reward
        ended[...] = terminated
        cut_off[...] = truncated
        counts[...] = valid
        if started is not None:
            columns.start[t + 1] = started
        if final is not None:
            before = clock()
            if truncated.any():
                columns.truncation_value[t] = np.where(truncated, policy.value_leaves(final), 0.0)
            _keep_final(columns, t, truncated | terminated if environments.terminal_observations else truncated, final)
            if columns.final_action_mask is not None:
                columns.final_action_mask[truncated] = environments.final_mask[truncated]
            acting += clock() - before
        if episodes is not None:
            _record_episodes(columns, t, episodes)
        if noise_is_held:
            policy.renew_noise(terminated | truncated | ~valid)
    for last, leaf in zip(columns.observation, observation, strict=True):
        last[-1] = leaf
    if columns.action_mask is not None:
        columns.action_mask[-1] = environments.shown_mask
    return Position(observation, started), Times(in_env, acting, error)


def _run(unroll: Unroll[T]) -> T:
    """Run an unroll to its end and return its result."""
    while True:
        try:
            next(unroll)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _end_early(columns: ActorColumns, t: int, policy: Policy, observation: Leaves, mask: Array | None) -> None:
    """Fill the rows from `t` on as invalid, and truncate at the row before: its episode continues in other columns.

    The observation after the row before stays, with its mask, so that the learner can compute its value.
    """
    for rows, seen in zip(columns.observation, observation, strict=True):
        rows[t] = seen
        rows[t + 1 :] = 0
    columns.blank(t)
    if columns.action_mask is not None:
        columns.action_mask[t] = mask
    if t:
        last = t - 1
        unfinished = columns.valid[last] & ~columns.terminated[last] & ~columns.truncated[last]
        columns.truncated[last] |= unfinished
        columns.truncation_value[last, unfinished] = policy.value_leaves(observation)[unfinished]


def _keep_final(columns: ActorColumns, t: int, ended: Array, final: Leaves) -> None:
    """Keep the last observations of the episodes that row `t` ends, in place of those of earlier rows."""
    columns.final_row[ended] = t
    for kept, leaf in zip(columns.final_observation, final, strict=True):
        kept[ended] = leaf[ended]


def _prepare(columns: ActorColumns, version: int, first_env: int, started: Array | None, state: Leaves) -> None:
    """Write the values that are known before the first step, and those that most rows have."""
    columns.policy_version.fill(version)
    columns.final_row.fill(-1)
    columns.start.fill(False)
    if started is not None:
        columns.start[0] = started
    for index, kept in enumerate(columns.initial_state):
        kept[...] = state[index] if state else 0.0
    columns.env_index[...] = np.arange(first_env, first_env + len(columns.env_index))
    columns.truncation_value.fill(0.0)
    for array in (columns.episode_return, columns.episode_length, *columns.episode_info.values()):
        array.fill(np.nan)


def _record_episodes(columns: ActorColumns, t: int, episodes: Episodes) -> None:
    columns.episode_return[t, episodes.indices] = episodes.returns
    columns.episode_length[t, episodes.indices] = episodes.lengths
    for key, values in episodes.info.items():
        columns.episode_info[key][t, episodes.indices] = values


class _Role:
    """A policy in an actor: its environments, and its blocks, of which the unrolls fill columns.

    share: the policy's part of all columns, of which it is (agents, all agents of a game). opponents: the slots of
    frozen versions, with self-play.
    """

    def __init__(
        self,
        startup: Startup,
        environments: Environments,
        policy: Policy,
        blocks: Sequence[Block],
        share: tuple[int, int],
        opponents: Array,
    ) -> None:
        self.environments, self.policy, self._blocks, self._share = environments, policy, blocks, share
        (self._first_env,) = share_of(*share, startup.first_env)
        self._position = Position(environments.observation, np.ones(environments.num_envs, bool))
        self.has_rows = False  # valid ones, in the last unroll
        self._turns: TurnWriter | None = None
        vector_env = environments.vector_env
        if isinstance(vector_env, TurnGames):
            first_game = startup.first_env // len(vector_env.agents)
            self._turns = TurnWriter(vector_env, policy, startup.action_seeds(), first_game)
        if isinstance(vector_env, SelfPlayVectorEnv):
            vector_env.attach(functools.partial(_frozen_policy, policy.exported, opponents))

    def unroll(
        self, assignment: Assignment, stop: Sequence[int], heartbeat: MutableSequence[int] | None
    ) -> Unroll[Times]:
        """Fill this policy's columns of an assignment; see `steps`. Raises FloatingPointError for NaN in an output."""
        if isinstance(vector_env := self.environments.vector_env, SelfPlayVectorEnv):
            vector_env.set_opponents([Opponent(*each) for each in assignment.opponents])
        block, version = assignment.block, assignment.version
        columns = self._blocks[block].columns(*share_of(*self._share, assignment.start, assignment.stop))
        common: dict[str, Any] = {"version": version, "stop": stop, "block": block, "heartbeat": heartbeat}
        if self._turns is not None:
            _prepare(columns, version, self._first_env, None, ())
            if (seconds := self._turns.fill(columns, **common)) is None:
                raise Stopped
            times = Times(*seconds)
        else:
            places = self.environments, self.policy, columns, self._position
            common["shared"] = self._share[0] < self._share[1]
            self._position, times = yield from steps(*places, first_env=self._first_env, **common)
        self.has_rows = bool(columns.valid.any())
        if (missing := np.isnan(columns.behaviour_log_prob)).any():
            raise FloatingPointError(_describe_nan(columns, missing))
        for leaf in self.policy.state_leaves:
            if not np.isfinite(leaf).all():
                received = f"{leaf[~np.isfinite(leaf)][0]} in the state of its memory"
                raise FloatingPointError(f"the network must give finite numbers. Received: {received}")
        return times


class Actor:
    """Environments and policies that fill columns of an arena.

    policies: one for each of the environments, in their order.
    """

    def __init__(
        self,
        startup: Startup,
        environments: Mapping[str, Environments],
        policies: Sequence[Policy],
        parts: ArenaParts,
    ) -> None:
        self._environments = list(environments.values())
        if isinstance(self._environments[0].vector_env, TurnGames) and parts.steps:
            text = "In a game whose agents take turns, only actors act, unless it has `self_play`"
            raise ApiError(f"{text}. Received: acting='device'")
        rows = sum(own.num_envs for own in self._environments)
        self._roles = [
            _Role(startup, own, policy, blocks, (own.num_envs, rows), parts.opponents)
            for own, policy, *blocks in zip(self._environments, policies, *parts.blocks, strict=True)
        ]
        self.error: Exception | None = None  # of an environment that ended the last unroll early
        self._slots, self._stop = parts.slots, parts.stop_words.data
        self._ends = np.cumsum([policy.exported.weights.size for policy in policies])[:-1]
        self._heartbeat = parts.heartbeats[startup.actor].data
        self._heartbeat[0] += 2 - self._heartbeat[0] % 2  # even, and different from its predecessor's
        self._actor, self._version = startup.actor, -1
        self._calling, self._finished = 0.0, time.perf_counter()

    def call(self, calls: Iterable[Call]) -> None:
        """Call methods of the environments. Raises CallError for one that they don't have, EnvError if one raises."""
        started = time.perf_counter()
        for call in calls:
            self._environments[0].call(call)
        self._heartbeat[0] += 2
        seconds = time.perf_counter() - started
        self._calling += seconds
        self._finished += seconds

    def fill(self, assignment: Assignment) -> Done:
        """Fill the columns with one unroll.

        If an environment raises after a valid row, the rows before are kept, and the actor must end with `error`.
        Raises FloatingPointError where a network gives NaN.
        """
        started = time.perf_counter()
        if assignment.version != self._version:
            weights = read_weights(self._slots[assignment.slot], assignment.checksum)
            for role, own in zip(self._roles, np.split(weights, self._ends), strict=True):
                role.policy.set_weights(own)
            self._version = assignment.version
        if len(self._roles) == 1:
            times = _run(self._roles[0].unroll(assignment, self._stop, self._heartbeat))
        else:
            times = self._together(assignment)
        waiting, self._finished = started - self._finished, time.perf_counter()
        other = self._finished - started - times.env - times.acting
        calling, self._calling = self._calling, 0.0
        self.error, env = times.error, times.env + calling
        failed = self.error is not None
        return Done(
            assignment.batch, env, times.acting, other, waiting, self._actor, self._finished, failed, current_core()
        )

    def _together(self, assignment: Assignment) -> Times:
        """Run the unrolls of all policies in lock step: their environments step once all have given their actions."""
        vector_env = self._environments[0].vector_env
        assert isinstance(vector_env, AgentsVectorEnv)
        stop = list(self._stop)  # as all unrolls see it in one step
        first, *others = self._roles
        unrolls = [first.unroll(assignment, stop, self._heartbeat)]
        unrolls += [role.unroll(assignment, stop, None) for role in others]
        while True:
            stop[:] = self._stop
            actions, results, waiting = [], list[Times](), list[Unroll[Times]]()
            for unroll in unrolls:
                try:
                    actions.append(next(unroll))
                    waiting.append(unroll)
                except StopIteration as end:
                    results.append(end.value)
            if results:
                break
            vector_env.games.offer(actions)
        error = next((times.error for times in results if times.error is not None), None)
        if error is not None:  # of one policy's part: those that wait for their next step end with it
            for unroll in waiting:
                with contextlib.suppress(StopIteration):
                    unroll.throw(error)
            if not any(role.has_rows for role in self._roles):
                raise error
        return Times(sum(times.env for times in results), sum(times.acting for times in results), error)


def _frozen_policy(exported: ExportedPolicy, slots: Array, opponent: Opponent) -> Policy:
    """Return a policy with a copy of the weights in an opponent's slot."""
    policy = Policy(exported)
    policy.set_weights(read_weights(slots[opponent.slot], opponent.checksum))
    return policy


def _describe_nan(columns: ActorColumns, missing: Array) -> str:
    row, column = map(int, np.argwhere(missing)[0])
    seen = ", ".join(np.array2string(leaf[row, column], threshold=8, precision=4) for leaf in columns.observation)
    return f"the network must give finite numbers. Received: NaN for the observation {seen}"
