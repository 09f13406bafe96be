"""CartPole-v1 whose observations carry their origin, and that misbehaves on command; a check of the batches with them.

Actors import this module: it needs only NumPy and Gymnasium. For Linux.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

Array = np.ndarray[Any, Any]

STATE_COLUMNS = 4  # CartPole's own; the stamps follow, whole numbers below 2**24, which float32 holds exactly
ACTOR, ENV, PROCESS, INCARNATION, STEPS, EPISODE_STEPS, ACTION, CHECKSUM = range(STATE_COLUMNS, STATE_COLUMNS + 8)
COLUMNS = CHECKSUM + 1

MISDEEDS = ("raise", "exit", "hang", "spin", "disconnect", "nan", "slow", "flood")
"""The commands of the board, numbered from 1."""
EXIT_CODE, SLOW_STEPS, _FLOOD_BYTES, _FOR_EVER = 3, 2, 2 << 20, 1e6
_NUMBERS = itertools.count()


class Board:
    """A file that the driver and all actors map: a row of int64 words for each actor. Times are monotonic nanoseconds.

    COMMAND: a misdeed that the driver asks for. The environment sets it to 0, counts it in TAKEN and writes TAKEN_AT.
    LIVES: the processes that this actor has had. PROCESS_ID, STEPS_DONE, FIRST_ROW_AT: of the present one.
    """

    COMMAND, TAKEN, TAKEN_AT, LIVES, PROCESS_ID, STEPS_DONE, FIRST_ROW_AT = range(7)
    WORDS = 8

    def __init__(self, path: Path, num_actors: int = 0) -> None:
        """Open the file, or make it for `num_actors`."""
        if num_actors:
            path.write_bytes(bytes(8 * self.WORDS * num_actors))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.words = np.frombuffer(self._map, np.int64).reshape(-1, self.WORDS)


def actor_number() -> int:
    """Return the number of the actor that this process is, from its command line; -1 for other processes."""
    words = Path("/proc/self/cmdline").read_text().split("\0")
    return next((int(word.removeprefix("actor-")) for word in words if word.startswith("actor-")), -1)


class StampedCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1; the stamps follow the state in each observation. Without a board it only stamps.

    by_time: without a board, the incarnation is the time at which the process began, in milliseconds.
    """

    def __init__(self, board: str | None = None, slow_seconds: float = 1.0, *, by_time: bool = False) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True))
        self.observation_space = Box(-np.inf, np.inf, (COLUMNS,), np.float32)
        actor, self._env = actor_number(), next(_NUMBERS)
        self._slow_seconds, self._slow_steps, self._nan = slow_seconds, 0, False
        self._steps = self._episode_steps = 0
        self._words: Any = [0] * Board.WORDS
        if by_time:
            self._words[Board.LIVES] = int(1000 * time.monotonic()) % (1 << 23)
        if board is not None and actor >= 0:
            self._words = Board(Path(board)).words[actor].data
            if self._env == 0:  # a new process
                self._words[Board.STEPS_DONE] = self._words[Board.FIRST_ROW_AT] = 0
                self._words[Board.LIVES] += 1
                self._words[Board.PROCESS_ID] = os.getpid()
        self._stamp = np.zeros(COLUMNS, np.float32)
        self._stamp[[ACTOR, ENV, PROCESS, INCARNATION]] = actor, self._env, os.getpid(), self._words[Board.LIVES]

    def reset(self, **kwargs: Any) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._episode_steps = 0
        return self._stamp_row(observation, -1), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        if self._words[Board.COMMAND]:
            self._misbehave()
        if self._slow_steps:
            self._slow_steps -= 1
            time.sleep(self._slow_seconds)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        self._episode_steps += 1
        if self._env == 0:
            self._words[Board.STEPS_DONE] = self._steps
            if self._steps == 1:
                self._words[Board.FIRST_ROW_AT] = time.monotonic_ns()
        return self._stamp_row(observation, action), reward, terminated, truncated, info

    def _stamp_row(self, observation: Array, action: int) -> Array:
        row = self._stamp.copy()
        row[:STATE_COLUMNS] = observation
        row[STEPS], row[EPISODE_STEPS], row[ACTION] = self._steps, self._episode_steps, action
        row[CHECKSUM] = checksum(row)
        if self._nan:
            row[0] = np.nan
        return row

    def _misbehave(self) -> None:
        words = self._words
        misdeed, words[Board.COMMAND] = MISDEEDS[words[Board.COMMAND] - 1], 0
        words[Board.TAKEN_AT] = time.monotonic_ns()
        words[Board.TAKEN] += 1
        match misdeed:
            case "raise":
                raise ZeroDivisionError("asked to")
            case "exit":
                os._exit(EXIT_CODE)
            case "hang":
                time.sleep(_FOR_EVER)
            case "spin":
                sum(iter(int, 1))  # in C, for ever, without releasing the interpreter's lock
            case "disconnect":
                os.closerange(3, 1000)
                time.sleep(_FOR_EVER)
            case "nan":
                self._nan = True
            case "slow":
                self._slow_steps = SLOW_STEPS
            case "flood":
                for line in range(_FLOOD_BYTES // 1000):
                    os.write(1, f"{line:999}\n".encode())
                for _ in range(_FLOOD_BYTES // 65536):
                    os.write(2, bytes(65536))  # a line without an end


def checksum(rows: Array) -> Array:
    """Hash all columns but the last: `[..., COLUMNS]` float32 -> `[...]`, below 2**24; zeros don't give 0."""
    bits = np.ascontiguousarray(rows[..., :CHECKSUM]).view(np.uint32)
    return (np.bitwise_xor.reduce(bits, axis=-1) ^ 0x5A5A5A) & 0xFFFFFF


class WrongBatchError(Exception):
    """A batch differs from what the environments returned."""


class _Piece(NamedTuple):
    """Steps `[start, stop)` of an environment, and its observations before and after them."""

    start: int
    stop: int
    first: bytes
    last: bytes


class BatchCheck:
    """Checks every batch of a pool of `StampedCartPole`, in the order of collection.

    reported: Whether the pool reports each process that takes another's place. On a cluster, some never fill a column.
    """

    def __init__(self, envs_per_actor: int, max_policy_lag: int, *, reported: bool = True) -> None:
        self._envs_per_actor, self._lag, self._reported = envs_per_actor, max_policy_lag, reported
        self._incarnations: dict[int, int] = {}
        self._pieces: dict[tuple[int, int, int], list[_Piece]] = {}
        self._last_batch: dict[tuple[int, int, int], int] = {}
        self.processes: dict[tuple[int, int], int] = {}  # of each actor and incarnation
        self.batches = self.rows = 0

    def check(self, trajectory: Any, restarts: Any = ()) -> None:
        """Check a batch. Raises WrongBatchError. restarts: what the pool reports while it collects the batch."""
        for restart in restarts:
            self._incarnations[restart.actor] = restart.incarnation
        for column in range(trajectory.valid.shape[1]):
            try:
                self._check_column(trajectory, column)
            except WrongBatchError as error:
                raise WrongBatchError(f"Batch {self.batches}, column {column}: {error}") from None
        if self._lag <= 1:
            _expect(len(set(trajectory.env_index)) == len(trajectory.env_index), "an environment has two columns")
        self.batches += 1
        self.rows += int(trajectory.valid.sum())

    def _check_column(self, trajectory: Any, column: int) -> None:
        valid = trajectory.valid[:, column]
        length = int(valid.sum())
        _expect(valid[:length].all(), "rows are missing in the middle")
        cut_short = length and (trajectory.truncated | trajectory.terminated)[length - 1, column]  # as by an exception
        _expect(length == len(valid) or self._lag > 1 or cut_short, f"it ends after {length} rows")
        rows = np.concatenate([trajectory.observation[:length, column], trajectory.observation[-1:, column]])
        _expect((checksum(rows) == rows[:, CHECKSUM]).all(), "a row's checksum is wrong")
        stamps = rows[:, STATE_COLUMNS:].astype(np.int64)
        stamp = {name: stamps[:, name - STATE_COLUMNS] for name in range(ACTOR, CHECKSUM)}
        for name in (ACTOR, ENV, PROCESS, INCARNATION):
            _expect((stamp[name] == stamp[name][0]).all(), "it holds rows of several environments or processes")
        actor, env, process, incarnation = (int(stamp[name][0]) for name in (ACTOR, ENV, PROCESS, INCARNATION))
        _expect(trajectory.env_index[column] == actor * self._envs_per_actor + env, "env_index is another's")
        _expect((np.diff(stamp[STEPS]) == 1).all(), f"the steps don't count up one by one: {stamp[STEPS].tolist()}")
        self._check_answers(trajectory, column, length, stamp)
        replaced = self._reported and incarnation - 1 > self._incarnations.get(actor, 0)
        _expect(not replaced, "the actor was replaced without a report")
        known = self.processes.setdefault((actor, incarnation), process)
        _expect(known == process, f"process {process} replaced {known} without a report")
        piece = _Piece(int(stamp[STEPS][0]), int(stamp[STEPS][-1]), rows[0].tobytes(), rows[-1].tobytes())
        self._join((actor, env, incarnation), piece)

    def _check_answers(self, trajectory: Any, column: int, length: int, stamp: dict[int, Array]) -> None:
        """Check that each action reached the environment, and that each episode's end is where it was."""
        ended = (trajectory.terminated | trajectory.truncated)[:length, column]
        if 0 < length < len(trajectory.valid):  # cut off by the pool, which resets nothing
            ended[-1] = stamp[EPISODE_STEPS][-1] == 0
        answered = np.where(ended, -1, trajectory.action[:length, column])
        _expect((stamp[ACTION][1:] == answered).all(), "an action isn't what the environment received")
        counted = np.where(ended, 0, stamp[EPISODE_STEPS][:-1] + 1)
        _expect((stamp[EPISODE_STEPS][1:] == counted).all(), "an episode's end isn't where the environment had it")
        _expect((trajectory.reward[:length, column] == 1).all(), "a reward isn't CartPole's")

    def _join(self, life: tuple[int, int, int], piece: _Piece) -> None:
        """Join a column with the earlier columns of the same environment in the same process."""
        joined: list[_Piece] = []
        for part in sorted([*self._pieces.get(life, ()), piece]):
            if joined and joined[-1].stop >= part.start:
                before = joined.pop()
                _expect(before.stop == part.start, f"the steps from {part.start} on are in two columns")
                _expect(before.last == part.first, "it doesn't begin with the observation that ended the one before")
                part = _Piece(before.start, part.stop, before.first, part.last)
            joined.append(part)
        self._pieces[life], self._last_batch[life] = joined, self.batches
        _expect(len(joined) <= 1 + self._lag * (self._lag > 1), f"steps are missing before {joined[-1].start}")
        if self._lag <= 1:
            _expect(joined[0].start == 0, f"steps are missing before {joined[0].start}")

    def finish(self) -> None:
        """Check that all steps arrived that were due by now. Raises WrongBatchError."""
        for life, pieces in self._pieces.items():
            if self.batches - self._last_batch[life] > self._lag + 2:
                whole = len(pieces) == 1 and pieces[0].start == 0
                ranges = ", ".join(f"{piece.start} to {piece.stop}" for piece in pieces)
                _expect(whole, f"Steps of (actor, env, incarnation) {life} are missing: there are {ranges}")


def _expect(condition: Any, otherwise: str) -> None:
    if not condition:
        raise WrongBatchError(otherwise)
