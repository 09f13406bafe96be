"""Games of several agents in PettingZoo's interfaces, which are told by their attributes: nothing here imports it.

A Parallel game asks all agents at once, a turn-based one (AEC) one after the other. `Turns` and `Rounds` give both the
same four members: `start`, `deciding`, `play` and `ends`.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector.utils import concatenate, create_empty_array

from actor_learner.environments.errors import EnvError, short
from actor_learner.environments.seeding import seed_game
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.system.types import Array

Agent = Hashable

_CHECKING_WRAPPERS = {"AssertOutOfBoundsWrapper", "OrderEnforcingWrapper", "TerminateIllegalWrapper"}
"""PettingZoo's wrappers that check actions and the order of calls: half of a board game's time. Here masks are checked,
and the order is ours."""
_MASKED = {"observation", MASK_KEY}


class Turn(NamedTuple):
    """A decision that an agent has to make."""

    observation: Any
    mask: Array | None  # bool, True for the actions that are allowed
    reward: float  # since the agent's last decision


class End(NamedTuple):
    """The end of an agent's episode."""

    observation: Any  # the last one
    reward: float  # since the agent's last decision
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    mask: Any  # of the last observation; None without one


def is_game(env: Any) -> bool:
    """Return whether an object has PettingZoo's interfaces, which are those of no single environment."""
    return hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None))


def is_turn_based(game: Any) -> bool:
    """Return whether a game is of the AEC interface. An attribute such as `agent_selection` may need a reset first."""
    return callable(getattr(game, "last", None))


