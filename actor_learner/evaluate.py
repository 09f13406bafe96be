"""Plays whole episodes with a trained policy and reports their returns; needs no TensorFlow for a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.actors.actor import is_called
from actor_learner.config.config import ENV_ARGUMENTS
from actor_learner.config.policies import check_policies, check_policy_of, rule_of
from actor_learner.config.pool_checks import check_info_keys
from actor_learner.config.references import (
    ask_again,
    callable_marks,
    callable_name,
    imported,
    marked_name,
    resolve_recorded,
    resolve_reference,
    same_env,
)
from actor_learner.config.settings import check_wrappers
from actor_learner.environments.agents import AgentsVectorEnv, TurnGames
from actor_learner.environments.calls import make_call
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError, closing
from actor_learner.environments.factory import EnvFactory, resolve_env
from actor_learner.environments.opponents import RANDOM, Opponent
from actor_learner.environments.self_play import Seats, SelfPlayVectorEnv
from actor_learner.environments.teams import PolicyOf, environments_of
from actor_learner.networks.saving import load_network
from actor_learner.policy.policy import Policy, has_policy, is_checkpoint, load_policy
from actor_learner.replay import minari_datasets
from actor_learner.runs.checkpoints import RUN_FILE, RunState, last_calls
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.recorded_config import RecordedConfig
from actor_learner.spaces.kinds import Box, to_json
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Leaf, choice_counts
from actor_learner.system.fields import check_choice, check_count, refusal, removed
from actor_learner.system.hub import is_on_hub, local_path
from actor_learner.system.policies import ONLY_POLICY, policy_folder
from actor_learner.system.types import Array

if TYPE_CHECKING:
    import keras

_Episode = tuple[float, float, dict[str, float]]  # return, length, entries of the last step's info
MAX_ENVS = 8  # stepped together by default
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Evaluation:
    """The finished episodes, ordered by environment, then by time.

    Attributes:
        returns: [episodes] float64, undiscounted sums of the raw rewards (float32).
        lengths: [episodes] int64, env steps.
        info: Name of an entry of the last step's info (the run's `info_keys`, else `is_success`) -> [episodes] float64,
            NaN for an episode without one.
        policies: where several policies play, the evaluation of each, whose episodes are those of its agents. The
            others then hold all of these, one policy after the other.
    """

    returns: Array
    lengths: Array
    info: Mapping[str, Array] = field(default_factory=dict)
    policies: Mapping[str, Evaluation] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Evaluation(mean={self.mean:.6g}, std={self.std:.6g}, episodes={len(self.returns)})"

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns (divided by their number)."""
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        """The mean number of env steps."""
        return float(self.lengths.mean())

    def confidence_interval(self, level: float = 0.95, key: str | None = None) -> tuple[float, float]:
        """Return the low and high end of an interval for the mean return; NaN for both after a single episode.

        The ends are percentiles of the means of 10,000 bootstrap resamples with a fixed seed, as in rliable
        (arXiv:2108.13264). The interval stays within the range of the returns, and is too narrow for fewer than ten
        episodes.

        key: a name of `info`, for the mean of that entry over the episodes that have it.

        Raises ValueError for a level that isn't between 0 and 1, or an unknown name.
        """
        if not 0 < level < 1:
            raise ValueError(f"`level` must be between 0 and 1, both excluded. Received: level={level!r}")
        values = self.returns if key is None else self.info[check_choice("key", key, self.info)]
        values = values[~np.isnan(values)]
        count = len(values)
        if count < 2:
            return np.nan, np.nan
        rng, rows = np.random.default_rng(0), 100  # at a time, for the memory that many episodes would take
        means = [values[rng.integers(count, size=(rows, count))].mean(axis=1) for _ in range(_RESAMPLES // rows)]
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


def evaluate(
    run_dir_or_network: str | os.PathLike[str] | keras.Model | Policy,
    env: str | Callable[..., Any] | EnvFactory | None = None,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    num_envs: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vectorization: str | None = None,
    autoreset_mode: str | None = None,
    wrappers: Sequence[str | Callable[..., Any]] | None = None,
    wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    max_episode_steps: int | None = None,
    record: str | None = None,
    opponent: Any = None,
    seat: int | None = None,
    policies: Mapping[str, Any] | None = None,
    policy_of: Mapping[str, str] | Callable[[Any], str] | None = None,
    calls: bool | Sequence[Sequence[Any]] | None = None,
    info_keys: Sequence[str] | None = None,
) -> Evaluation:
    """Plays `episodes` episodes in this process.

    Every environment plays a fixed number of episodes, because the first `episodes` that end would count short episodes
    too often.

    Args:
        run_dir_or_network: A run directory, "hf://owner/name" of the Hugging Face Hub, a checkpoint ("RUN@best",
            "RUN@latest", "RUN@114" after so many updates, or its folder), a Keras model that keeps the network
            contract, or a `Policy`.
        env: As for `train`; by default the environment of the run directory.
        episodes: Number of episodes.
        seed: Seeds environment k with `seed` + k, whose later episodes go on from there, and, with
            `deterministic=False`, the actions. The noise of a `Policy` that is passed in is afterwards what it was
            before.
        deterministic: Takes the most probable action; False samples.
        num_envs: Number of environments that are stepped together; by default 8, or `episodes` if that is less. A
            factory of vector environments may build another number, or the number of the run's actors.
        env_kwargs: Keyword arguments of the environment; by default the run's, if the environment is the run's.
        vectorization: As for `train`; by default the run's.
        autoreset_mode: As for `train`; by default the run's.
        wrappers: As for `train`; by default the run's, also around another environment; `()` for none.
        wrapper_kwargs: Keyword arguments of the wrappers, by class name; other classes keep the run's, if the wrappers
            are the run's.
        max_episode_steps: Env steps after which an episode is cut off; None: the environment ends its episodes. Needs
            single environments.
        opponent: For games of several agents: the player of the other seats. A run directory, "hf://owner/name" or a
            `Policy`, which samples its actions; "random"; or a callable (observation, mask, generator) -> action, or
            its "module:function". `info["outcome"]` then has the outcomes, from 0 to 1. None: the random player if the
            run was trained by self-play, or the agents take turns.
        seat: The policy's seat in a game, counted from 0; None: all seats in turn.
        policies: For a run with several policies: others in place of its own, by name. A run directory (whose policy of
            that name plays), another folder with a policy or a network, a Keras model, or a `Policy`.
        policy_of: For a run with several policies: which one plays which agent; by default the run's.
        record: "minari:NAME": the name of a new Minari dataset of these episodes. Needs single environments, of which
            one is stepped. None: nothing is recorded.
        calls: Repeats the calls of the environments' methods (`actors.call`) that the run ended with before the first
            episode; None: if environment and `env_kwargs` are the run's. Or other ones, as `actors.calls` returns them.
        info_keys: Numeric entries of the last step's `info` to report; by default the run's, else `is_success`.

    Raises:
        ValueError: The folder holds no run, its environment must be passed again, or the environment's spaces differ
            from the policy's, or the dataset is there already.
        ImportError: `record` needs the extra `minari`.
    """
    check_count("episodes", episodes)
    check_count("num_envs", num_envs, optional=True)
    check_count("seed", seed, 0)
    check_count("max_episode_steps", max_episode_steps, optional=True)
    num_envs = min(num_envs or (MAX_ENVS if record is None else 1), episodes)
    if record is not None and num_envs > 1:
        raise refusal("num_envs", "1 where episodes are recorded", num_envs)
    config = RecordedConfig()
    repeated = calls if isinstance(calls, Sequence) else ()
    if isinstance(run_dir_or_network, (str, os.PathLike)):
        run = open_run(run_dir_or_network)
        run_dir_or_network, config = run.weights, read_config(run.path)
        if calls is True or (calls is None and is_runs_own(config, env, env_kwargs)):
            repeated = last_calls(run.checkpoints) if run.checkpoint is None else RunState.read(run.checkpoint).calls
    wrapping = {"vectorization": vectorization, "wrappers": wrappers, "wrapper_kwargs": wrapper_kwargs}
    factory = resolve_env(**run_environment(config, env=env, env_kwargs=env_kwargs, **wrapping), check_pickle=False)
    factory = dataclasses.replace(factory, known_count=config.envs_per_actor or factory.known_count)
    sitting = None
    if opponent is not None or seat is not None or factory.seats is not None or config.get("self_play") is not None:
        sitting = Sitting.of(RANDOM_PLAYER if opponent is None else opponent)
        seats = sitting.seats(config, seat)
        if (own := factory.seats) is not None:
            seats = dataclasses.replace(seats, outcome=own.outcome or seats.outcome)
        factory = dataclasses.replace(factory, seats=seats)
    if (rule := _policies_of(config, policies, policy_of)) is not None:
        if sitting is not None:
            raise refusal("opponent", "None for a run with several policies; `policies` names others", opponent)
        factory = dataclasses.replace(factory, policy_of=rule)
    if max_episode_steps is not None:
        factory = factory.limited(max_episode_steps)
    with contextlib.ExitStack() as stack:
        if record is not None:
            recorder = stack.enter_context(minari_datasets.recording(record))
            factory = factory.wrapped(recorder, "record", record)
        vector_env = stack.enter_context(closing(factory.make_about(num_envs, seed), f"env `{factory.name}`"))
        if isinstance(vector_env, TurnGames):  # trained with all seats
            sitting = Sitting.of(RANDOM_PLAYER)
            factory = dataclasses.replace(factory, seats=sitting.seats(config, None))
            vector_env = stack.enter_context(closing(factory.make_about(num_envs, seed), f"env `{factory.name}`"))
        mode = autoreset_mode or config.get("autoreset_mode")
        reported = _info_keys(config) if info_keys is None else check_info_keys(info_keys)
        keys = (*reported, *([] if sitting is None else ["outcome"]))
        environments = environments_of(vector_env, factory.name, autoreset_mode=mode, info_keys=keys)
        if sitting is not None:
            sitting.sit_down(environments[ONLY_POLICY])
        first = next(iter(environments.values()))
        calls_to_make = [make_call(name, args, optional=True) for name, args in repeated]
        if left := [call for call in calls_to_make if not is_called(first, call)]:
            first.reset(seed)
            for call in left:
                first.call(call)
        sources = dict.fromkeys(environments, run_dir_or_network) | dict(policies or {})
        players = {
            name: _Player(_policy_of(sources[name], name, each), each, deterministic)
            for name, each in environments.items()
        }
        found = _evaluations(players, episodes, seed)
        for each in environments.values():
            each.warn_of_missing_info()
    return found[ONLY_POLICY] if ONLY_POLICY in found else _joined(found)


def _joined(found: Mapping[str, Evaluation]) -> Evaluation:
    """Return the evaluation of several policies, each of so many episodes of its agents."""
    each = list(found.values())
    names = dict.fromkeys(name for own in each for name in own.info)
    info = {
        name: np.concatenate([own.info.get(name, np.full(len(own.returns), np.nan)) for own in each]) for name in names
    }
    returns, lengths = (np.concatenate([getattr(own, name) for own in each]) for name in ("returns", "lengths"))
    return Evaluation(returns, lengths, info, found)


def _policies_of(config: Mapping[str, Any], policies: Mapping[str, Any] | None, policy_of: Any) -> PolicyOf | None:
    """Return which policy of a run plays which agent; None for a run of one policy.

    Raises ValueError for `policies` that the run hasn't.
    """
    own = check_policies("policies", imported(config.get("policies"), "policies"))
    if policies and (own is None or set(policies) - set(own)):
        expected = "policies of the run" if own is None else f"policies of the run, {list(own)}"
        raise refusal("policies", f"a dict by the names of {expected}", list(policies))
    if own is None:
        return None
    recorded = config.get("policy_of")
    if policy_of is None and (marks := callable_marks(recorded)):
        raise ValueError(f"`policy_of` must be given, because the run's was the callable {marks[0]}. Received: None")
    return PolicyOf(tuple(own), rule_of(own, check_policy_of("policy_of", policy_of or recorded)))


MAX_IDLE_STEPS = 10_000
"""Steps in which no agent of a policy has a part in a game, after which an evaluation ends: it would wait forever."""

RANDOM_PLAYER = "random"


@dataclass(frozen=True)
class Sitting:
    """A player that takes the seats of opponents: a policy, a callable, or, without both, the random player."""

    policy: Policy | None = None
    player: Callable[..., Any] | None = None

    @classmethod
    def of(cls, player: Any) -> Sitting:
        """Return the player that an argument names. Raises ValueError if it names none."""
        if isinstance(player, Policy):
            return cls(policy=player)
        if callable(player):
            return cls(player=player)
        if player == RANDOM_PLAYER:
            return cls()
        if not isinstance(player, str | os.PathLike):
            raise refusal("opponent", "a run, a Policy, 'random', or a callable (or its module:function)", player)
        is_name = isinstance(player, str) and ":" in player and not is_on_hub(player) and not os.path.exists(player)
        if is_name:
            found = resolve_reference(str(player), "opponent")
            if not callable(found):
                raise refusal("opponent", "the module:function of a player", player)
            return cls(player=found)
        return cls(policy=load_policy(open_run(player).weights))

    @property
    def number(self) -> int:
        """The number by which a table names this player."""
        return 0 if self.policy is not None else RANDOM if self.player is None else RANDOM - 1

    @property
    def players(self) -> dict[str, Callable[..., Any]]:
        return {} if self.player is None else {callable_name(self.player): self.player}

    def seats(self, config: Mapping[str, Any], seat: int | None) -> Seats:
        """Return how the seats of a game are taken, with the run's own way to tell outcomes."""
        own = config.get("self_play")
        outcome = own.get("outcome") if isinstance(own, Mapping) else None
        found = None if outcome is None else resolve_recorded(str(marked_name(outcome) or outcome), "outcome")
        return Seats(self.players, check_count("seat", seat, 0, optional=True), take_turns=True, outcome=found)

    def check(self, environments: Environments) -> None:
        """Raise ValueError if the policy has other spaces than the environments."""
        if self.policy is not None:
            _Player(self.policy, environments, deterministic=False)

    def sit_down(self, environments: Environments) -> None:
        """Play against this player from the next reset on. Raises ValueError as `check` does."""
        self.check(environments)
        vector_env, policy = environments.vector_env, self.policy
        assert isinstance(vector_env, SelfPlayVectorEnv)
        if policy is not None:
            vector_env.attach(lambda _: policy)
        vector_env.set_opponents([Opponent(self.number)])


def check_playable(policy: Policy, factory: EnvFactory, autoreset_mode: str | None = None) -> None:
    """Make an environment and close it. Raises ValueError if it has other spaces than the policy."""
    with closing(factory.make_about(1, 0), f"env `{factory.name}`") as vector_env:
        environments = Environments(vector_env, autoreset_mode=autoreset_mode, name=factory.name)
        _Player(policy, environments, deterministic=True)


def is_runs_own(config: Mapping[str, Any], env: Any, env_kwargs: Any) -> bool:
    """Return whether arguments mean the environment of a run, with its own keyword arguments."""
    own = config.get("env")
    return env_kwargs is None and (env is None or isinstance(own, Mapping) or same_env(env, own))


def run_environment(config: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    """Return the arguments of `resolve_env`: those that are given and aren't None, else the run's.

    Functions that config.json names are imported. Raises ValueError for one that can't be, and for what isn't given and
    of which config.json holds only a name.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    env, own = given.get("env"), config.get("env")
    by_name_only = isinstance(own, Mapping)  # a callable
    if env is None and (own is None or by_name_only):
        reason = f"the run's was the callable {own.get('callable')}" if isinstance(own, Mapping) else "there is no run"
        shell = "; at a shell, --env module:factory" if own else ""
        raise ValueError(f"`env` must be given, because {reason}{shell}. Received: env=None")
    unused = {"wrapper_kwargs"} if "wrappers" in given else set()
    if not is_runs_own(config, env, None):
        unused.add("env_kwargs")
    taken = {name: config[name] for name in ENV_ARGUMENTS if name in config and name not in {*given, *unused}}
    taken = {name: value for name, value in taken.items() if not removed(name, value)}  # ways to step, not other games
    more, own_kwargs = given.get("wrapper_kwargs"), config.get("wrapper_kwargs")
    if "wrapper_kwargs" not in unused and isinstance(more, Mapping) and isinstance(own_kwargs, Mapping):
        taken["wrapper_kwargs"] = {name: value for name, value in own_kwargs.items() if name not in more}
    if missing := {name: marks for name, value in taken.items() if (marks := callable_marks(value))}:
        name = next(iter(missing))
        raise ValueError(f"`{name}` must be given: the run's config.json {ask_again(missing)}. Received: {name}=None")
    found = {**{name: imported(value, name) for name, value in taken.items()}, **given}
    if "wrapper_kwargs" in taken and "wrapper_kwargs" in given:
        found["wrapper_kwargs"] = {**imported(taken["wrapper_kwargs"], "wrapper_kwargs"), **given["wrapper_kwargs"]}
    return {**found, "wrappers": check_wrappers("wrappers", found.get("wrappers"))}


def _info_keys(config: Mapping[str, Any]) -> Sequence[str]:
    keys = config.get("info_keys")
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ("is_success",)


def _policy(source: Any, environments: Environments) -> Policy:
    if isinstance(source, Policy):
        return source
    if isinstance(source, (str, os.PathLike)):
        folder = local_path(source)
        if is_checkpoint(folder) or not (folder / RUN_FILE).is_file():
            return load_policy(folder)
        source = load_network(folder)  # of a run that hasn't ended
    action_space, observation_space = environments.action_space, environments.observation_space
    size = environments.num_envs
    return Policy.from_network(source, action_space, batch_size=size, observation_space=observation_space)


def _policy_of(source: Any, name: str, environments: Environments) -> Policy:
    """Return the only policy, or that of this name of a run, or what the source holds itself."""
    if name == ONLY_POLICY:
        return _policy(source, environments)
    if isinstance(source, Policy):  # which may take other seats, too: memories and random numbers are each seat's own
        return source.copied()
    if isinstance(source, (str, os.PathLike)):
        folder = policy_folder(path := local_path(source), name)
        source = folder if folder.is_dir() else path
        if not has_policy(source):
            source = load_network(source)  # of a checkpoint
    return _policy(source, environments)


class _Player:
    """Passes an environment's observation leaves to a policy, which may need fewer of them in another order.

    Raises ValueError if the environment has other spaces than the policy.
    """

    def __init__(self, policy: Policy, environments: Environments, deterministic: bool) -> None:
        self.policy, self.environments, self._deterministic = policy, environments, deterministic
        ours = policy.spaces.gymnasium.observation.leaves
        places = _places(ours, environments.spaces)
        same_actions = _outline(policy.exported.action_space) == _outline(to_json(environments.action_space))
        if places is None or not same_actions:
            parts = ", ".join(f"{leaf.label} of {_describe(leaf)}" for leaf in ours).removeprefix("observation of ")
            raise ValueError(
                f"The policy was trained for observations of {parts} and actions of {policy.action_space}; `env` has "
                f"other spaces. Received: env={environments.name!r} with {environments.observation_space} and "
                f"{environments.action_space}"
            )
        theirs = environments.spaces.observation.leaves
        for leaf, place in zip(ours, places, strict=True):
            if _is_of_another_kind(leaf.space, theirs[place].space):
                warnings.warn(
                    f"The policy was trained on {leaf.label} {leaf.space}: what it does elsewhere may mean nothing. "
                    f"Received: env={environments.name!r} with {theirs[place].space}",
                    stacklevel=4,
                )
        for mine, bounded in zip(policy.spaces.gymnasium.action.leaves, environments.spaces.action.leaves, strict=True):
            if _is_narrower(bounded.space, mine.space):
                raise ValueError(
                    "The policy's actions may leave the bounds of `env`; gymnasium.wrappers.ClipAction or "
                    f"RescaleAction keeps them inside. Received: env={environments.name!r} with {bounded.space}, "
                    f"where the policy's space is {mine.space}"
                )
        self._inputs = [(place, leaf.dtype) for place, leaf in zip(places, ours, strict=True)]
        self._start: Array | None = None  # where episodes start; None: nowhere
        self._idle = 0  # steps without a part in a game since the last one

    def begin(self, seed: int) -> None:
        """Reset the environments."""
        policy, environments = self.policy, self.environments
        environments.reset(seed)
        if environments.action_mask is None:
            sources = "`info['action_mask']`, a method `action_masks()` or a Dict observation's `action_mask`"
            policy.warn_without_mask(f"env `{environments.name}` must give them by {sources}")
        policy.renew_noise()

    def choose(self) -> Any:
        """Return the actions for the environments' newest observation."""
        policy, mask, observation = self.policy, self.environments.action_mask, self.environments.observation
        leaves = tuple(observation[place].astype(dtype, copy=False) for place, dtype in self._inputs)
        if self._deterministic:
            return policy.env_action(policy.mode_leaves(leaves, mask, self._start))
        return policy.env_action(policy.step_leaves(leaves, mask, self._start)[0])

    def step(self, actions: Any) -> Iterator[tuple[int, _Episode]]:
        """Step the environments; yield the episodes that end, each with the number of its environment."""
        policy, transition = self.policy, self.environments.step(actions)
        self._start = transition.started
        self._idle = 0 if transition.valid.any() else self._idle + 1
        if self._idle >= MAX_IDLE_STEPS:
            name = self.environments.name
            raise EnvError(f"The agents of `{name}` never have a part in a game. Received: {self._idle} steps without")
        if policy.holds_noise:  # as in an actor's unroll
            policy.renew_noise(transition.terminated | transition.truncated | ~transition.valid)
        if transition.episodes is not None:
            indices, returns, lengths, info = transition.episodes
            for row, index in enumerate(indices.tolist()):
                entries = {name: float(values[row]) for name, values in info.items()}
                yield index, (float(returns[row]), float(lengths[row]), entries)


def _places(ours: Sequence[Leaf], spaces: Spaces) -> list[int] | None:
    """Return the place of each of the policy's leaves among the environment's; None if they don't match.

    The environment may have further entries of Dicts: masks, and what only the value saw.
    """
    theirs = spaces.observation.leaves
    places = {leaf.label: place for place, leaf in enumerate(theirs)}
    left_over = places.keys() - {leaf.label for leaf in ours}
    entries = {
        leaf.label for leaf in theirs if all(isinstance(key, str) or leaf.path[0] == MASK_KEY for key in leaf.path)
    }
    if left_over - entries or not all(
        leaf.label in places and _fits(leaf, theirs[places[leaf.label]]) for leaf in ours
    ):
        return None
    return [places[leaf.label] for leaf in ours]


def _fits(ours: Leaf, theirs: Leaf) -> bool:
    """Return whether a policy can take an environment's leaf: same shape, castable dtype, as many discrete values.

    A policy whose space was derived from the network's inputs takes any number of discrete values.
    """
    counts = choice_counts(ours.space)
    same_counts = not counts or counts == choice_counts(theirs.space)
    return ours.shape == theirs.shape and same_counts and np.can_cast(theirs.dtype, ours.dtype, "same_kind")


def _is_narrower(space: Any, other: Any) -> bool:
    """Return whether a Box has bounds inside those of the other one, but for float32's rounding."""
    if not isinstance(space, Box):
        return False
    low, high, other_low, other_high = (np.float32(bound) for bound in (space.low, space.high, other.low, other.high))
    return bool((low > other_low).any() or (high < other_high).any())


def _is_of_another_kind(space: Any, other: Any) -> bool:
    """Return whether two Boxes differ in dtype or in bounds, where both have bounds of their own."""
    if not (isinstance(space, Box) and isinstance(other, Box) and _is_bounded(space) and _is_bounded(other)):
        return False
    pairs = ((space.low, other.low), (space.high, other.high))
    same_bounds = all(np.array_equal(np.float32(mine), np.float32(theirs)) for mine, theirs in pairs)
    return space.dtype != other.dtype or not same_bounds


def _is_bounded(space: Any) -> bool:
    """Return False for bounds that are infinite, or the limits of a wide integer, as of a network's inputs."""
    limits = np.iinfo(space.dtype) if space.dtype.kind in "iu" and space.dtype.itemsize > 1 else None
    least, most = (limits.min, limits.max) if limits else (-np.inf, np.inf)
    return bool((space.low != least).any() or (space.high != most).any())


def _describe(leaf: Leaf) -> str:
    return " ".join(str(leaf.space).split()) if choice_counts(leaf.space) else f"shape {leaf.shape} in {leaf.dtype}"


def _outline(description: Any) -> Any:
    """Return a described space without bounds and dtypes, which may differ between policy and environment."""
    if isinstance(description, dict):
        return {key: _outline(part) for key, part in description.items() if key not in ("low", "high", "dtype")}
    return [_outline(part) for part in description] if isinstance(description, list) else description


def _evaluations(players_of: Mapping[str, _Player], episodes: int, seed: int) -> dict[str, Evaluation]:
    """Play until each policy has its episodes, each of its environments a fixed number."""
    players = list(players_of.values())
    counts = [player.environments.num_envs for player in players]
    quotas = [[episodes // rows + (index < episodes % rows) for index in range(rows)] for rows in counts]
    played: list[list[list[_Episode]]] = [[[] for _ in range(rows)] for rows in counts]
    with contextlib.ExitStack() as stack:
        for role, player in enumerate(players):  # each with random numbers of its own
            stack.enter_context(player.policy.reseeded(np.random.SeedSequence([seed, role]) if role else seed))
            player.begin(seed)
        while any(list(map(len, own)) != quota for own, quota in zip(played, quotas, strict=True)):
            actions = [player.choose() for player in players]
            if isinstance(vector_env := players[0].environments.vector_env, AgentsVectorEnv):
                vector_env.games.offer(actions)
            for player, action, own, quota in zip(players, actions, played, quotas, strict=True):
                for index, episode in player.step(action):
                    if len(own[index]) < quota[index]:
                        own[index].append(episode)
    evaluations = [_evaluation([episode for row in own for episode in row]) for own in played]
    return dict(zip(players_of, evaluations, strict=True))


def _evaluation(played: Sequence[_Episode]) -> Evaluation:
    returns, lengths, infos = zip(*played, strict=True)
    names = dict.fromkeys(name for info in infos for name in info)
    info = {name: np.array([info.get(name, np.nan) for info in infos], dtype=np.float64) for name in names}
    return Evaluation(np.array(returns, dtype=np.float64), np.array(lengths, dtype=np.int64), info)
