"""Ours: `python -m benchmarks.recurrent.programs.ours run|update|acting|first_update JSON`; prints JSON.

All times are CPU seconds of this process, on one thread.
"""

from __future__ import annotations

import functools
import statistics
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.policy.export.exporting import export_policy
from actor_learner.system.keras_import import import_keras
from benchmarks.batches import random_batch
from benchmarks.programs import answer, cpu_times

import_keras()

import keras  # noqa: E402
from keras import layers  # noqa: E402

OBSERVATIONS, ACTIONS = Box(-10, 10, (8,), np.float32), Discrete(4)
CELLS = {"lstm": layers.LSTMCell, "gru": layers.GRUCell}


def memory(kind: str, units: int) -> Any:
    """Return a layer `[N, F]` -> `[N, units]`; "none" remembers nothing."""
    if kind == "none":
        return layers.Dense(units, activation="tanh")
    return al.AttentionMemory(32, size=units) if kind == "attention" else al.Recurrent(CELLS[kind](units))


def network(kind: str, units: int) -> keras.Model:
    """Return a dense layer, a memory and two heads."""
    observation = keras.Input(OBSERVATIONS.shape)
    hidden = memory(kind, units)(layers.Dense(64, activation="tanh")(observation))
    return keras.Model(observation, (layers.Dense(4)(hidden), layers.Dense(1)(hidden)))


def like_sb3(observation_space: Any, action_space: Any, units: int) -> keras.Model:
    """Return RecurrentPPO's network with one shared LSTM: a dense layer for each head behind it."""
    observation = keras.Input(observation_space.shape)
    hidden = al.Recurrent(layers.LSTMCell(units))(observation)
    policy, value = (layers.Dense(64, activation="tanh")(hidden) for _ in range(2))
    return keras.Model(observation, (layers.Dense(action_space.n)(policy), layers.Dense(1)(value)))


def run(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of an env step and of an update, from the fourth batch on."""
    with al.ActorPool(
        "actor_learner/CartPoleNoVelocity-v0",
        lambda *spaces: like_sb3(*spaces, task.units),
        num_actors=0,
        envs_per_actor=task.envs,
        unroll_length=task.steps,
    ) as actors:
        algorithm = al.PPO(minibatch_size=task.minibatch_size, epochs=task.epochs, learning_rate=1e-3)
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, device="cpu")

        def batch() -> float:
            trajectory = actors.collect()
            (update,) = cpu_times(lambda: learner.update(trajectory), 1)
            actors.publish(learner.get_weights())
            return update

        for _ in range(3):
            batch()
        begun = time.process_time()
        updates = [batch() for _ in range(task.batches)]
        total = time.process_time() - begun
    steps = task.batches * task.envs * task.steps
    return {"env_step": total / steps, "update": sum(updates) / len(updates)}


def learner_and_batch(task: SimpleNamespace) -> tuple[al.Learner, al.Trajectory]:
    """Return a learner, and a batch of four minibatches."""
    built = network(task.kind, task.units)
    columns = 4 * task.columns
    state = al.Policy.from_network(built, ACTIONS, observation_space=OBSERVATIONS).initial_state(columns)
    trajectory = random_batch(OBSERVATIONS, ACTIONS, task.steps, columns, state=state)
    algorithm = al.PPO(minibatch_size=task.steps * task.columns, epochs=task.epochs)
    return al.Learner(built, algorithm, action_space=ACTIONS, device="cpu"), trajectory


def update(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of a minibatch: the median of updates of `4 x epochs` minibatches, with all that goes by."""
    learner, trajectory = learner_and_batch(task)
    learner.update(trajectory)
    times = cpu_times(lambda: learner.update(trajectory), task.updates)
    return {"minibatch": statistics.median(times) / (4 * task.epochs)}


def first_update(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of the first update, nearly all of which is tracing and compiling."""
    learner, trajectory = learner_and_batch(task)
    return {"first_update": cpu_times(lambda: learner.update(trajectory), 1)[0]}


def acting(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of a step of each kind of policy, in turns: medians of the rounds."""
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((task.rows, 8)).astype(np.float32)
    policies = {}
    for kind in ("none", "gru", "lstm", "attention"):
        exported = export_policy(network(kind, task.units), ACTIONS, task.rows, OBSERVATIONS)
        policies[kind] = al.Policy(exported, 0)
        policies[kind].step_leaves((observation,))

    def steps(policy: al.Policy) -> None:
        for _ in range(task.calls):
            policy.step_leaves((observation,))

    found: dict[str, list[float]] = {kind: [] for kind in policies}
    for _ in range(task.rounds):
        for kind, policy in policies.items():
            found[kind] += cpu_times(functools.partial(steps, policy), 1)
    return {kind: statistics.median(times) / task.calls for kind, times in found.items()}


if __name__ == "__main__":
    gym.logger.min_level = gym.logger.ERROR
    answer(run, update, first_update, acting)
