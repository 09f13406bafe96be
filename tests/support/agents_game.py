"""A game of several agents with PettingZoo's parallel interface, whose course is known."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete


class LastStanding:
    """Agent i dies in step `deaths[i]` of each game; those that are left are cut off after `length` steps.

    Observation: [step, number of the agent, games before, its last action]; reward: the step.
    """

    metadata = {"render_modes": [], "name": "last_standing_v0", "is_parallelizable": True}  # noqa: RUF012
    render_mode = None

    def __init__(self, deaths=(2, 3, None), length=5, masks=False):
        self.deaths, self.length, self.masks = deaths, length, masks
        self.possible_agents = [f"agent_{number}" for number in range(len(deaths))]
        self.agents, self.games, self.seeds = [], -1, []

    def observation_space(self, agent):
        return Box(-1, np.inf, (4,))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.steps, self.games = [*self.possible_agents], 0, self.games + 1
        self.seeds.append(seed)
        return {agent: self._observe(agent, -1) for agent in self.agents}, {
            agent: self._info() for agent in self.agents
        }

    def step(self, actions):
        assert list(actions) == self.agents
        self.steps += 1
        playing = self.agents
        died = {agent: self.deaths[self._number(agent)] == self.steps for agent in playing}
        cut_off = {agent: not died[agent] and self.steps == self.length for agent in playing}
        self.agents = [agent for agent in playing if not died[agent] and not cut_off[agent]]
        observations = {agent: self._observe(agent, actions[agent]) for agent in playing}
        infos = {agent: {**self._info(), "is_success": cut_off[agent]} for agent in playing}
        return observations, dict.fromkeys(playing, float(self.steps)), died, cut_off, infos

    def close(self):
        self.agents = []

    def _number(self, agent):
        return self.possible_agents.index(agent)

    def _info(self):
        return {"action_mask": np.array([1, 1, self.steps % 2], np.int8)} if self.masks else {}

    def _observe(self, agent, action):
        return np.array([self.steps, self._number(agent), self.games, action], np.float32)
