"""Several agents with one policy: a game in PettingZoo's Parallel interface.

python examples/several_agents.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import numpy as np

import actor_learner as al

LANES, SIGHT, LENGTH = 5, 3, 50


class Road:
    """Cars keep to the one free lane of each row, which moves by a lane at most, and earn 1 a step until they crash."""

    def __init__(self):
        self.metadata, self.render_mode = {"name": "road_v0", "render_modes": []}, None
        self.possible_agents = [f"car_{number}" for number in range(3)]
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return gym.spaces.Box(0, 1, (SIGHT + 1, LANES), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.steps = [*self.possible_agents], 0
        self.free = [LANES // 2]
        while len(self.free) < SIGHT:
            self._extend()
        self.lane = dict.fromkeys(self.agents, LANES // 2)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        self._extend()
        del self.free[0]
        for agent, action in actions.items():
            self.lane[agent] = int(np.clip(self.lane[agent] + action - 1, 0, LANES - 1))
        crashed = {agent: self.lane[agent] != self.free[0] for agent in actions}
        rewards = {agent: float(not crashed[agent]) for agent in actions}
        arrived = {agent: self.steps == LENGTH and not crashed[agent] for agent in actions}
        observations, infos = self._observe(), {agent: {} for agent in actions}
        self.agents = [agent for agent in self.agents if not crashed[agent] and not arrived[agent]]
        return observations, rewards, crashed, arrived, infos

    def _extend(self):
        self.free.append(int(np.clip(self.free[-1] + self.random.integers(-1, 2), 0, LANES - 1)))

    def _observe(self):
        rows = np.eye(LANES, dtype=np.float32)
        return {agent: rows[[*self.free, self.lane[agent]]] for agent in self.agents}


def main(total_steps: int = 300_000) -> float:
    algorithm = al.PPO(learning_rate="linear_1e-3", minibatch_size=256)
    config = al.TrainConfig(env=Road, algorithm=algorithm, envs_per_actor=12, total_steps=total_steps)
    result = al.train(config)
    return al.evaluate(result.run_dir, env=Road, episodes=60, num_envs=12, seed=1).mean


if __name__ == "__main__":
    print("steps without a crash, of 50:", main(*map(int, sys.argv[1:])))
