"""CartPole, Pendulum, Acrobot and MountainCar, many at once in NumPy: over a million steps a second on one core.

Each equals Gymnasium's own, step by step, under the same seeds and actions: it computes in float64 and in Gymnasium's
order of operations, because Acrobot amplifies a difference in the last bit. The single environment of the same id is
Gymnasium's class, which draws the pictures.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from actor_learner_envs.numpy_vector_env import NumpyVectorEnv
from gymnasium.envs.classic_control import utils
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import DEFAULT_X, DEFAULT_Y, PendulumEnv

Array = np.ndarray[Any, Any]


class CartPoleVectorEnv(NumpyVectorEnv):
    """A pole on a cart that is pushed left or right. State: x, its speed, the angle and its speed."""

    single: CartPoleEnv

    single_class = CartPoleEnv
    state_size = 4

    def __init__(self, *arguments: Any, sutton_barto_reward: bool = False, **named: Any) -> None:
        super().__init__(*arguments, sutton_barto_reward=sutton_barto_reward, **named)
        self._forces = np.array([-self.single.force_mag, self.single.force_mag])
        self._reward, self._last_reward = (0.0, -1.0) if sutton_barto_reward else (1.0, 1.0)

    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        low, high = utils.maybe_parse_reset_bounds(options, -0.05, 0.05)
        return np.full(4, low), np.full(4, high)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        env = self.single
        x, x_dot, theta, theta_dot = self._state
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (self._forces[actions] + env.polemass_length * np.square(theta_dot) * sin) / env.total_mass
        theta_acceleration = (env.gravity * sin - cos * temp) / (
            env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass)
        )
        x_acceleration = temp - env.polemass_length * theta_acceleration * cos / env.total_mass
        x += env.tau * x_dot
        x_dot += env.tau * x_acceleration
        theta += env.tau * theta_dot
        theta_dot += env.tau * theta_acceleration
        terminated = (np.abs(x) > env.x_threshold) | (np.abs(theta) > env.theta_threshold_radians)
        return np.where(terminated, self._last_reward, self._reward), terminated


class PendulumVectorEnv(NumpyVectorEnv):
    """A pendulum to swing up and hold with a small torque. State: the angle and its speed."""

    single: PendulumEnv

    single_class = PendulumEnv
    state_size = 2

    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        names = (("x_init", DEFAULT_X), ("y_init", DEFAULT_Y))
        high = np.array([utils.verify_number_and_cast(options.get(name, default)) for name, default in names])
        return -high, high

    def _observe(self, state: Array) -> tuple[Array, Array, Array]:
        theta, theta_dot = state
        return np.cos(theta), np.sin(theta), theta_dot

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        env = self.single
        theta, theta_dot = self._state
        torque = np.clip(actions[:, 0], -env.max_torque, env.max_torque)
        angle = (theta + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * theta_dot**2 + 0.001 * torque**2
        theta_dot += (3 * env.g / (2 * env.l) * np.sin(theta) + 3.0 / (env.m * env.l**2) * torque) * env.dt
        np.clip(theta_dot, -env.max_speed, env.max_speed, out=theta_dot)
        theta += theta_dot * env.dt
        return -cost, np.zeros(self.num_envs, dtype=bool)


class MountainCarVectorEnv(NumpyVectorEnv):
    """A car that has to rock its way out of a valley. State: its position and its speed."""

    single: MountainCarEnv

    single_class = MountainCarEnv
    state_size = 2

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._forces = np.array([-self.single.force, 0.0, self.single.force])

    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        low, high = utils.maybe_parse_reset_bounds(options, -0.6, -0.4)
        return np.array([low]), np.array([high])

    def _start(self, drawn: Array) -> Array:
        return np.concatenate([drawn, np.zeros_like(drawn)])

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        env = self.single
        position, velocity = self._state
        velocity += self._forces[actions] + np.cos(3 * position) * -env.gravity
        np.clip(velocity, -env.max_speed, env.max_speed, out=velocity)
        position += velocity
        np.clip(position, env.min_position, env.max_position, out=position)
        velocity[(position == env.min_position) & (velocity < 0)] = 0.0
        terminated = (position >= env.goal_position) & (velocity >= env.goal_velocity)
        return np.full(self.num_envs, -1.0), terminated


class AcrobotVectorEnv(NumpyVectorEnv):
    """Two links, driven at their joint, to swing above a line. State: two angles and their speeds."""

    single: AcrobotEnv

    single_class = AcrobotEnv
    state_size = 4
    _torques = np.array(AcrobotEnv.AVAIL_TORQUE)

    def _bounds(self, options: dict[str, Any]) -> tuple[Array, Array]:
        low, high = utils.maybe_parse_reset_bounds(options, -0.1, 0.1)
        return np.full(4, low), np.full(4, high)

    def _start(self, drawn: Array) -> Array:
        return drawn.astype(np.float32)  # as in Gymnasium, which computes in float64 from here on

    def _observe(self, state: Array) -> tuple[Array, ...]:
        theta1, theta2, theta1_dot, theta2_dot = state
        return np.cos(theta1), np.sin(theta1), np.cos(theta2), np.sin(theta2), theta1_dot, theta2_dot

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        env = self.single
        torque = self._torques[actions]
        self._state = state = self._runge_kutta(torque)
        _wrap(state[:2])
        np.clip(state[2], -env.MAX_VEL_1, env.MAX_VEL_1, out=state[2])
        np.clip(state[3], -env.MAX_VEL_2, env.MAX_VEL_2, out=state[3])
        terminated: Array = -np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0
        return np.where(terminated, 0.0, -1.0), terminated

    def _runge_kutta(self, torque: Array) -> Array:
        state, dt = self._state, self.single.dt
        k1 = self._derivatives(state, torque)
        k2 = self._derivatives(state + dt / 2.0 * k1, torque)
        k3 = self._derivatives(state + dt / 2.0 * k2, torque)
        k4 = self._derivatives(state + dt * k3, torque)
        after: Array = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        return after

    def _derivatives(self, state: Array, torque: Array) -> Array:
        """Return the derivatives by Sutton and Barto's book; masses, lengths and inertias are `AcrobotEnv`'s."""
        env = self.single
        theta1, theta2, theta1_dot, theta2_dot = state
        mass, length, center, inertia, g = env.LINK_MASS_2, env.LINK_LENGTH_1, env.LINK_COM_POS_2, env.LINK_MOI, 9.8
        cos, sin = np.cos(theta2), np.sin(theta2)
        d1 = env.LINK_MASS_1 * env.LINK_COM_POS_1**2 + mass * (length**2 + center**2 + 2 * length * center * cos)
        d1 = d1 + inertia + inertia
        d2 = mass * (center**2 + length * center * cos) + inertia
        phi2 = mass * center * g * np.cos(theta1 + theta2 - math.pi / 2.0)
        phi1 = (
            -mass * length * center * theta2_dot**2 * sin
            - 2 * mass * length * center * theta2_dot * theta1_dot * sin
            + (env.LINK_MASS_1 * env.LINK_COM_POS_1 + mass * length) * g * np.cos(theta1 - math.pi / 2)
            + phi2
        )
        theta2_acceleration = (torque + d2 / d1 * phi1 - mass * length * center * theta1_dot**2 * sin - phi2) / (
            mass * center**2 + inertia - d2**2 / d1
        )
        theta1_acceleration = -(d2 * theta2_acceleration + phi1) / d1
        return np.stack([theta1_dot, theta2_dot, theta1_acceleration, theta2_acceleration])


def _wrap(angles: Array) -> None:
    """Turn angles back into [-pi, pi], in place; one turn at a time, for the rounding of Gymnasium."""
    while (above := angles > math.pi).any():
        angles[above] -= 2 * math.pi
    while (below := angles < -math.pi).any():
        angles[below] += 2 * math.pi
