"""Returns, lengths and info entries of finished episodes, whatever the autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Episodes(NamedTuple):
    """The episodes that ended in one step; K of them, ordered by environment.

    Attributes:
        indices: [K] int64, which environment.
        returns: [K] float32, sum of the raw rewards.
        lengths: [K] float32, env steps.
        info: `info_keys` entries of the last step's info that were there: name -> [K] float32, NaN where absent.
    """

    indices: Array
    returns: Array
    lengths: Array
    info: dict[str, Array]


class EpisodeStatistics:
    """Sums of the running episodes. Gymnasium's own vector wrapper forgets them all at a masked reset."""

    def __init__(self, num_envs: int, info_keys: Sequence[str], *, only_recorded: bool = False) -> None:
        """Starts with no episode running.

        Args:
            num_envs: Number of environments.
            info_keys: Names of the entries of `info` to report.
            only_recorded: Report only ends that come with `info["episode"]`. True where `RecordEpisodeStatistics` lies
                inside wrappers that end episodes early, as at a lost life.
        """
        self.returns = np.zeros(num_envs)
        self.first_step = np.zeros(num_envs, dtype=np.int64)
        self._info_keys = tuple(info_keys)
        self._only_recorded = only_recorded

    def start(self, rows: Array | slice, step: int) -> None:
        """New episodes begin after env step `step` in `rows`."""
        self.returns[rows] = 0.0
        self.first_step[rows] = step

    def finish(self, ended: Array, step: int, infos: Sequence[dict[str, Any]]) -> Episodes | None:
        """The episodes that end at env step `step`; None where none is to be reported.

        Args:
            ended: [b] bool.
            step: Number of steps so far, this one included.
            infos: Where to look for the last step's info, in vector form, best first.
        """
        rows = np.flatnonzero(ended)
        recorded = [_recorded_episode(infos, row) for row in rows.tolist()]
        if self._only_recorded:
            kept = [place for place, record in enumerate(recorded) if record is not None]
            rows, recorded = rows[kept], [recorded[place] for place in kept]
        if not len(rows):
            return None
        returns = self.returns[rows].astype(np.float32)
        lengths = (step - self.first_step[rows]).astype(np.float32)
        for place, record in enumerate(recorded):
            if record is not None:
                returns[place], lengths[place] = record
        return Episodes(rows, returns, lengths, self._info(rows, infos))

    def _info(self, rows: Array, infos: Sequence[dict[str, Any]]) -> dict[str, Array]:
        found = {}
        for key in self._info_keys:
            values = [_number(entry(infos, key, row)) for row in rows.tolist()]
            if any(value is not None for value in values):
                found[key] = np.array([np.nan if value is None else value for value in values], dtype=np.float32)
        return found


def entry(infos: Sequence[dict[str, Any]], key: str, row: int) -> Any:
    """`info[key]` of one environment from vector infos, where a mask `_key` says which rows have it; else None."""
    for info in infos:
        values, mask = info.get(key), info.get(f"_{key}")
        if values is None or (mask is not None and not mask[row]):
            continue
        return values[row] if isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) else None
    return None


def _recorded_episode(infos: Sequence[dict[str, Any]], row: int) -> tuple[float, float] | None:
    """Return and length of a wrapper's own `info["episode"]`."""
    for info in infos:
        episode, mask = info.get("episode"), info.get("_episode")
        if isinstance(episode, dict) and (mask is None or mask[row]):
            numbers = [_number(entry([episode], key, row)) for key in ("r", "l")]
            if numbers[0] is not None and numbers[1] is not None:
                return numbers[0], numbers[1]
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return float(value) if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)) else None
