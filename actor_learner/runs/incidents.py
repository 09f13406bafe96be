"""Incidents: updates that were undone, written down so that they can be looked into.

incident.json     when it was, what wasn't finite, and how to repeat it
metrics.json      the metrics of the attempt; null is NaN or infinite
trajectory.npz    the batch, for `al.load_trajectory`
learner.json ...  the learner as it was before, for `al.Learner.load`
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.files import write_folder_atomically

if TYPE_CHECKING:
    from actor_learner.learner.learner import Learner

MAXIMUM_INCIDENTS = 20
"""As many are kept in a folder, so that a run that goes wrong again and again doesn't fill the disk."""

DESCRIPTION = "incident.json"

REPEAT = "al.Learner.load(incident).update(al.load_trajectory(incident / 'trajectory.npz'))"
"""How an incident is repeated: with the same metrics to the last bit, on the kind of machine that it happened on."""


def write_incident(folder: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> Path | None:
    """Writes down an update that `learner` has just undone, before anything else of the learner is changed.

    Args:
        folder: of all incidents of a run; made if it isn't there.
        learner: as the undone update left it, which is as it was before.
        trajectory: the batch that the update was from.
        metrics: what the update returned.

    Returns:
        The incident's own folder, `<updates>-<n>`, which is whole or isn't there. None if `MAXIMUM_INCIDENTS` are there
        already; then nothing is written.

    Raises:
        OSError: the disk is full or can't be written.
    """
    if sum(1 for _ in folder.glob(f"*/{DESCRIPTION}")) >= MAXIMUM_INCIDENTS:
        return None
    names = (f"{learner.updates}-{n}" for n in itertools.count(1))
    incident = next(path for name in names if not (path := folder / name).exists())
    write_folder_atomically(incident, lambda partial: _write(partial, learner, trajectory, metrics))
    return incident


def _write(partial: Path, learner: Learner, trajectory: Trajectory, metrics: Mapping[str, float]) -> None:
    from actor_learner.learner.state import write_learner

    write_learner(learner, partial)
    trajectory.save(partial / "trajectory.npz")
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    _write_json(partial / "metrics.json", finite)
    _write_json(partial / DESCRIPTION, _describe(learner, metrics))


def _describe(learner: Learner, metrics: Mapping[str, float]) -> dict[str, Any]:
    return {
        "what": "an update that was undone, because something of it was NaN or infinite",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "update": learner.updates + 1,
        "env_steps": learner.env_steps,
        "metrics_not_finite": [name for name in learner.not_finite if name in metrics],
        "state_not_finite": [name for name in learner.not_finite if name not in metrics],
        "repeat": REPEAT,
    }


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
