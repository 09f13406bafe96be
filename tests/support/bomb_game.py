"""A turn-based game of three agents that die at different times, with rewards on others' turns, and truncation."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv


class Bomb(AECEnv):
    """An action of 1 hits the next agent, which dies of the third hit; after 29 decisions all are cut off."""

    metadata = {"name": "bomb_v0", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["a", "b", "c"]
        self.render_mode = None

    def observation_space(self, agent):
        return Dict({"observation": Box(0, 1, (5,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return Discrete(3)

    def observe(self, agent):
        place = self.possible_agents.index(agent)
        turn = agent == self.agent_selection
        board = np.array([self.count / 30, self.hits[agent] / 4, place / 2, turn, len(self.agents) / 3], np.float32)
        mask = np.array([turn, turn, turn and self.count % 2], np.int8)
        return {"observation": np.minimum(board, 1), "action_mask": mask}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.count, self.hits = 0, dict.fromkeys(self.agents, 0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.count += 1
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        live = [each for each in self.agents if not self.terminations[each]]
        for each in live:  # all are paid at each turn
            self.rewards[each] += 0.125 * (action + 1) * (1 if each == agent else -0.5)
        if action == 1:
            live = self._hit(live[(live.index(agent) + 1) % len(live)], live)
        if self.count >= 29:
            self.truncations.update(dict.fromkeys(live, True))
        elif len(live) == 1:
            self.terminations[live[0]] = True
            self.rewards[live[0]] += 1.0
        order = self.possible_agents
        following = [order[(order.index(agent) + step) % 3] for step in (1, 2, 3)]
        self.agent_selection = next(each for each in following if each in live or each == agent)
        self._accumulate_rewards()
        self._deads_step_first()

    def _hit(self, agent, live):
        self.hits[agent] += 1
        if self.hits[agent] < 3 or len(live) == 1:
            return live
        self.terminations[agent] = True
        self.rewards[agent] -= 1.0
        return [each for each in live if each != agent]
