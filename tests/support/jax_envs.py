"""Environments written in JAX, whose next step can be told from an observation."""

from __future__ import annotations

import types

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

import actor_learner as al

LIMIT = 6


class Walk:
    """A position that the action moves, and the steps so far: terminates beyond 2, is cut off after 6 steps.

    The reward is the action as it arrives, the info the position. noise: of the movement, drawn with the step's key.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, noise=0.0):
        self.noise = noise

    def reset(self, key):
        position = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return {"position": position, "steps": 0}, jnp.stack([position, 0.0])

    def step(self, key, state, action):
        position = state["position"] + action[0] + self.noise * jax.random.normal(key)
        steps = state["steps"] + 1
        observation = jnp.stack([position, steps.astype(jnp.float32)])
        ends = jnp.abs(position) > 2
        info = {"position": position, "is_success": ends, "shape": jnp.zeros(3)}
        return al.Step({"position": position, "steps": steps}, observation, action[0], ends, steps >= LIMIT, info)


class Numbers:
    """A dict of a number from 3 to 8 and a vector; of two choices, the first counts from 10. Never ends by itself."""

    observation_space = gym.spaces.Dict(
        {"number": gym.spaces.Discrete(6, start=3), "vector": gym.spaces.Box(0.0, 9.0, (2,), np.float32)}
    )
    action_space = gym.spaces.MultiDiscrete([3, 2], start=[10, 0])

    def reset(self, key):
        number = jax.random.randint(key, (), 3, 9)
        return number, self._seen(number, jnp.zeros(2, jnp.int32))

    def step(self, key, state, action):
        number = 3 + (state - 3 + action[0] - 10) % 6
        return al.Step(number, self._seen(number, action), action[0], number == 3, False)

    def _seen(self, number, action):
        return {"number": number, "vector": action.astype(jnp.float32) * jnp.array([0.1, 1.0])}


class MaskedByEntry:
    """Of four actions, only the one that the state names and the next are allowed; the reward is 1 for that named.

    The mask is an entry of the observation. State 0 ends an episode, and state 1 cuts it off.
    """

    observation_space = gym.spaces.Dict(
        {"state": gym.spaces.Discrete(4), "action_mask": gym.spaces.Box(0, 1, (4,), np.int8)}
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, key):
        state = jax.random.randint(key, (), 0, 4)
        return state, self.seen(state)

    def step(self, key, state, action):
        following = jax.random.randint(key, (), 0, 4)
        reward = (action == state).astype(jnp.float32)
        return al.Step(following, self.seen(following), reward, following == 0, following == 1)

    def seen(self, state):
        return {"state": state, "action_mask": allowed(state).astype(jnp.int8)}


class Masked(MaskedByEntry):
    """The same with a method for the mask."""

    observation_space = gym.spaces.Discrete(4)

    def seen(self, state):
        return state

    def action_mask(self, state):
        return allowed(state)


def allowed(state):
    choices = jnp.arange(4)
    return (choices == state) | (choices == (state + 1) % 4)


class Drawn(Walk):
    """Has a key of JAX in its state, and pictures that are as bright as its position."""

    metadata = types.MappingProxyType({"render_fps": 7})

    def reset(self, key):
        state, observation = super().reset(key)
        return {**state, "key": key}, observation

    def step(self, key, state, action):
        stepped = super().step(key, state, action)
        return stepped._replace(state={**stepped.state, "key": jax.random.fold_in(state["key"], 1)})

    def render(self, state):
        return np.full((2, 3, 3), 100 + 50 * state["position"], np.uint8)
