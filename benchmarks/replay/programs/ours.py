"""Our off-policy learner, on one thread: `python -m benchmarks.replay.programs.ours FUNCTION JSON`.

Prints CPU seconds.
"""

from __future__ import annotations

import tempfile
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

import actor_learner as al
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
    algorithm: Any
    if task.algorithm == "dqn":
        actions: Any = Discrete(task.actions)
        options["buffer_size"] = ROWS if task.observation else 2048
        algorithm = al.DQN(**options, max_grad_norm=task.max_grad_norm)
    else:
        actions = Box(-1, 1, (task.actions,), np.float32)
        algorithm = al.SAC(**options)
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


def whole(task: SimpleNamespace) -> float:
    """Return the seconds of a run of DQN on CartPole, everything included but Python's start."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"num_actors": 0, "run_dir": f"{folder}/run", "quiet": True}
        al.train(al.preset("CartPole-v1", algorithm="dqn", total_steps=task.env_steps, **options))
    return time.process_time() - began


if __name__ == "__main__":
    answer(step, whole)
