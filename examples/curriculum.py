"""A curriculum as a callback: when the policy opens the lock, every environment makes it longer.

The only reward comes at the end of the right combination. Chance hardly ever opens a lock of 12 digits (4**-12).

    python examples/curriculum.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import numpy as np

import actor_learner as al

LONGEST = 12


class Lock(gym.Env):
    """A lock that shows the number of right digits so far, one-hot. A wrong digit ends the episode."""

    observation_space = gym.spaces.Box(0, 1, (LONGEST,), np.float32)
    action_space = gym.spaces.Discrete(4)
    combination = np.random.default_rng(7).integers(4, size=LONGEST)

    def __init__(self, difficulty=LONGEST):
        self.difficulty = difficulty

    def set_difficulty(self, difficulty):
        self.difficulty = difficulty

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action):
        if action != self.combination[self.position]:
            return self._observation(), 0.0, True, False, {"is_success": False}
        self.position += 1
        opened = self.position >= self.difficulty
        return self._observation(), float(opened), opened, False, {"is_success": opened}

    def _observation(self):
        return np.eye(LONGEST, dtype=np.float32)[min(self.position, LONGEST - 1)]


class Curriculum(al.callbacks.Callback):
    """Add a digit when the policy opens four of five locks."""

    difficulty = 1

    def on_train_batch_end(self, batch, logs=None):
        if self.difficulty < LONGEST and self.is_settled() and logs["episode/is_success"] > 0.8:
            self.difficulty += 1
            self.actors.call("set_difficulty", self.difficulty)  # in every environment, before its next unroll

    def get_state(self):  # kept in checkpoints, from which a resumed run goes on
        return {"difficulty": self.difficulty}

    def set_state(self, state):
        self.difficulty = state["difficulty"]


def main(total_steps: int = 60_000, curriculum: bool = True) -> float:
    config = al.TrainConfig(
        env=Lock,
        env_kwargs={"difficulty": 1 if curriculum else LONGEST},
        algorithm=al.PPO(learning_rate=3e-3, ent_coef=0.01, minibatch_size=256),
        total_steps=total_steps,
        unroll_length=32,
        callbacks=[Curriculum()] if curriculum else [],
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, env=Lock, env_kwargs={"difficulty": LONGEST}, episodes=20, seed=1).mean


if __name__ == "__main__":
    steps = [int(word) for word in sys.argv[1:]]
    print("share of the longest locks opened:", main(*steps), "- without a curriculum:", main(*steps, curriculum=False))
