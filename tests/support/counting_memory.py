"""An environment that asks whether its steps are counted, and a network that counts them."""

from __future__ import annotations

import gymnasium as gym
import keras
import numpy as np
from gymnasium.spaces import Box, Discrete
from keras import ops

import actor_learner as al


class AlternatingEnv(gym.Env):
    """Shows nothing, and rewards the actions 0, 1, 0, 1 ... of an episode, whose length is drawn."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 9))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        right = action == self.steps % 2
        self.steps += 1
        return np.zeros(2, np.float32), float(right), self.steps == self.length, False, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


@keras.saving.register_keras_serializable(package="tests")
class Counter(al.Memory):
    """Returns the number of steps before this one, and adds one."""

    def initial_state(self, rows):
        return ops.zeros((rows, 1))

    def step(self, x, state):
        return state, state + 1


def alternating_network(observation_space, action_space):
    """Is sure of 0, 1, 0, 1 ... as long as its count is right. It has a weight, which changes nothing."""
    observation = keras.Input(observation_space.shape)
    odd = ops.sin((Counter()(observation) - 0.5) * np.pi)
    logits = ops.concatenate([-odd, odd], axis=1) * 100
    return keras.Model(observation, (logits, keras.layers.Dense(1)(observation)))
