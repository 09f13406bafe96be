"""Incidents: undone updates, saved so that they can be repeated.

incident.json     the time, the values that were not finite, and how to repeat the update
metrics.json      the metrics of the update; null is NaN or infinite
trajectory.npz    the batch, for `al.load_trajectory`
learner.json ...  the learner before the update, for `al.Learner.load`
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.files import write_folder_atomically

if TYPE_CHECKING:
    from actor_learner.learner.learner import Learner

MAX_INCIDENTS = 20
"""The most incidents of one run; a run that fails again and again doesn't fill the disk."""
DESCRIPTION = "incident.json"
_REPEAT = "al.Learner.load(incident).update(al.load_trajectory(incident / 'trajectory.npz'))"
"""Repeats an incident, with byte-equal metrics on the same kind of machine."""
_NOT_REPEATED = "no: the rows were drawn from a replay buffer, which isn't saved here"


def write_incident(folder: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> Path | None:
    """Save an update that `learner` has just undone; call it before the learner changes.

    Returns the incident's folder, `<updates>-<n>`, written whole or not at all. Returns None, and writes nothing, if
    there are `MAX_INCIDENTS` already. Raises OSError if the disk is full or can't be written.

    folder: The folder of the run's incidents; made if needed. metrics: The metrics that the update returned.
    """
    if sum(1 for _ in folder.glob(f"*/{DESCRIPTION}")) >= MAX_INCIDENTS:
        return None
    names = (f"{learner.updates}-{n}" for n in itertools.count(1))
    incident = next(path for name in names if not (path := folder / name).exists())
    write_folder_atomically(incident, lambda partial: _write(partial, learner, trajectory, metrics))
    return incident


def _write(partial: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> None:
    learner.write_files(partial)
    trajectory.save(partial / "trajectory.npz")
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    description = {
        "what": "an update that was undone, because something of it was NaN or infinite",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "update": learner.updates + 1,
        "env_steps": learner.env_steps,
        "metrics_not_finite": [name for name in learner.not_finite if name in metrics],
        "state_not_finite": [name for name in learner.not_finite if name not in metrics],
        "repeat": _REPEAT if learner.buffer is None else _NOT_REPEATED,
    }
    for name, value in (("metrics.json", finite), (DESCRIPTION, description)):
        (partial / name).write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
