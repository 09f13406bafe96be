"""Returns, lengths and info entries of finished episodes, in any autoreset mode."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from actor_learner.system.types import Array

DEFAULT_KEY = "is_success"
"""The one of `info_keys` that is reported without being asked for."""


class Episodes(NamedTuple):
    """The K episodes that ended in one step, ordered by environment."""

    indices: Array  # [K] int64, the environments
    returns: Array  # [K] float32, sums of the raw rewards
    lengths: Array  # [K] float32, env steps
    info: dict[str, Array]  # the `info_keys` of the last step's info: name -> [K] float32, NaN where absent


class _End(NamedTuple):
    """An environment's finished episode."""

    row: int
    total: float  # the sum of its rewards
    length: float
    info: dict[str, float]
    doubt: float | None  # the recorder's start time, of an end that counts only if the recorder starts over; else None


class EpisodeStatistics:
    """Sums of the running episodes. Gymnasium's own vector wrapper forgets them all at a masked reset.

    It reports the entries `info_keys` of `info`, where "a/b" is `info["a"]["b"]`. `recorders` are the
    `RecordEpisodeStatistics` of environments: one inside a wrapper that ends episodes doesn't see such an end, but its
    sums are the episode's. A truncation always ends an episode; where a wrapper terminates, the recorder starts over at
    the reset, unless it was only a lost life.

    bounded: a record longer than the count of steps isn't believed: a vector wrapper's goes on where a limit outside of
    it ended the episode.
    """

    def __init__(
        self,
        num_envs: int,
        info_keys: Sequence[str],
        recorders: Mapping[int, gym.wrappers.RecordEpisodeStatistics[Any, Any]] | None = None,
        *,
        bounded: bool = False,
    ) -> None:
        self.returns = np.zeros(num_envs)
        self.first_step = np.zeros(num_envs, dtype=np.int64)
        self._info_keys = tuple(info_keys)
        self._recorders, self._bounded = recorders or {}, bounded
        self._began: dict[int, float] = {}
        self._ends: list[_End] = []
        self._missing = dict.fromkeys(key for key in info_keys if key != DEFAULT_KEY)  # no episode has had them yet
        self._others: dict[str, None] = {}  # names of numbers in the infos
        self._finished = 0

    def start(self, rows: Array | slice, step: int) -> None:
        """Start new episodes in `rows`, after env step `step`."""
        self.returns[rows] = 0.0
        self.first_step[rows] = step
        self._note_beginnings()

    def finish(self, ended: Array, truncated: Array, step: int, infos: Sequence[dict[str, Any]]) -> None:
        """Take the episodes that end (bool [b]) at env step `step`.

        infos: Vector infos of the last step; the first one that has an entry gives it.
        """
        for row in np.flatnonzero(ended).tolist():
            record = _recorded_episode(infos, row)
            if self._bounded and record is not None and record[1] > step - self.first_step[row]:
                record = None
            doubt = None if record is not None or truncated[row] else self._began.get(row)
            total, length = self._running(row, step) if record is None else record
            entries = {key: number(_entry(infos, key, row)) for key in self._info_keys}
            info = {key: value for key, value in entries.items() if value is not None}
            self._ends.append(_End(row, total, length, info, doubt))
            self._finished += 1
            if self._missing:
                self._missing = {key: None for key in self._missing if key not in info}
                self._others |= {name: None for each in infos for name in _numbers(each, row)}

    def missing_info(self, least: int) -> tuple[list[str], list[str], int]:
        """Return, once, the `info_keys` that no episode had, the numbers that they had, and how many have ended.

        least: none are missed before so many episodes. The default key is never missed.
        """
        missing = list(self._missing) if self._finished >= least else []
        self._missing = {} if missing else self._missing
        return missing, sorted(self._others), self._finished

    def report(self, resetting: Array | None) -> Episodes | None:
        """Return the finished episodes, once each, or None. resetting: bool [b], rows with their reset to come."""
        if not self._ends:
            return None
        waiting: list[_End] = []
        ends: list[_End] = []
        for end in sorted(self._ends, key=operator.attrgetter("row")):
            if end.doubt is not None and resetting is not None and resetting[end.row]:
                waiting.append(end)
            elif end.doubt is None or self._recorders[end.row].episode_start_time != end.doubt:  # else it goes on
                ends.append(end)
        self._ends = waiting
        self._note_beginnings()
        if not ends:
            return None
        keys = [key for key in self._info_keys if any(key in end.info for end in ends)]
        info = {key: np.array([end.info.get(key, np.nan) for end in ends], dtype=np.float64) for key in keys}
        returns = np.array([end.total for end in ends], dtype=np.float64)
        lengths = np.array([end.length for end in ends], dtype=np.float64)
        return Episodes(np.array([end.row for end in ends]), returns, lengths, info)

    def _running(self, row: int, step: int) -> tuple[float, float]:
        """Return a running episode's return and length, of the recorder unless it has started over already."""
        recorder = self._recorders.get(row)
        if recorder is None or recorder.episode_start_time != self._began[row]:
            return float(self.returns[row]), float(step - self.first_step[row])
        return float(recorder.episode_returns), float(recorder.episode_lengths)

    def _note_beginnings(self) -> None:
        for row, recorder in self._recorders.items():
            self._began[row] = recorder.episode_start_time


def _entry(infos: Sequence[dict[str, Any]], key: str, row: int) -> Any:
    """Return `info[key]` of one environment from vector infos, in which `_key` masks the rows that have it, or None."""
    return next((value for info in infos if (value := _value(info, key, row)) is not None), None)


def _value(info: Mapping[str, Any], key: str, row: int) -> Any:
    values, mask = info.get(key), info.get(f"__{key}", info.get(f"_{key}"))  # an info may have had a `_key` of its own
    outer, _, inner = key.partition("/")
    if values is None and inner and isinstance(info.get(outer), Mapping):
        return _value(info[outer], inner, row)
    if values is None or (mask is not None and not mask[row]):
        return None
    return values[row] if isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) else None


def _numbers(info: Mapping[str, Any], row: int) -> Iterator[str]:
    """Yield the keys under which vector infos hold a number of one environment; "a/b" is `info["a"]["b"]`."""
    for key, values in info.items():
        if not isinstance(key, str) or key.startswith(("_", "episode/")) or key == "episode":
            continue
        if isinstance(values, Mapping):
            yield from (f"{key}/{inner}" for inner in _numbers(values, row))
        elif number(_value(info, key, row)) is not None:
            yield key


def _recorded_episode(infos: Sequence[dict[str, Any]], row: int) -> tuple[float, float] | None:
    """Return an episode's return and length from a wrapper's own `info["episode"]`, or None."""
    for info in infos:
        mask = info.get("_episode")
        if mask is None or mask[row]:
            numbers = [number(_value(info, f"episode/{key}", row)) for key in ("r", "l")]
            if numbers[0] is not None and numbers[1] is not None:
                return numbers[0], numbers[1]
    return None


def number(value: Any) -> float | None:
    """Return a number of an info as a float; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return float(value) if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)) else None