def split(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Take the mask out of PettingZoo's {"observation", "action_mask"}, or out of the info; None without one.

    With further entries, the observation stays whole.
    """
    if isinstance(observation, Mapping) and MASK_KEY in observation:
        return observation["observation"] if observation.keys() == _MASKED else observation, observation[MASK_KEY]
    return observation, info.get(MASK_KEY)


def close_game(game: Any) -> None:
    """Close a game, if it can be closed."""
    if (close := getattr(game, "close", None)) is not None:
        close()


def agents_of(game: Any, name: str) -> list[Agent]:
    """Return the agents that a game may have. Raises EnvError for a game without any, or with an unusable list."""
    agents = list(game.possible_agents or ())
    if not agents or len(set(agents)) < len(agents):
        raise EnvError(f"`{name}` must name its agents in `possible_agents`. Received: possible_agents={agents}")
    return agents


def require_agents(agents: Collection[Agent], name: str) -> None:
    """Raise EnvError where a game that was just reset has no agents."""
    if not agents:
        raise EnvError(f"`{name}` must have an agent that decides after `reset`. Received: no agents")


def require_known(agents: Iterable[Agent], known: Collection[Agent], name: str) -> None:
    """Raise EnvError for an agent that isn't among those that a game names."""
    if unknown := [agent for agent in agents if agent not in known]:
        expected = f"`{name}` must name all agents in `possible_agents`, {list(known)}"
        raise EnvError(f"{expected}. Received: agent={min(unknown, key=str)!r}")


def require_observed(agents: Iterable[Agent], observations: Collection[Agent], name: str) -> None:
    """Raise EnvError where an agent of a game gets no observation: it would act on an older one."""
    if missing := [agent for agent in agents if agent not in observations]:
        expected = f"`{name}` must give an observation to each of its `agents`"
        raise EnvError(f"{expected}. Received: none of {missing[0]!r}")


def ends_of(agent: Agent, game: Any, name: str, rewards: Any, terminated: Any, truncated: Any) -> tuple[bool, bool]:
    """Return whether a step of a Parallel game terminated an agent that acted, and whether it cut it off.

    Raises EnvError where a dict of results lacks the agent, and where the agent left the game without either flag.
    """
    for what, found in (("rewards", rewards), ("terminations", terminated), ("truncations", truncated)):
        try:
            found[agent]  # not `in`: a defaultdict has it
        except KeyError:
            expected = f"`step` of `{name}` must return {what} of all agents that acted"
            raise EnvError(f"{expected}. Received: none of {agent!r}") from None
    ended, cut_off = bool(terminated[agent]), bool(truncated[agent])
    if not (ended or cut_off or agent in game.agents):
        expected = (
            f"`{name}` must say how an agent that leaves `agents` ended, by `terminations` or `truncations`; "
            "one that only waits for a step stays in `agents`"
        )
        raise EnvError(f"{expected}. Received: neither for {agent!r}")
    return ended, cut_off


def batch_of(space: Any, observations: Sequence[Any], name: str) -> Any:
    """Return observations of a space as a batch. Raises EnvError for one of another shape. name: whose they are."""
    out: Any = create_empty_array(space, len(observations))
    try:
        return concatenate(space, observations, out)
    except (ValueError, TypeError, KeyError) as error:
        text = f"The observations of `{name}` must be of {space}: {error}"
        raise EnvError(f"{text}. Received: {short(observations[0])}") from error


def shared_spaces(game: Any, name: str, agents: Sequence[Agent] | None = None) -> tuple[Any, Any]:
    """Return the spaces of observations, without masks, and of actions, which the agents have in common.

    agents: those of one policy; None: all. Raises EnvError, naming two agents, where they haven't.
    """
    first, *others = agents_of(game, name) if agents is None else agents
    found = game.observation_space(first), game.action_space(first)
    for agent in others:
        for what, space, other in zip(
            ("observation", "action"), found, (game.observation_space(agent), game.action_space(agent)), strict=True
        ):
            if space != other:
                raise EnvError(
                    f"One policy needs agents with the same spaces, but those of `{name}` differ in their {what}s: "
                    f"give each kind its own (`policies`), or make them equal by SuperSuit's pad_observations_v0 and "
                    f"pad_action_space_v0. "
                    f"Received: {first!r} with {space}, {agent!r} with {other}"
                )
    observation, action = found
    if isinstance(observation, Dict) and MASK_KEY in observation.spaces and isinstance(action, Box):
        raise EnvError(f"`{MASK_KEY}` of `{name}` needs a space of actions with a choice. Received: {action}")
    if isinstance(observation, Dict) and observation.spaces.keys() == _MASKED:
        observation = observation["observation"]
    return observation, action


def mask_space(game: Any, agent: Agent) -> Any:
    """Return the space of an agent's masks, if its observations declare them."""
    space = game.observation_space(agent)
    return space.spaces.get(MASK_KEY) if isinstance(space, Dict) else None


def state_of(game: Any, name: str, space: Space[Any] | None = None) -> Any:
    """Return the state of a whole game. Raises EnvError without one, and for another shape than the space's."""
    try:
        state = game.state()
    except (AttributeError, NotImplementedError) as error:
        expected = f"`centralized_value` needs the state of `{name}`, an array that the game's `state()` returns"
        raise EnvError(f"{expected}. Received: {type(error).__name__}: {error}") from error
    if space is not None and space.shape is not None and np.shape(state) != space.shape:
        expected = f"`state()` of `{name}` must always return the shape {space.shape}; pad it"
        raise EnvError(f"{expected}. Received: shape={np.shape(state)}")
    return state


def state_space_of(game: Any, name: str) -> Space[Any]:
    """Return a game's `state_space`, or else a space of its first state, for which the game is reset."""
    if (space := getattr(game, "state_space", None)) is not None:
        return space  # type: ignore[no-any-return]
    game.reset()
    state = np.asarray(state_of(game, name))
    return Box(0, 255, state.shape, np.uint8) if state.dtype == np.uint8 else Box(-np.inf, np.inf, state.shape)


def of_supersuit(vector_env: Any) -> list[Any]:
    """Return the games in SuperSuit's `concat_vec_envs_v1` or `pettingzoo_env_to_vec_env_v1`.

    Of its classes only the games are used: they forget which agents are dead, and `black_death_v3` turns truncations
    into terminations. Raises EnvError for a vector environment of anything but games in this process.
    """
    parts = getattr(vector_env, "vec_envs", [vector_env])
    if not all(hasattr(part, "par_env") for part in parts):
        expected = "games of PettingZoo in SuperSuit's own vector environment (base_class='gymnasium')"
        kind = type(vector_env).__qualname__
        raise EnvError(f"An actor needs {expected}, in one process (num_cpus=0). Received: {kind}")
    return [_without_black_death(part.par_env) for part in parts]


def _without_black_death(game: Any) -> Any:
    """Take SuperSuit's black_death_v3 out of a game's wrappers."""
    for name in ("env", "aec_env"):
        if (inner := getattr(game, "__dict__", {}).get(name)) is not None:
            setattr(game, name, _without_black_death(inner))
    return game.env if type(game).__name__ == "black_death_par" else game


def without_checks(game: Any) -> Any:
    """Return the game inside PettingZoo's outermost checking wrappers."""
    while type(game).__name__ in _CHECKING_WRAPPERS and type(game).__module__.startswith("pettingzoo."):
        game = game.env
    return game


class Course(abc.ABC):
    """A game that stops at each decision.

    Attributes:
        agents: All agents that the game may have.
        deciding: The agents that decide now; none: the game is over.
        ends: The agents whose episodes have ended since the last call of `play` or `start`.
        returns: The sum of the rewards so far of each agent that has had a part in the game, of ended episodes too.
    """

    agents: list[Agent]
    deciding: dict[Agent, Turn]
    ends: dict[Agent, End]
    returns: dict[Agent, float]

    def __init__(self, game: Any, name: str) -> None:
        self._game, self._name = game, name
        self.agents = agents_of(game, name)
        self.deciding, self.ends, self.returns = {}, {}, {}

    @abc.abstractmethod
    def start(self, seed: int | None = None) -> None:
        """Begin, and go on to the first decision."""

    @abc.abstractmethod
    def play(self, actions: Mapping[Agent, Any]) -> None:
        """Take the actions of all agents that decide, and go on to the next decision."""

    def _mask(self, agent: Agent, mask: Any) -> Array | None:
        """Return the mask of an agent that decides. Raises EnvError for one that allows nothing."""
        if mask is None:
            return None
        found = np.asarray(mask, bool)
        if not found.any():
            expected = f"`{MASK_KEY}` of `{self._name}` must allow an action to an agent that decides"
            raise EnvError(f"{expected}. Received: none allowed for {agent!r}")
        return found


def course_of(game: Any, name: str) -> Course:
    """Return a game as one that stops at each decision. name: for messages."""
    return Turns(without_checks(game), name) if is_turn_based(game) else Rounds(without_checks(game), name)


class Turns(Course):
    """A turn-based game, in which one agent decides at a time.

    `last()` is the only source of rewards: it has those since the agent's last decision, whichever agent moved. (The
    step of a dead agent clears `rewards`, and with it the loser's.)
    """

    def start(self, seed: int | None = None) -> None:
        seed_game(self._game, seed)
        self._game.reset(seed=seed)
        self.returns = {}
        self._go_on()
        require_agents(self.deciding, self._name)

    def play(self, actions: Mapping[Agent, Any]) -> None:
        (action,) = actions.values()
        self._game.step(action)
        self._go_on()

    def _go_on(self) -> None:
        """Step dead agents until one that lives has to decide."""
        game = self._game
        self.ends, self.deciding = {}, {}
        while game.agents:
            agent = game.agent_selection
            require_known([agent], self.agents, self._name)
            observation, reward, terminated, truncated, info = game.last()
            self.returns[agent] = self.returns.get(agent, 0.0) + float(reward)
            observation, mask = split(observation, info)
            if not (terminated or truncated):
                self.deciding = {agent: Turn(observation, self._mask(agent, mask), float(reward))}
                return
            if agent in self.ends:
                raise EnvError(f"`{self._name}` must take a dead agent out of `agents`. Received: {agent!r} twice")
            last = copy.deepcopy(observation)  # a game may write the next one over it
            self.ends[agent] = End(last, float(reward), bool(terminated), bool(truncated), dict(info), mask)
            game.step(None)


class Rounds(Course):
    """A Parallel game, in which all agents that live decide at once."""

    def start(self, seed: int | None = None) -> None:
        self.returns, self.ends = {}, {}
        seed_game(self._game, seed)
        found = self._game.reset(seed=seed)
        if not isinstance(found, tuple) or len(found) != 2:
            expected = (
                f"`reset` of `{self._name}` must return (observations, infos), or the game needs `last`: then agents"
            )
            raise EnvError(f"{expected} take turns. Received: {short(found)}")
        observations, infos = found
        self._ask(observations, infos, {})
        require_agents(self.deciding, self._name)

    def play(self, actions: Mapping[Agent, Any]) -> None:
        observations, rewards, terminated, truncated, infos = self._game.step(
            {agent: actions[agent] for agent in self.deciding}
        )
        self.ends = {}
        for agent in actions:
            ended, cut_off = ends_of(agent, self._game, self._name, rewards, terminated, truncated)
            self.returns[agent] = self.returns.get(agent, 0.0) + float(rewards[agent])
            if ended or cut_off:
                seen = observations.get(agent, self.deciding[agent].observation)
                info = dict(infos.get(agent, {}))
                observation, mask = split(copy.deepcopy(seen), info)  # a game may write the next one over it
                self.ends[agent] = End(observation, float(rewards[agent]), ended, cut_off, info, mask)
        self._ask(observations, infos, rewards)

    def _ask(self, observations: Mapping[Agent, Any], infos: Mapping[Agent, Any], rewards: Mapping[Agent, Any]) -> None:
        self.deciding = {}
        for agent in self._game.agents:
            require_known([agent], self.agents, self._name)
            if agent not in self.ends:
                self.returns.setdefault(agent, 0.0)
                require_observed([agent], observations, self._name)
                observation, mask = split(observations[agent], infos.get(agent, {}))
                self.deciding[agent] = Turn(observation, self._mask(agent, mask), float(rewards.get(agent, 0.0)))
