"""Environments in JAX that need no library."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

import actor_learner as al

_GRAVITY, _MASS, _POLE_MASS, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 1.1, 0.1, 0.5, 10.0, 0.02
_FAR, _TILTED, _LIMIT = 2.4, 12 * 2 * np.pi / 360, 500


class State(NamedTuple):
    """position, speed, angle and angular speed `[4]`, and the steps so far."""

    physics: Any
    steps: Any


class CartPole:
    """CartPole-v1: Gymnasium's dynamics (classic_control/cartpole.py), and its limit of 500 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: Any) -> tuple[State, Any]:
        physics = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return State(physics, jnp.int32(0)), physics

    def step(self, key: Any, state: State, action: Any) -> al.Step:
        _position, speed, angle, turning = state.physics
        force = jnp.where(action == 1, _FORCE, -_FORCE)
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        pushed = (force + _POLE_MASS * _HALF_LENGTH * turning**2 * sine) / _MASS
        inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cosine**2 / _MASS)
        tipping = (_GRAVITY * sine - cosine * pushed) / inertia
        moved = pushed - _POLE_MASS * _HALF_LENGTH * tipping * cosine / _MASS
        rates = jnp.stack([speed, moved, turning, tipping])
        physics, steps = state.physics + _SECONDS * rates, state.steps + 1
        fallen = (jnp.abs(physics[0]) > _FAR) | (jnp.abs(physics[2]) > _TILTED)
        return al.Step(State(physics, steps), physics, jnp.float32(1.0), fallen, steps >= _LIMIT)


class Endless:
    """Pays 1 for each step, whatever is done, and is cut off after ten. Its observation says nothing.

    With a discount of 0.9 each state is worth 1 / (1 - 0.9) = 10. Were the cut an end, states would be worth 1 to 6.5.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.ones(1)

    def step(self, key: Any, state: Any, action: Any) -> al.Step:
        return al.Step(state + 1, jnp.ones(1), jnp.float32(1.0), jnp.bool_(False), state + 1 >= 10)
