"""Environments with goals, good and bad, which actors import without a test's TensorFlow."""

from __future__ import annotations

import numpy as np
from actor_learner_envs.goals import BitFlippingEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Closing(BitFlippingEnv):
    """Counts how many are open."""

    open = 0

    def __init__(self, bits=4):
        super().__init__(bits, stop_at_success=True)
        Closing.open += 1

    def close(self):
        Closing.open -= 1


class WithoutFunction(Closing):
    compute_reward = None

    def step(self, action):
        return *super().step(action)[:1], 0.0, False, False, {}


class OfOneRow(Closing):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.0 if (achieved_goal == desired_goal).all() else -1.0


def several(num_envs):
    return SyncVectorEnv([BitFlippingEnv] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def all_equal(achieved_goal, desired_goal, infos):
    return -(achieved_goal != desired_goal).any(axis=-1).astype(np.float32)
