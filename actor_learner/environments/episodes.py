"""Returns, lengths and info entries of finished episodes, in any autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from actor_learner.system.types import Array


class Episodes(NamedTuple):
    """The K episodes that ended in one step, ordered by environment."""

    indices: Array  # [K] int64, the environments
    returns: Array  # [K] float32, sums of the raw rewards
    lengths: Array  # [K] float32, env steps
    info: dict[str, Array]  # the `info_keys` of the last step's info: name -> [K] float32, NaN where absent


class EpisodeStatistics:
    """Sums of the running episodes. Gymnasium's own vector wrapper forgets them all at a masked reset.

    It reports the entries `info_keys` of `info`. With `only_recorded` it reports only ends with `info["episode"]`: for
    a `RecordEpisodeStatistics` inside wrappers that end episodes early, as at a lost life.
    """

    def __init__(self, num_envs: int, info_keys: Sequence[str], *, only_recorded: bool = False) -> None:
        self.returns = np.zeros(num_envs)
        self.first_step = np.zeros(num_envs, dtype=np.int64)
        self._info_keys = tuple(info_keys)
        self._only_recorded = only_recorded

    def start(self, rows: Array | slice, step: int) -> None:
        """Start new episodes in `rows`, after env step `step`."""
        self.returns[rows] = 0.0
        self.first_step[rows] = step

    def finish(self, ended: Array, step: int, infos: Sequence[dict[str, Any]]) -> Episodes | None:
        """Return the episodes that end (bool [b]) at env step `step`, or None.

        infos: Vector infos of the last step; the first one that has an entry gives it.
        """
        rows = np.flatnonzero(ended)
        recorded = [_recorded_episode(infos, row) for row in rows.tolist()]
        if self._only_recorded:
            rows = rows[[record is not None for record in recorded]]
            recorded = [record for record in recorded if record is not None]
        if not len(rows):
            return None
        returns = self.returns[rows].astype(np.float32)
        lengths = (step - self.first_step[rows]).astype(np.float32)
        for place, record in enumerate(recorded):
            if record is not None:
                returns[place], lengths[place] = record
        return Episodes(rows, returns, lengths, self._info(rows, infos))

    def _info(self, rows: Array, infos: Sequence[dict[str, Any]]) -> dict[str, Array]:
        columns = {}
        for key in self._info_keys:
            values = [_number(_entry(infos, key, row)) for row in rows.tolist()]
            if any(value is not None for value in values):
                columns[key] = np.array([np.nan if value is None else value for value in values], dtype=np.float32)
        return columns


def _entry(infos: Sequence[dict[str, Any]], key: str, row: int) -> Any:
    """Return `info[key]` of one environment from vector infos, in which `_key` masks the rows that have it, or None."""
    for info in infos:
        values, mask = info.get(key), info.get(f"_{key}")
        if values is None or (mask is not None and not mask[row]):
            continue
        return values[row] if isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) else None
    return None


def _recorded_episode(infos: Sequence[dict[str, Any]], row: int) -> tuple[float, float] | None:
    """Return an episode's return and length from a wrapper's own `info["episode"]`, or None."""
    for info in infos:
        episode, mask = info.get("episode"), info.get("_episode")
        if isinstance(episode, dict) and (mask is None or mask[row]):
            numbers = [_number(_entry([episode], key, row)) for key in ("r", "l")]
            if numbers[0] is not None and numbers[1] is not None:
                return numbers[0], numbers[1]
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return float(value) if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)) else None
