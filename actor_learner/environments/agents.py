"""Games of several agents, of whom each is an environment: Parallel ones step as vector environments."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array, iterate

from actor_learner.environments.autoreset import AnyVectorEnv, declare
from actor_learner.environments.games import (
    Agent,
    agents_of,
    batch_of,
    close_game,
    course_of,
    ends_of,
    mask_space,
    require_agents,
    require_known,
    require_observed,
    shared_spaces,
    split,
    state_of,
    state_space_of,
)
from actor_learner.environments.seeding import seed_game
from actor_learner.environments.serial import add_masks, merge_numbers
from actor_learner.spaces.structure import AGENT_KEY, OWN_KEY, STATE_KEY, drop_mask, without_mask
from actor_learner.system.types import Array

ABSENT = "absent"  # key of `infos`: bool `[b]`, True where the row's agent has no part in the next step


class ParallelGames:
    """Parallel games, such as PettingZoo's, and the vector environments of their agents: one for each policy.

    The games step once all of these environments have given their actions.

    name: for messages. with_state: whether observations are {"observation": the agent's own, without a mask, "agent":
    its number, "state": the game's `state()`}, for a centralized value.

    Raises EnvError with it for games without a state.
    """

    def __init__(self, games: Sequence[Any], name: str, *, with_state: bool = False) -> None:
        self.games, self.name = list(games), name
        self.agents = [agents_of(game, name) for game in games]
        self.state_space = state_space_of(games[0], name) if with_state else None
        self._members: list[AgentsVectorEnv] = []
        self._places: list[dict[Agent, tuple[AgentsVectorEnv, int]]] = [{} for _ in games]

    def add(self, member: AgentsVectorEnv, chosen: Collection[Agent] | None) -> int:
        """Give the chosen agents of each game, or all, to a vector environment; return the number of its rows."""
        self._members.append(member)
        count = 0
        for agents, places in zip(self.agents, self._places, strict=True):
            for agent in agents if chosen is None else [agent for agent in agents if agent in chosen]:
                places[agent] = member, count
                count += 1
        return count

    def places(self, member: AgentsVectorEnv) -> list[dict[Agent, int]]:
        """Return the rows of a vector environment's agents in each game."""
        return [{agent: row for agent, (of, row) in places.items() if of is member} for places in self._places]

    def reset(self, member: AgentsVectorEnv, seed: int | None, options: dict[str, Any] | None) -> None:
        """Start all games, each with the seed of its first agent, where the first environment asks for it."""
        if member is not self._members[0]:
            return
        first = 0
        for number, agents in enumerate(self.agents):
            self._start(number, seed=None if seed is None else seed + first, options=options)
            first += len(agents)

    def offer(self, actions: Sequence[Any]) -> None:
        """Give the actions of all vector environments, before each of them steps its own part."""
        for member, own in zip(self._members, actions, strict=True):
            member.offer(own)

    def play(self) -> None:
        """Step all games, if all environments have given their actions. What they raise, each environment gets."""
        waiting = [member for member in self._members if member.choices is None]
        assert not waiting, "each policy's actions must be there"
        for member in self._members:
            member.begin_step()
        try:
            for number in range(len(self.games)):
                self._play(number)
        except Exception as error:
            for member in self._members:
                member.error = error

    def close(self) -> None:
        """Close the games; idempotent."""
        games, self.games = self.games, []
        for game in games:
            close_game(game)

    def _play(self, number: int) -> None:
        game, places = self.games[number], self._places[number]
        playing = list(game.agents)
        actions = {agent: places[agent][0].chosen[places[agent][1]] for agent in playing}
        observations, rewards, ended, cut_off, infos = game.step(actions)
        self._remember(number, observations, infos)
        for agent in playing:
            member, row = places[agent]
            flags = ends_of(agent, game, self.name, rewards, ended, cut_off)
            member.take(row, rewards[agent], *flags, infos.get(agent, {}))
        if all(ended.get(agent) or cut_off.get(agent) for agent in game.agents):
            self._start(number)

    def _start(self, number: int, **kwargs: Any) -> None:
        seed_game(self.games[number], kwargs.get("seed"))
        self._remember(number, *self.games[number].reset(**kwargs))
        require_agents(self.games[number].agents, self.name)

    def _remember(self, number: int, observations: Mapping[Any, Any], infos: Mapping[Any, dict[str, Any]]) -> None:
        places = self._places[number]
        require_known(observations, places, self.name)
        require_observed(self.games[number].agents, observations, self.name)
        for agent, observation in observations.items():
            member, row = places[agent]
            member.see(row, observation, infos.get(agent, {}))
        if self.state_space is not None:
            state = state_of(self.games[number], self.name, self.state_space)
            for agent_number, agent in enumerate(self.agents[number]):
                member, row = places[agent]
                member.see_state(row, agent_number, state)


class AgentsVectorEnv(AnyVectorEnv):
    """The agents of Parallel games that one policy plays; all have the same spaces.

    An agent that dies ends its own episode. Until its game starts again it is marked in `infos["absent"]`, as is one
    that hasn't joined yet, and its last observation stays. A game that is over starts again in the same step. A mask in
    {"observation", "action_mask"} or in an agent's info goes to `infos["action_mask"]`.

    agents: those of each game that are rows here; None: all. Raises EnvError if they differ in their spaces.
    """

    def __init__(self, games: ParallelGames, agents: Collection[Agent] | None = None) -> None:
        self.games, self._name = games, games.name
        count = games.add(self, agents)
        self._rows = games.places(self)
        observation, action = shared_spaces(games.games[0], games.name, list(self._rows[0]))
        if games.state_space is not None:
            own: Any = without_mask(observation)
            for_value = (AGENT_KEY, Discrete(len(games.agents[0]))), (STATE_KEY, games.state_space)
            observation = Dict([(OWN_KEY, own), *for_value])
        declare(self, count, AutoresetMode.SAME_STEP, observation, action)
        first = create_empty_array(self.single_observation_space, self.num_envs, np.zeros)
        self._newest: list[Any] = list(iterate(self.observation_space, first))
        # A policy's agents may all come after the first reset, which says whether there are masks.
        declared = None if agents is None else mask_space(games.games[0], next(iter(self._rows[0])))
        ones = None if declared is None else np.ones(declared.shape, np.int8)
        self._masks: dict[int, Any] = {} if ones is None else dict.fromkeys(range(self.num_envs), ones)
        self._given_masks: dict[int, Any] = {}
        self.choices: list[Any] | None = None
        """The actions of the next step; None: not given yet."""
        self.error: Exception | None = None
        self._has_stepped = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, each with the seed of its first agent's row. Other policies' agents start with them."""
        self.games.reset(self, seed, options)
        return self._observation(), self._infos()

    def offer(self, actions: Any) -> None:
        """Give the actions of the next step. With several policies, all do before the first of them steps."""
        self.choices = list(iterate(self.action_space, actions))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._has_stepped:
            if self.choices is None:
                self.offer(actions)
            self.games.play()
        self._has_stepped = False
        if (error := self.error) is not None:
            self.error = None
            raise error
        infos = self._infos()
        if (self._terminated | self._truncated).any():
            add_masks(self._final_info, self._final_masks, self.num_envs)
            infos |= {"final_obs": self._final_obs, "final_info": self._final_info}
        return self._observation(), self._reward, self._terminated, self._truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self.games.close()

    def begin_step(self) -> None:
        """Take the actions; the games give the results of a step to `see` and `take`."""
        assert self.choices is not None
        self.chosen, self.choices = self.choices, None
        self._has_stepped, self.error = True, None
        self._reward = np.zeros(self.num_envs)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), bool)
        self._final_obs, self._final_info = np.full(self.num_envs, None, object), dict[str, Any]()
        self._given_masks, self._final_masks = dict[int, Any](), dict[int, Any]()

    def see(self, row: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Take an agent's newest observation, and its mask if it has one."""
        own, mask = split(observation, info)
        if mask is not None:
            self._masks[row] = self._given_masks[row] = mask
        if self.games.state_space is None:
            self._newest[row] = own
        else:
            self._newest[row][OWN_KEY] = drop_mask(own)

    def see_state(self, row: int, agent_number: int, state: Any) -> None:
        """Take the state of an agent's game, also of one that is dead."""
        self._newest[row] |= {AGENT_KEY: agent_number, STATE_KEY: state}

    def take(self, row: int, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        """Take an agent's results of a step, whose observation it has."""
        self._reward[row], self._terminated[row], self._truncated[row] = reward, terminated, truncated
        if terminated or truncated:
            self._final_obs[row] = copy.deepcopy(self._newest[row])  # a game may write the next one over it
            merge_numbers(self._final_info, info, row, self.num_envs)
            if row in self._given_masks:  # with the last observation, not with an earlier one
                self._final_masks[row] = np.copy(self._given_masks[row])

    def _observation(self) -> Any:
        return batch_of(self.single_observation_space, self._newest, self._name)

    def _infos(self) -> dict[str, Any]:
        absent: Array = np.ones(self.num_envs, bool)
        for game, rows in zip(self.games.games, self._rows, strict=True):
            absent[[rows[agent] for agent in game.agents if agent in rows]] = False
        infos: dict[str, Any] = {ABSENT: absent} if absent.any() else {}
        add_masks(infos, self._masks, self.num_envs)
        return infos


class TurnGames(AnyVectorEnv):
    """The agents of turn-based games. Only one of each game decides at a time, so that there is no `step` for all.

    An actor plays the games decision by decision (`actors.turns`). `reset` starts them, and shows in each row what the
    agent sees that decides in its game.

    Raises EnvError for games whose agents differ in their spaces.
    """

    def __init__(self, games: Sequence[Any], name: str) -> None:
        self._raw, self._name = list(games), name
        self.courses = [course_of(game, name) for game in games]
        self.agents: list[Agent] = self.courses[0].agents
        count = len(games) * len(self.agents)
        declare(self, count, AutoresetMode.SAME_STEP, *shared_spaces(games[0], name))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, each with the seed of its first row."""
        seen, masks, infos = [], {}, dict[str, Any]()
        for number, course in enumerate(self.courses):
            first = number * len(self.agents)
            course.start(None if seed is None else seed + first)
            (turn,) = course.deciding.values()
            for row in range(first, first + len(self.agents)):
                seen.append(turn.observation)
                if turn.mask is not None:
                    masks[row] = turn.mask
        add_masks(infos, masks, self.num_envs)
        return batch_of(self.single_observation_space, seen, self._name), infos

    def close_extras(self, **kwargs: Any) -> None:
        for game in self._raw:
            close_game(game)
