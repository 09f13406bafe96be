"""SB3 and SBX, the same work on one thread: `python -m benchmarks.replay.programs.peers FUNCTION JSON`.

Run by the interpreter of a venv with both; prints CPU seconds.
"""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.programs import answer, cpu_times

ROWS = 50_000
CART_POLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
"""rl-baselines3-zoo's, as our preset's."""


class IdleEnv(gym.Env[Any, Any]):
    """An environment that is never stepped."""

    def __init__(self, task: SimpleNamespace) -> None:
        image = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        vector = gym.spaces.Box(-np.inf, np.inf, (task.observation,), np.float32)
        self.observation_space = vector if task.observation else image
        box = gym.spaces.Box(-1, 1, (task.actions,), np.float32)
        discrete = task.algorithm in ("dqn", "qrdqn")
        self.action_space = gym.spaces.Discrete(task.actions) if discrete else box

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def make_model(task: SimpleNamespace, env: Any, **options: Any) -> Any:
    """Return a model of SB3 or SBX on one thread. SBX doesn't clip gradients."""
    policy = "MlpPolicy" if getattr(task, "observation", 1) else "CnnPolicy"
    if isinstance(env.observation_space, gym.spaces.Dict):
        policy = "MultiInputPolicy"
    name = getattr(task, "algorithm", "dqn").upper()
    hidden: dict[str, Any] = {} if policy == "CnnPolicy" else {"policy_kwargs": {"net_arch": [256, 256]}}
    if quantiles := getattr(task, "options", {}).get("quantiles"):
        hidden["policy_kwargs"]["n_quantiles"] = quantiles
    if task.library == "sb3":
        import stable_baselines3
        import torch

        torch.set_num_threads(1)
        package = stable_baselines3 if hasattr(stable_baselines3, name) else importlib.import_module("sb3_contrib")
        return getattr(package, name)(policy, env, device="cpu", **hidden, **options)
    import sbx

    return getattr(sbx, name)(policy, env, **hidden, **options)


def step(task: SimpleNamespace) -> float:
    """Return the seconds of a gradient step, drawing its rows included: the least of a few calls' means."""
    options: dict[str, Any] = {"buffer_size": ROWS if task.observation else 2048, "batch_size": task.minibatch_size}
    if task.library == "sb3" and task.algorithm == "dqn":
        options["max_grad_norm"] = float("inf") if task.max_grad_norm is None else task.max_grad_norm
    model = make_model(task, IdleEnv(task), **options)
    from stable_baselines3.common.logger import configure

    model.set_logger(configure(None, []))
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    shape = buffer.observations.shape
    image = buffer.observations.dtype == np.uint8
    buffer.observations[:] = rng.integers(0, 255, shape, np.uint8) if image else rng.normal(size=shape)
    buffer.next_observations[:] = buffer.observations
    buffer.full, model.num_timesteps, model._current_progress_remaining = True, 10_000, 1.0

    def train() -> None:
        model.train(gradient_steps=task.steps, batch_size=task.minibatch_size)
        if task.library == "sbx":
            import jax

            state = model.policy.qf_state if task.algorithm == "dqn" else model.policy.actor_state
            jax.block_until_ready(state.params)

    train()
    return min(cpu_times(train, task.calls)) / task.steps


class GoalEnv(gym.Env[Any, Any]):
    """Episodes of 50 random steps, with goals of 3 numbers."""

    def __init__(self, task: SimpleNamespace) -> None:
        goal = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        numbers = gym.spaces.Box(-np.inf, np.inf, (task.observation,), np.float32)
        self.observation_space = gym.spaces.Dict(observation=numbers, achieved_goal=goal, desired_goal=goal)
        self.action_space = gym.spaces.Box(-1, 1, (task.actions,), np.float32)
        self._rng, self._steps, self._goal = np.random.default_rng(0), 0, np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps, self._goal = 0, self._rng.normal(size=3).astype(np.float32)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        seen = self._observation()
        reward = float(self.compute_reward(seen["achieved_goal"], self._goal, {}))
        return seen, reward, False, self._steps == 50, {}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)

    def _observation(self) -> dict[str, Any]:
        shapes = {name: space.shape for name, space in self.observation_space.spaces.items()}
        seen = {name: self._rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        return {**seen, "desired_goal": self._goal}


def goal_step(task: SimpleNamespace) -> float:
    """Return the seconds of a gradient step of SAC with hindsight, drawing included."""
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.logger import configure

    options: dict[str, Any] = {"replay_buffer_class": HerReplayBuffer, "buffer_size": ROWS, "learning_starts": ROWS}
    model = make_model(SimpleNamespace(**vars(task), algorithm="sac"), GoalEnv(task), **options)
    model.learn(10_000)  # which only collects
    model.set_logger(configure(None, []))

    def train() -> None:
        model.train(gradient_steps=task.steps, batch_size=task.minibatch_size)

    train()
    return min(cpu_times(train, task.calls)) / task.steps


def whole(task: SimpleNamespace) -> float:
    """Return the seconds of a run of DQN on CartPole, everything included but Python's start and the import of gym."""
    began = time.process_time()
    make_model(task, gym.make("CartPole-v1"), **CART_POLE).learn(task.env_steps)
    return time.process_time() - began


if __name__ == "__main__":
    answer(step, goal_step, whole)
