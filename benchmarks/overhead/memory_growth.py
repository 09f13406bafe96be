"""Whether memory grows over a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

_FEWEST = 20


def growth(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """From the beginning of the second fifth to the end: medians of a twentieth of the samples (at least 3) at each.

    samples: by kind of memory, in MB, at equal distances. "growth" is a fraction; empty where there are too few.
    """
    if len(samples) < _FEWEST:
        return {"samples": len(samples), "growth": {}}
    size = max(3, len(samples) // 20)
    early, late = samples[len(samples) // 5 :][:size], samples[-size:]
    begin, end = (
        {kind: statistics.median(sample[kind] for sample in part) for kind in early[0]} for part in (early, late)
    )
    return {
        "samples": len(samples),
        "after_a_fifth": {kind: round(value, 1) for kind, value in begin.items()},
        "end": {kind: round(value, 1) for kind, value in end.items()},
        "growth": {kind: round(end[kind] / begin[kind] - 1, 5) for kind in begin},
    }
