"""An environment with Dict observations and action masks: fill a knapsack, one item at a time.

python examples/masked_knapsack.py [TOTAL_STEPS]
"""

import itertools
import sys

import gymnasium as gym
import numpy as np

import actor_learner as al

ITEMS = 8
SUBSETS = np.array(list(itertools.product((0, 1), repeat=ITEMS)))


class Knapsack(gym.Env):
    """Take an item (0 to 7), or close the sack (8). The mask forbids items that are taken or too heavy."""

    observation_space = gym.spaces.Dict(
        {
            "value": gym.spaces.Box(0, 1, (ITEMS,), np.float32),
            "weight": gym.spaces.Box(0, 1, (ITEMS,), np.float32),
            "room": gym.spaces.Box(0, 2, (1,), np.float32),
            "action_mask": gym.spaces.MultiBinary(ITEMS + 1),
        }
    )
    action_space = gym.spaces.Discrete(ITEMS + 1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value, self.weight = self.np_random.uniform(0.1, 1, (2, ITEMS)).astype(np.float32)
        self.best = (SUBSETS @ self.value)[SUBSETS @ self.weight <= 2].max()
        self.room, self.free = 2.0, np.ones(ITEMS, bool)
        return self._observation(), {}

    def step(self, action):
        if action == ITEMS:
            return self._observation(), 0.0, True, False, {}
        self.free[action] = False
        self.room -= self.weight[action]
        reward = self.value[action] / self.best  # the return is the share of the best possible value
        return self._observation(), float(reward), not self._fits().any(), False, {}

    def _fits(self):
        return self.free & (self.weight <= self.room)

    def _observation(self):
        return {
            "value": self.value * self.free,
            "weight": self.weight * self.free,
            "room": np.array([self.room], np.float32),
            "action_mask": np.append(self._fits(), True).astype(np.int8),
        }


def main(total_steps: int = 300_000) -> float:
    config = al.TrainConfig(
        env=Knapsack,
        algorithm=al.PPO(learning_rate="linear_1e-3", gamma=1.0, minibatch_size=256, ent_coef=0.01),
        hidden_sizes=(128, 128),
        total_steps=total_steps,
        envs_per_actor=16,
        unroll_length=32,
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, env=Knapsack, episodes=300, seed=1).mean


if __name__ == "__main__":
    print("share of the best value:", main(*map(int, sys.argv[1:])))
