"""The learner's side of a soak: a callback that checks every batch, causes the faults, and ends the run in time."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Box

import actor_learner as al
from benchmarks.faults.chaos import Chaos, schedule, unexplained
from benchmarks.faults.stamped import STATE_COLUMNS, BatchCheck, Board, WrongBatchError
from benchmarks.processes import memory_of

_MEMORY_SECONDS = 1.0
_CHECK_POLICY_EVERY = 20
_TOLERANCE = 1e-4
_SETTLE_SECONDS = 120.0
_LAYERS = ("policy_hidden_1", "policy_hidden_2", "logits")


def make_network(observation_space: Any, action_space: Any) -> keras.Model:
    """Return the default network for CartPole's own columns, without the stamps."""
    network = al.default_network(Box(-np.inf, np.inf, (STATE_COLUMNS,)), action_space)
    inputs = keras.Input(observation_space.shape)
    return keras.Model(inputs, network(inputs[:, :STATE_COLUMNS]))


class PolicyCheck:
    """Compares log-probabilities with those of the weights that a column names, recomputed in NumPy."""

    def __init__(self, network: keras.Model, max_policy_lag: int) -> None:
        paths = [variable.path for variable in network.weights]
        self._places = [
            next(place for place, path in enumerate(paths) if path.endswith(f"{layer}/{kind}"))
            for layer in _LAYERS
            for kind in ("kernel", "bias")
        ]
        self._lag = max_policy_lag
        self._versions = {0: network.get_weights()}
        self._shapes = [weight.shape for weight in self._versions[0]]
        self.columns = 0

    def add(self, version: int, weights: Any) -> None:
        """Add the published weights of a version, one vector."""
        parts = np.split(weights, np.cumsum([math.prod(shape) for shape in self._shapes])[:-1])
        self._versions[version] = [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        self._versions.pop(version - self._lag - 2, None)

    def check(self, trajectory: Any) -> None:
        """Check a batch. Raises WrongBatchError."""
        for column, version in enumerate(trajectory.policy_version.tolist()):
            if version not in self._versions:
                raise WrongBatchError(f"Column {column} names version {version}, which is too old or none.")
            rows = trajectory.valid[:, column]
            logits = self._logits(trajectory.observation[:-1, column][rows], self._versions[version])
            log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            chosen = np.take_along_axis(log_probs, trajectory.action[:, column][rows, None].astype(np.int64), -1)[:, 0]
            if not np.allclose(chosen, trajectory.behaviour_log_prob[:, column][rows], atol=_TOLERANCE):
                raise WrongBatchError(f"Column {column}: log-probabilities aren't those of version {version}.")
            self.columns += 1

    def _logits(self, observation: Any, weights: Any) -> Any:
        kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = (weights[place] for place in self._places)
        hidden = np.tanh(observation[:, :STATE_COLUMNS] @ kernel_1 + bias_1)
        logits = np.tanh(hidden @ kernel_2 + bias_2) @ kernel_3 + bias_3
        return logits - logits.max(-1, keepdims=True)


class Watch(al.callbacks.Callback):  # type: ignore[misc]
    """Checks what the pool collects, and starts a `Chaos` among its actors."""

    policies: PolicyCheck
    chaos: Chaos

    def __init__(self, board: Board, arguments: argparse.Namespace, log: Callable[[str], None]) -> None:
        super().__init__()
        self._board, self._arguments, self._log = board, arguments, log
        self.batches = BatchCheck(al.preset("CartPole-v1").envs_per_actor, arguments.lag)
        self.restarts: list[Any] = []
        self.memory: list[dict[str, float]] = []
        self._measured_at = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Wrap the pool's `collect` and `publish`: callbacks see no batches."""
        self.policies = PolicyCheck(self.model, self._arguments.lag)
        self._collect, self._publish = self.actors.collect, self.actors.publish
        self.actors.collect, self.actors.publish = self._collect_and_check, self._publish_and_keep
        self.chaos = Chaos(
            self._board,
            lambda: self.actors.pids,
            schedule(self._arguments.seed, self._arguments.fault_every, self._arguments.actors),
            60 * self._arguments.minutes,
            self.config.unroll_length,
            self._log,
        )

    def _collect_and_check(self, *arguments: Any, **options: Any) -> Any:
        trajectory = self._collect(*arguments, **options)
        self.restarts += self.actors.restarts
        self.batches.check(trajectory, self.actors.restarts)
        if self.actors.restarts or self.batches.batches % _CHECK_POLICY_EVERY == 0:
            self.policies.check(trajectory)
        return trajectory

    def _publish_and_keep(self, weights: Any) -> None:
        self._publish(weights)
        self.policies.add(self.actors.version, weights)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measure memory, let schedules end with the time, and end the run when all actors have recovered."""
        now, seconds = time.monotonic(), 60 * self._arguments.minutes
        if self.chaos.ident is None:  # the first update compiles, and all actors wait for it
            self.chaos.start()
        if now - self._measured_at > _MEMORY_SECONDS:
            self._measured_at = now
            self.memory.append(memory_of())
        elapsed = time.monotonic() - self.chaos.started
        self.learner.total_steps = int(self.learner.env_steps * max(1.0, seconds / elapsed))
        overdue = elapsed > seconds + _SETTLE_SECONDS
        if (self.chaos.over.is_set() and elapsed > seconds) or overdue or self.chaos.error:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self.chaos.stop()

    def check_end(self) -> None:
        """Check that no rows are missing. Raises WrongBatchError."""
        self.batches.finish()

    def problems(self) -> list[str]:
        """Describe what was wrong with the faults and the replacements."""
        found = unexplained(self.chaos.caused, self.restarts)
        found += [f"actor {fault.actor} never recovered from {fault.kind}" for fault in self.chaos.unsettled()]
        if self.chaos.error is not None:
            found.append(f"the driver failed: {self.chaos.error!r}")
        return found
