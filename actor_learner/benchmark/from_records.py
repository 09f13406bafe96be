"""What a run's own records say about its speed; what they can't say, they leave open."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from actor_learner.benchmark.roofline import Cost, Parts, Prospect, prospects, roof
from actor_learner.benchmark.text import expectations
from actor_learner.reports.status import RunStatus, Summary, printable
from actor_learner.runs.directory import read_config
from actor_learner.runs.metrics import read_metrics
from actor_learner.runs.recorded_config import RecordedConfig

UNKNOWN = (
    "what each part takes alone: the parts are as they were beside each other, so the roof may be higher",
    "what the cores did for other programs meanwhile",
)
"""Of every run."""


def of_run(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Achieved, roof, shares and parts of a run, as JSON, from what it has recorded so far.

    The first update is left out: most of its time is compilation.

    Raises ValueError where there is no run, or fewer than three updates.
    """
    config, rows = read_config(run_dir), read_metrics(run_dir)
    rows = [row for row in rows if {"env_steps", "time_seconds"} <= row.keys()]
    batches = len(rows) - 1
    if batches < 2 or not rows[-1]["time_seconds"] > rows[0]["time_seconds"]:
        raise ValueError(
            f"A run says something about its speed from its third update on. Received: {len(rows)} updates in "
            f"{os.fspath(run_dir)!r}"
        )
    look = _look(config, rows)
    seconds, steps = (rows[-1][name] - rows[0][name] for name in ("time_seconds", "env_steps"))
    achieved = steps / seconds
    found: dict[str, Any] = {
        "run_dir": os.fspath(run_dir),
        "env": look.env,
        "algorithm": look.algorithm,
        "num_actors": look.num_actors,
        "max_policy_lag": config.integer("max_policy_lag") or 0,
        "achieved_steps_per_second": achieved,
        "batch_seconds": {"achieved": seconds / batches},
        "limited_by": None if look.limited_by is None else str(look.limited_by),
        "shares": {name: share for name, share in look.shares.items() if math.isfinite(share)},
    }
    unknown = list(UNKNOWN)
    parts, missing = _parts(config, rows, look, steps / batches, seconds / batches)
    if parts is None:
        return {**found, "roof_steps_per_second": None, "ratio": None, "expected": {}, "unknown": [*unknown, missing]}
    best = roof(parts)
    return {
        **found,
        "roof_steps_per_second": best.steps_per_second,
        "ratio": achieved / best.steps_per_second,
        "limit": best.limit,
        "expected": {prospect.change: prospect.gain for prospect in prospects(parts)},
        "parts": {name: vars(getattr(parts, name)) for name in ("env", "acting", "copying", "update")},
        "unknown": [*unknown, missing] if missing else unknown,
    }


def show_run(found: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    lines = [f"{found['env']}, {found['algorithm']}: {printable(found['run_dir'])}"]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items())
    lines.append(f"learner: learning, collecting; actors: env, acting, other, waiting: {shares}")
    achieved = f"achieved {found['achieved_steps_per_second']:,.0f} steps/s"
    if found["ratio"] is None:
        lines.append(achieved)
    else:
        lines.append(f"{achieved}, roof at least {found['roof_steps_per_second']:,.0f}: {found['ratio']:.0%} at most")
    changes = list(map(Prospect, found["expected"], found["expected"].values()))
    expected = "" if found["ratio"] is None else expectations(changes)
    lines.append(". ".join(filter(None, (found["limited_by"], expected))))
    lines += [f"not known: {what}" for what in found["unknown"]]
    return "\n".join(lines)


def _look(config: RecordedConfig, rows: Sequence[Mapping[str, float]]) -> RunStatus:
    summary = Summary(config, "")
    for row in rows:
        summary.add(row)
    return summary.look(over=True)


def _parts(
    config: RecordedConfig, rows: Sequence[Mapping[str, float]], look: RunStatus, steps: float, seconds: float
) -> tuple[Parts | None, str]:
    """The parts as they were, and what isn't known of them."""
    shares = look.shares
    if not all(math.isfinite(shares.get(name, math.nan)) for name in ("learning", "env", "acting", "other")):
        return None, "where the time went: the run hasn't recorded it"
    walls = {name: shares[name] * seconds for name in ("env", "acting", "other")}
    of_actor, of_learner = _cpu(rows, "cpu/actor_"), _cpu(rows, "cpu/learner")
    busy = sum(walls.values())
    computing = min(1.0, of_actor * seconds / busy) if of_actor is not None and busy else 1.0
    costs = {name: Cost(wall, wall * computing) for name, wall in walls.items()}
    learning = shares["learning"] * seconds
    update = Cost(learning, learning if of_learner is None else of_learner * seconds)
    missing = "CPU time: the run was too short to measure it, so all is taken to compute" if of_actor is None else ""
    return Parts(
        steps=steps,
        env=costs["env"],
        acting=costs["acting"],
        copying=costs["other"],
        update=update,
        num_actors=max(0, look.num_actors),
        cores=config.cores,
        max_policy_lag=config.integer("max_policy_lag") or 0,
    ), missing


def _cpu(rows: Sequence[Mapping[str, float]], prefix: str) -> float | None:
    """CPU seconds per second of the processes of this name, on average; None if the run doesn't say."""
    values = [value for row in rows[1:] for name, value in row.items() if name.startswith(prefix)]
    values = [value for value in values if math.isfinite(value)]
    return statistics.fmean(values) if values else None
