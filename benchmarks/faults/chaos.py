"""Faults of actors at random moments, the replacement that each must cause, and the check of every batch meanwhile."""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Box

import actor_learner as al
from benchmarks.faults.stamped import EXIT_CODE, MISDEEDS, STATE_COLUMNS, BatchCheck, Board, WrongBatchError
from benchmarks.harness import tell
from benchmarks.processes import memory_of

_SILENT = r"gave no sign of life for [\d.]+ s, in env\.step"
_STOPPED = r"gave no sign of life for [\d.]+ s, (in|outside of) env\.step"
_KILLED = r"was killed \(SIGKILL\), perhaps because memory ran out"

CAUSES: dict[str, str | None] = {
    "SIGKILL": _KILLED,
    "SIGKILL twice": _KILLED,
    "SIGSEGV": "was ended by SIGSEGV",
    "SIGSTOP": _STOPPED,
    "raise": r"failed: ZeroDivisionError: asked to \(.*stamped\.py, line \d+, in _misbehave\)",
    "exit": f"ended with exit code {EXIT_CODE}",
    "hang": _SILENT,
    "spin": _SILENT,
    "disconnect": _KILLED,  # by the pool, which lost the connection
    "nan": r"failed: .*(?i:nan|finite)",
    "slow": None,
    "flood": None,
}
"""The kinds of faults, and the cause that the pool must report for the replacement; None: no replacement."""

_SIGNALS = {kind: getattr(signal, kind.split()[0]) for kind in CAUSES if kind.startswith("SIG")}
_BAG = [*CAUSES, "SIGKILL", "SIGKILL"]
_MAX_PAUSE_SECONDS = 0.4  # seconds between the two kills: the second process is somewhere in its start
_POLL_SECONDS, _MEMORY_SECONDS, _SETTLE_SECONDS = 0.005, 1.0, 120.0
_CHECK_POLICY_EVERY, _TOLERANCE = 20, 1e-4


@dataclass(frozen=True)
class PlannedFault:
    """A fault to cause, `at` seconds after the beginning, in this actor, or in the next that has recovered."""

    at: float
    kind: str
    actor: int
    pause: float


def schedule(seed: int, every: float, num_actors: int) -> Iterator[PlannedFault]:
    """Yield faults without end, `every` seconds apart on average: each kind once, SIGKILL thrice, in random order."""
    chance, at = random.Random(seed), 0.0
    while True:
        for kind in chance.sample(_BAG, len(_BAG)):
            at += every * chance.uniform(0.5, 1.5)
            yield PlannedFault(at, kind, chance.randrange(num_actors), chance.uniform(0, _MAX_PAUSE_SECONDS))


@dataclass
class CausedFault:
    """A fault that was caused, and its recovery."""

    kind: str
    actor: int
    at: float  # seconds after the beginning
    caused_at: int  # nanoseconds of the monotonic clock; of the last kill, where there were two
    lives: int
    taken: int
    steps: int  # of the actor's first environment at that moment
    processes: list[int] = field(default_factory=list)  # that end by it
    recovery: float | None = None  # seconds from the fault to the first row of the replacement, if there is one
    over_at: int | None = None  # the moment of that row, or when the actor was seen to continue; None: not yet


class Chaos(threading.Thread):
    """A thread that causes faults in actors that have recovered from the last, and waits for the last recovery."""

    def __init__(
        self, board: Board, actors: Any, unroll_length: int, planned: Iterator[PlannedFault], seconds: float
    ) -> None:
        super().__init__(name="chaos", daemon=True)
        self.caused: list[CausedFault] = []
        self.over = threading.Event()  # set when no fault comes any more, and all actors have recovered
        self.error: BaseException | None = None
        self._board, self._actors, self._unroll_length = board, actors, unroll_length
        self._planned, self._seconds = planned, seconds
        self._newest: dict[int, CausedFault] = {}
        self._end = threading.Event()
        self.started = time.monotonic()

    def run(self) -> None:
        self.started = time.monotonic()
        try:
            self._cause_all()
            while not self._end.is_set() and not all([*map(self._is_settled, range(len(self._board.words)))]):
                self._end.wait(_POLL_SECONDS)
        except BaseException as error:
            self.error = error
        self.over.set()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def _cause_all(self) -> None:
        for planned in self._planned:
            if planned.at >= self._seconds or self._end.wait(max(0.0, self.started + planned.at - time.monotonic())):
                return
            actors = list(range(len(self._board.words)))
            in_turn = actors[planned.actor :] + actors[: planned.actor]
            while (actor := next(filter(self._is_settled, in_turn), None)) is None:
                if self._end.wait(_POLL_SECONDS):
                    return
            self._cause(planned, actor)

    def _is_settled(self, actor: int) -> bool:
        """Return whether the actor, or its replacement, has made an unroll since its last fault."""
        words, caused = self._board.words[actor], self._newest.get(actor)
        process, needed = int(words[Board.PROCESS_ID]), self._unroll_length
        if self._actors.pids.get(actor) != process:
            return False
        if caused is not None and CAUSES[caused.kind] is None:
            if words[Board.TAKEN] == caused.taken:
                return False
            needed += caused.steps
        elif caused is not None and (process in caused.processes or words[Board.LIVES] == caused.lives):
            return False
        if words[Board.STEPS_DONE] <= needed:
            return False
        if caused is not None and caused.over_at is None:
            self._settle(caused, words)
        return True

    def _settle(self, caused: CausedFault, words: Any) -> None:
        caused.over_at, after = time.monotonic_ns(), ""
        if CAUSES[caused.kind] is not None:
            caused.over_at = int(words[Board.FIRST_ROW_AT])
            if caused.kind not in _SIGNALS:
                caused.caused_at = int(words[Board.TAKEN_AT])
            caused.recovery = (caused.over_at - caused.caused_at) / 1e9
            after = f" {caused.recovery:.3f} s"
        self._log(time.monotonic() - self.started, f"actor {caused.actor}: continues{after} after {caused.kind}")

    def _log(self, at: float, text: str) -> None:
        tell(f"{at:8.2f} s  {text}")

    def _cause(self, planned: PlannedFault, actor: int) -> None:
        words, process = self._board.words[actor], self._actors.pids[actor]
        numbers = (int(words[word]) for word in (Board.LIVES, Board.TAKEN, Board.STEPS_DONE))
        caused = CausedFault(
            planned.kind, actor, time.monotonic() - self.started, time.monotonic_ns(), *numbers, [process]
        )
        self._log(caused.at, f"actor {actor}: {planned.kind}")
        if planned.kind in _SIGNALS:
            os.kill(process, _SIGNALS[planned.kind])
        else:
            words[Board.COMMAND] = 1 + MISDEEDS.index(planned.kind)
        if planned.kind == "SIGKILL twice":
            self._kill_replacement(caused, planned.pause)
        self._newest[actor] = caused
        self.caused.append(caused)

    def _kill_replacement(self, caused: CausedFault, pause: float) -> None:
        """Kill the replacement during its start."""
        while (process := self._actors.pids.get(caused.actor)) in (None, *caused.processes):
            if self._end.wait(_POLL_SECONDS):
                return
        time.sleep(pause)
        caused.caused_at = time.monotonic_ns()
        assert process is not None
        os.kill(process, signal.SIGKILL)
        caused.processes.append(process)


