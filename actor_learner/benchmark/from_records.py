"""The speed of a run according to its own records, which leave open how fast its parts are alone."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping
from typing import Any

from actor_learner.benchmark.roofline import NAMES, Cost, Parts, Prospect, prospects, roof
from actor_learner.benchmark.text import expectations
from actor_learner.reports.bottleneck import OTHERS
from actor_learner.reports.status import RunStatus, begins_to_learn, printable, summarize
from actor_learner.runs.directory import open_run, read_config
from actor_learner.runs.metrics import ACTOR_TIME, LEARNER_TIME, read_metrics
from actor_learner.runs.recorded_config import RecordedConfig

_UNKNOWN_PARTS = "what each part takes alone: the parts are as they were beside each other, so the roof may be higher"
"""The gap in the records of every run."""


def read_run_speed(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return achieved speed, roof, shares and parts of a run so far, since the update that was compiled, as JSON.

    Raises ValueError where there is no run, or fewer than three updates.
    """
    folder = open_run(run_dir).path
    config, rows = read_config(folder), read_metrics(folder)
    rows = [row for row in rows if {"env_steps", "time_seconds"} <= row.keys()]
    learning = [index for index in range(1, len(rows)) if begins_to_learn(rows[index], rows[index - 1])]
    rows = rows[learning[0] if learning else 0 :]
    batches = len(rows) - 1
    if batches < 2 or not rows[-1]["time_seconds"] > rows[0]["time_seconds"]:
        raise ValueError(
            f"The records of a run give its speed from the third update on. Received: {len(rows)} updates in "
            f"{os.fspath(run_dir)!r}"
        )
    status = summarize(config, rows)
    seconds, steps = (rows[-1][name] - rows[0][name] for name in ("time_seconds", "env_steps"))
    achieved = steps / seconds
    found: dict[str, Any] = {
        "run_dir": os.fspath(run_dir),
        "env": status.env,
        "algorithm": status.algorithm,
        "num_actors": status.num_actors,
        "max_policy_lag": config.integer("max_policy_lag") or 0,
        "achieved_steps_per_second": achieved,
        "batch_seconds": {"achieved": seconds / batches},
        "limited_by": None if status.limited_by is None else str(status.limited_by),
        "shares": {name: share for name, share in status.shares.items() if math.isfinite(share)},
    }
    parts, missing = _parts(config, status, steps / batches, seconds / batches)
    found["unknown"] = [_UNKNOWN_PARTS, *missing]
    if parts is None or (status.limited_by is not None and status.limited_by.part == OTHERS):
        return {**found, "roof_steps_per_second": None, "ratio": None, "expected": {}}
    best = roof(parts)
    return {
        **found,
        "roof_steps_per_second": best.steps_per_second,
        "ratio": achieved / best.steps_per_second,
        "limit": best.limit,
        "expected": {prospect.change: prospect.gain for prospect in prospects(parts)},
        "parts": {name: vars(getattr(parts, name)) for name in NAMES},
    }


def describe_run(found: Mapping[str, Any]) -> str:
    lines = [f"{found['env']}, {found['algorithm']}: {printable(found['run_dir'])}"]
    for process, labels in (("learner", LEARNER_TIME), ("actors", ACTOR_TIME)):
        shares = [f"{label} {found['shares'][name]:.0%}" for name, label in labels.items() if name in found["shares"]]
        lines += [f"{process}: {', '.join(shares)}"] if shares else []
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


def _parts(config: RecordedConfig, status: RunStatus, steps: float, seconds: float) -> tuple[Parts | None, list[str]]:
    """Return the parts of a batch as they were beside each other, and the names of gaps in the records."""
    shares = status.shares
    if not all(math.isfinite(shares[name]) for name in ("learning", "env", "acting", "other")):
        return None, ["where the time went: the run hasn't recorded it"]
    walls = {name: shares[name] * seconds for name in ("env", "acting", "other")}
    of_actors = [cpu for process, cpu in status.cpu.items() if process.startswith("actor_")]
    busy = sum(walls.values())
    computing = min(1.0, statistics.fmean(of_actors) * seconds / busy) if of_actors and busy else 1.0
    costs = {name: Cost(wall, wall * computing) for name, wall in walls.items()}
    missing = [] if "others" in status.cpu else ["what the cores did for other programs meanwhile"]
    if not of_actors:
        missing.append("CPU time: the run was too short to measure it, so all is taken to compute")
    return Parts(
        steps=steps,
        env=costs["env"],
        acting=costs["acting"],
        copying=costs["other"],
        update=Cost(shares["learning"] * seconds, status.cpu.get("learner", shares["learning"]) * seconds),
        num_actors=max(0, status.num_actors),
        cores=config.cores,
        max_policy_lag=config.integer("max_policy_lag") or 0,
    ), missing
