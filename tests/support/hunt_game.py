"""A Parallel game of two roles with different spaces: hunters with masks, and prey that may die."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Hunt:
    """Two hunters move on a line by 0, 1 or 2, but not twice by 2; the prey flees by a real number.

    Prey that a hunter reaches dies; the game is cut off after eight steps. The hunters see a position and a distance.
    """

    possible_agents = ("hunter_0", "prey", "hunter_1")
    metadata = {"name": "hunt"}  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.random = np.random.default_rng(0)

    def observation_space(self, agent):
        numbers = Box(-np.inf, np.inf, (2,), np.float32)
        if agent == "prey":
            return Box(-np.inf, np.inf, (3,), np.float32)
        return Dict({"observation": numbers, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return Box(-1.0, 1.0, (1,), np.float32) if agent == "prey" else Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.steps, self.moved = 0, {"hunter_0": 0, "hunter_1": 0}
        self.places = {agent: float(self.random.normal()) for agent in self.possible_agents}
        self.places["prey"] += 4.0
        return {agent: self.seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def seen(self, agent):
        place, prey = self.places[agent], self.places["prey"]
        if agent == "prey":
            return np.array([place, *(self.places[hunter] for hunter in self.moved)], np.float32)
        mask = np.array([1, 1, self.moved[agent] != 2], np.int8)
        return {"observation": np.array([place, prey - place], np.float32), "action_mask": mask}

    def step(self, actions):
        playing = list(self.agents)
        for agent, action in actions.items():
            if agent == "prey":
                self.places[agent] += 0.5 + float(action[0])
            else:
                assert not self.moved[agent] == action == 2, "the mask forbids it"
                self.places[agent] += float(action)
                self.moved[agent] = int(action)
        self.steps += 1
        caught = [hunter for hunter in self.moved if self.places[hunter] >= self.places["prey"]]
        dies, over = "prey" in playing and bool(caught), self.steps == 8
        rewards = {agent: -1.0 if agent == "prey" else float(agent in caught) for agent in playing}
        if dies:
            rewards["prey"] = -5.0
        ended = {agent: dies and agent == "prey" for agent in playing}
        cut_off = {agent: over and not ended[agent] for agent in playing}
        self.agents = [agent for agent in playing if not (ended[agent] or cut_off[agent])]
        infos = {agent: {"steps": self.steps} for agent in playing}
        return {agent: self.seen(agent) for agent in playing}, rewards, ended, cut_off, infos

    def close(self):
        self.closed = True
