"""Self-play in a turn-based game of one's own, with PettingZoo's AEC interface (which isn't imported).

python examples/tic_tac_toe.py [TOTAL_STEPS]
"""

import sys

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import actor_learner as al

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe:
    """An agent sees its own marks and the other's, and gets 1 for a win and -1 for a loss."""

    def __init__(self):
        self.possible_agents = ["first", "second"]

    def observation_space(self, agent):
        return Dict(observation=Box(0, 1, (18,), np.int8), action_mask=Box(0, 1, (9,), np.int8))

    def action_space(self, agent):
        return Discrete(9)

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection = [*self.possible_agents], "first"
        self.marks = dict.fromkeys(self.agents, np.zeros(9, np.int8))
        self.gained, self.over = dict.fromkeys(self.agents, 0.0), False

    def last(self):
        """Return what the selected agent sees, what it got since its last turn, and whether its game is over."""
        agent = self.agent_selection
        mine, theirs = self.marks[agent], self.marks[self.other(agent)]
        seen = {"observation": np.concatenate([mine, theirs]), "action_mask": 1 - mine - theirs}
        return seen, self.gained[agent], self.over, False, {}

    def step(self, action):
        agent, other = self.agent_selection, self.other(self.agent_selection)
        self.agent_selection = other
        if self.over:  # the step of an agent whose game is over takes it out
            self.agents.remove(agent)
            return
        self.gained[agent] = 0.0
        self.marks[agent] = self.marks[agent] + np.eye(9, dtype=np.int8)[action]
        if any(self.marks[agent][[*line]].all() for line in LINES):
            self.gained, self.over = {agent: 1.0, other: -1.0}, True
        self.over = self.over or bool(np.all(self.marks[agent] + self.marks[other]))

    def other(self, agent):
        return "second" if agent == "first" else "first"


def main(total_steps: int = 200_000) -> float:
    config = al.TrainConfig(
        env=TicTacToe,
        self_play=al.SelfPlay(every=10, opening=5),
        algorithm=al.PPO(learning_rate="linear_1e-3", gamma=1.0, ent_coef=0.05, minibatch_size=256),
        num_envs=64,
        unroll_length=32,
        total_steps=total_steps,
    )
    result = al.train(config)
    print(al.arena([result.run_dir, "random"], TicTacToe, games=200))
    outcomes = al.evaluate(result.run_dir, TicTacToe, opponent="random", episodes=400).info["outcome"]
    return float(np.mean(outcomes > 0))


if __name__ == "__main__":
    print("games not lost against random:", main(*map(int, sys.argv[1:])))
