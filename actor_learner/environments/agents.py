"""Parallel games of several agents as a vector environment: each agent is an environment."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.games import (
    agents_of,
    batch_of,
    close_game,
    require_agents,
    require_known,
    shared_spaces,
    split,
)
from actor_learner.environments.serial import add_masks, merge_numbers

ABSENT = "absent"  # key of `infos`: bool `[b]`, True where the row's agent has no part in the next step


class AgentsVectorEnv(AnyVectorEnv):
    """The agents of Parallel games, such as PettingZoo's; all have the same spaces.

    An agent that dies ends its own episode. Until its game starts again it is marked in `infos["absent"]`, as is one
    that hasn't joined yet, and its last observation stays. A game that is over starts again in the same step. A mask in
    {"observation", "action_mask"} or in an agent's info goes to `infos["action_mask"]`.

    name: for messages. Raises EnvError for games whose agents differ in their spaces.
    """

    def __init__(self, games: Sequence[Any], name: str) -> None:
        self._games, self._name = list(games), name
        agents = [agents_of(game, name) for game in games]
        rows = iter(range(sum(map(len, agents))))
        self._rows = [{agent: next(rows) for agent in each} for each in agents]
        self.num_envs = sum(map(len, agents))
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = shared_spaces(games[0], name)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        first = create_empty_array(self.single_observation_space, self.num_envs, np.zeros)
        self._newest: list[Any] = list(iterate(self.observation_space, first))
        self._masks: dict[int, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all games, each with the seed of its first agent's row."""
        for number, rows in enumerate(self._rows):
            first = next(iter(rows.values()))
            self._start(number, seed=None if seed is None else seed + first, options=options)
        return self._observation(), self._infos()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        choices = list(iterate(self.action_space, actions))
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        final_obs, final_info = np.full(self.num_envs, None, object), dict[str, Any]()
        for number, (game, rows) in enumerate(zip(self._games, self._rows, strict=True)):
            playing = list(game.agents)
            observations, rewards, ended, cut_off, infos = game.step({agent: choices[rows[agent]] for agent in playing})
            self._remember(rows, observations, infos)
            for agent in playing:
                row = rows[agent]
                reward[row], truncated[row] = rewards[agent], cut_off[agent]
                terminated[row] = ended[agent] or (agent not in game.agents and not cut_off[agent])
                if terminated[row] or truncated[row]:
                    final_obs[row] = copy.deepcopy(self._newest[row])  # a game may write the next one over it
                    merge_numbers(final_info, infos.get(agent, {}), row, self.num_envs)
            if all(ended.get(agent) or cut_off.get(agent) for agent in game.agents):
                self._start(number)
        infos = self._infos()
        if (terminated | truncated).any():
            infos |= {"final_obs": final_obs, "final_info": final_info}
        return self._observation(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for game in self._games:
            close_game(game)

    def _start(self, number: int, **kwargs: Any) -> None:
        self._remember(self._rows[number], *self._games[number].reset(**kwargs))
        require_agents(self._games[number].agents, self._name)

    def _remember(self, rows: dict[Any, int], observations: dict[Any, Any], infos: dict[Any, dict[str, Any]]) -> None:
        require_known(observations, rows, self._name)
        for agent, observation in observations.items():
            row = rows[agent]
            self._newest[row], mask = split(observation, infos.get(agent, {}))
            if mask is not None:
                self._masks[row] = mask

    def _observation(self) -> Any:
        return batch_of(self.single_observation_space, self._newest, self._name)

    def _infos(self) -> dict[str, Any]:
        absent = np.ones(self.num_envs, bool)
        for game, rows in zip(self._games, self._rows, strict=True):
            absent[[rows[agent] for agent in game.agents]] = False
        infos: dict[str, Any] = {ABSENT: absent} if absent.any() else {}
        if self._masks:
            add_masks(infos, self._masks, self.num_envs)
        return infos
