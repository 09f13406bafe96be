"""Two speeds measured in turns, as a ratio with an interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actor_learner.reports.curves import bootstrap_interval


class Ratio(NamedTuple):
    """The median of the rounds' ratios, and between what it lies with 95% (bootstrap over the rounds)."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def ratio_of(these: Sequence[float], others: Sequence[float]) -> Ratio:
    """How many times faster these were: round by round, so that what slows a round down slows both."""
    ratios = [this / other for this, other in zip(these, others, strict=True)]
    low, high = bootstrap_interval(np.log(ratios)[:, None])
    return Ratio(statistics.median(ratios), float(np.exp(low[0])), float(np.exp(high[0])))