def is_alone(fault: CausedFault, caused: Sequence[CausedFault]) -> bool:
    """Return whether no other actor was out during this recovery: an actor without columns waits for the others."""
    others = [other for other in caused if other is not fault]
    end = fault.over_at or 0
    return not any(other.caused_at < end and (other.over_at or end) > fault.caused_at for other in others)


def find_unexplained(caused: Sequence[CausedFault], restarts: Sequence[Any]) -> list[str]:
    """Return the faults that the pool didn't report, and the replacements that no fault explains.

    restarts: all reports of the pool, in order. Of two deaths in a row, it may report only the last.
    """
    problems = []
    for actor in sorted({item.actor for item in (*caused, *restarts)}):
        reports = [restart for restart in restarts if restart.actor == actor]
        incarnation = 0
        for fault in (fault for fault in caused if fault.actor == actor):
            if (cause := CAUSES[fault.kind]) is None:
                continue
            incarnation += len(fault.processes)
            own = [restart for restart in reports if restart.incarnation <= incarnation]
            reports = reports[len(own) :]
            fits = all(re.match(cause, restart.cause) for restart in own)
            if not own or own[-1].incarnation != incarnation or not fits:
                causes = [(restart.incarnation, restart.cause) for restart in own]
                problems.append(f"actor {actor}, {fault.kind} after {fault.at:.2f} s: reported as {causes}")
        problems += [f"actor {actor}: no fault explains {restart.cause!r}" for restart in reports]
    return problems


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
            for layer in ("policy_hidden_1", "policy_hidden_2", "logits")
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

    def __init__(self, board: Board, arguments: argparse.Namespace) -> None:
        super().__init__()
        self._board, self._arguments = board, arguments
        self.batches = BatchCheck(al.preset("CartPole-v1", num_actors=arguments.actors).env_counts[0], arguments.lag)
        self.restarts: list[Any] = []
        self.memory: list[dict[str, float]] = []
        self._measured_at = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Wrap the pool's `collect` and `publish`: callbacks see no batches."""
        self.policies = PolicyCheck(self.model, self._arguments.lag)
        self._collect, self._publish = self.actors.collect, self.actors.publish
        self.actors.collect, self.actors.publish = self._collect_and_check, self._publish_and_remember
        faults = schedule(self._arguments.seed, self._arguments.fault_every, self._arguments.actors)
        seconds = 60 * self._arguments.minutes
        self.chaos = Chaos(self._board, self.actors, self.config.unroll_length, faults, seconds)

    def _collect_and_check(self, *arguments: Any, **options: Any) -> Any:
        trajectory = self._collect(*arguments, **options)
        self.restarts += self.actors.restarts
        self.batches.check(trajectory, self.actors.restarts)
        if self.actors.restarts or self.batches.batches % _CHECK_POLICY_EVERY == 0:
            self.policies.check(trajectory)
        return trajectory

    def _publish_and_remember(self, weights: Any) -> None:
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

    def problems(self) -> list[str]:
        """Describe what was wrong with the faults and the replacements."""
        found = find_unexplained(self.chaos.caused, self.restarts)
        lasting = [fault for fault in self.chaos.caused if fault.over_at is None]
        found += [f"actor {fault.actor} never recovered from {fault.kind}" for fault in lasting]
        if self.chaos.error is not None:
            found.append(f"the driver failed: {self.chaos.error!r}")
        return found
