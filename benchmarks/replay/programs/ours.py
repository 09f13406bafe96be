"""Our off-policy learner, on one thread: `python -m benchmarks.replay.programs.ours FUNCTION JSON`.

Prints CPU seconds.
"""

from __future__ import annotations

import tempfile
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import actor_learner as al
from actor_learner import algorithms
from actor_learner.learner.replay import ReplayLearner
from actor_learner.spaces.structure import action_structure
from benchmarks.batches import random_batch
from benchmarks.programs import answer, cpu_times

ROWS = 50_000


def step(task: SimpleNamespace) -> float:
    """Return the seconds of a gradient step, drawing its rows included: the least of a few calls' means."""
    learner = make_learner(task)
    buffer = learner.make_buffer(32, action_masks=False)
    space = learner.spaces.observation_space
    batch = random_batch(space, learner.action_space, 32, 512 if task.observation else 8)
    learner._prepare_replay(batch)
    newest = buffer.add(batch)
    while buffer.next_column < 2 * 512 and len(buffer) < ROWS:
        newest = buffer.add(batch)
    update, compiled, _ = learner._prepare_replay(batch)
    learner._slots = task.steps

    def learn() -> None:
        learner._learn(update, compiled, buffer, task.steps, 0, newest)

    learn()
    times = cpu_times(learn, task.calls)
    return min(times) / task.steps


def make_learner(task: SimpleNamespace) -> ReplayLearner:
    """Return a learner of the task's network and algorithm."""
    image = Box(0, 255, (84, 84, 4), np.uint8)
    observation = Box(-np.inf, np.inf, (task.observation,), np.float32) if task.observation else image
    options: dict[str, Any] = {"minibatch_size": task.minibatch_size, "learning_starts": 0, "buffer_size": ROWS}
    options |= getattr(task, "options", {})
    kind: Any = algorithms.BY_NAME[task.algorithm]
    if issubclass(kind, al.DQN):
        actions: Any = Discrete(task.actions)
        options["buffer_size"] = ROWS if task.observation else 2048
        options["max_grad_norm"] = task.max_grad_norm
    else:
        actions = Box(-1, 1, (task.actions,), np.float32)
    algorithm = kind(**options)
    network = al.default_network(
        observation,
        actions,
        hidden_sizes=(256, 256),
        activation="relu",
        orthogonal_init=False,
        **algorithm.network_options(action_structure(actions)),
    )
    learner = al.Learner(network, algorithm, action_space=actions, observation_space=observation, total_steps=1_000_000)
    assert isinstance(learner, ReplayLearner)
    return learner


def on_policy_step(task: SimpleNamespace) -> float:
    """Return the seconds of a gradient step of PPO or PQN: an update's by its number, the least of a few."""
    observation, actions = Box(-np.inf, np.inf, (task.observation,), np.float32), Discrete(task.actions)
    kind: Any = algorithms.BY_NAME[task.algorithm]
    algorithm = kind(epochs=task.epochs, minibatch_size=task.minibatch_size)
    sizes: dict[str, Any] = {"hidden_sizes": (256, 256), "activation": "relu"}
    options = algorithm.network_options(action_structure(actions))
    network = al.default_network(observation, actions, **sizes, layer_norm=task.algorithm == "pqn", **options)
    learner = al.Learner(network, algorithm, action_space=actions, total_steps=10**9)
    batch = random_batch(observation, actions, task.steps, task.columns)
    learner.update(batch)
    minibatches = task.epochs * -(-task.steps * task.columns // task.minibatch_size)
    return min(cpu_times(lambda: learner.update(batch), task.calls)) / minibatches


def draw(task: SimpleNamespace) -> float:
    """Return the seconds of drawing a minibatch of 256 rows with goals, of 64 at once."""
    spaces = goal_spaces(task)
    kind: dict[str, Any] = {"hindsight": al.Hindsight("future", 4, sparse_reward)} if task.hindsight else {}
    buffer = al.ReplayBuffer(*spaces, ROWS, unroll_length=50, **kind)
    add_goals(buffer)
    buffer.sample(256, 64)
    return min(cpu_times(lambda: buffer.sample(256, 64), task.calls)) / 64


def goal_step(task: SimpleNamespace) -> float:
    """Return the seconds of a gradient step of SAC on observations with goals, drawing included."""
    observation, actions = goal_spaces(task)
    algorithm = al.SAC(learning_starts=0, buffer_size=ROWS, hindsight="future" if task.hindsight else None)
    sizes: dict[str, Any] = {"hidden_sizes": (256, 256), "activation": "relu", "orthogonal_init": False}
    options = algorithm.network_options(action_structure(actions))
    network = al.default_network(observation, actions, **sizes, **options)
    given: dict[str, Any] = {"compute_reward": sparse_reward} if task.hindsight else {}
    spaces: dict[str, Any] = {"action_space": actions, "observation_space": observation}
    learner = al.Learner(network, algorithm, total_steps=10**9, **spaces, **given)
    assert isinstance(learner, ReplayLearner)
    add_goals(learner.make_buffer(50, action_masks=False))
    learner.learn(task.steps)
    return min(cpu_times(lambda: learner.learn(task.steps), task.calls)) / task.steps


def goal_spaces(task: SimpleNamespace) -> tuple[Any, Any]:
    """Return the spaces of FetchReach: 10 numbers, goals of 3, actions of 4."""
    goal = Box(-np.inf, np.inf, (3,), np.float32)
    observation = Dict(
        observation=Box(-np.inf, np.inf, (task.observation,), np.float32), achieved_goal=goal, desired_goal=goal
    )
    return observation, Box(-1, 1, (task.actions,), np.float32)


def sparse_reward(achieved: Any, desired: Any, infos: Any) -> Any:
    return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def add_goals(buffer: al.ReplayBuffer) -> None:
    """Fill a buffer with episodes of 50 random steps."""
    rng = np.random.default_rng(0)
    spaces = buffer.spaces
    actions = [leaf.shape for leaf in spaces.action.leaves]
    for _ in range(ROWS // 50):
        observations = {
            name: rng.normal(size=(51, *space.shape)).astype(np.float32)
            for name, space in spaces.observation_space.spaces.items()
        }
        observations["desired_goal"][:] = observations["desired_goal"][0]
        rewards = sparse_reward(observations["achieved_goal"][1:], observations["desired_goal"][1:], None)
        buffer.add_episode(
            observations, rng.uniform(-1, 1, (50, *actions[0])), rewards, terminated=False, squashed=True
        )


def whole(task: SimpleNamespace) -> float:
    """Return the seconds of a run of DQN on CartPole, everything included but Python's start."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"num_actors": 0, "run_dir": f"{folder}/run", "quiet": True}
        al.train(al.preset("CartPole-v1", algorithm="dqn", total_steps=task.env_steps, **options))
    return time.process_time() - began


if __name__ == "__main__":
    answer(step, on_policy_step, draw, goal_step, whole)
