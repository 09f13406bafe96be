"""What an undone update leaves behind: everything that it takes to repeat it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import actor_learner as al
from actor_learner.runs import artifacts
from actor_learner.runs.artifacts import write_incident
from tests.support.small_networks import linear_network, same_weights
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory

pytestmark = pytest.mark.usefixtures("without_xla")


@pytest.fixture(scope="module")
def undone():
    """A learner in the midst of a run whose last update was undone, the batch, and what the update returned."""
    network = al.default_network(VECTOR, TORQUES, normalize_observation=True, hidden_sizes=(16,), seed=1)
    algorithm = al.PPO(epochs=1, minibatch_size=32, normalize_reward=True, learning_rate="linear")
    learner = al.Learner(network, algorithm, action_space=TORQUES, total_steps=10_000)
    for seed in range(3):
        learner.update(random_trajectory(TORQUES, seed=seed, invalid_rate=0.1))
    batch = random_trajectory(TORQUES, seed=9, invalid_rate=0.1)
    batch.behaviour_log_prob[3, 2] = math.nan
    batch.valid[3, 2] = True
    return learner, batch, learner.update(batch)


def bits(metrics):
    return {name: np.float64(value).tobytes() for name, value in metrics.items()}


def test_an_incident_repeats_the_update_that_was_undone(tmp_path, undone):
    learner, batch, metrics = undone
    incident = write_incident(tmp_path / "incidents", learner, batch, metrics)
    assert incident == tmp_path / "incidents" / "3-1"
    loaded = al.Learner.load(incident)
    assert same_weights(loaded.get_weights(), learner.get_weights())
    repeated = loaded.update(al.load_trajectory(incident / "trajectory.npz"))
    assert repeated["undone"] == 1.0
    assert math.isnan(repeated["loss"])
    assert bits(repeated) == bits(metrics)
    assert loaded.not_finite == learner.not_finite


def test_what_an_incident_says(tmp_path, undone):
    learner, batch, metrics = undone
    incident = write_incident(tmp_path, learner, batch, metrics)
    found = json.loads((incident / "metrics.json").read_text())
    assert found == {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    assert None in found.values()
    said = json.loads((incident / "incident.json").read_text())
    assert (said["update"], said["env_steps"]) == (4, learner.env_steps)
    assert "loss" in said["metrics_not_finite"]
    assert "gradient_norm" in said["metrics_not_finite"]
    assert said["state_not_finite"] == ["weights", "optimizer", "outputs"]


def test_incidents_stand_side_by_side_up_to_a_limit(tmp_path, undone, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_INCIDENTS", 3)
    paths = [write_incident(tmp_path, *undone) for _ in range(5)]
    assert paths == [tmp_path / "3-1", tmp_path / "3-2", tmp_path / "3-3", None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3-1", "3-2", "3-3"]


def test_an_incident_that_cannot_be_written_leaves_nothing(undone):
    full = Path("/proc/incidents")
    with pytest.raises(OSError, match="can't save /proc/incidents/3-1"):
        write_incident(full, *undone)
    assert not full.exists()


def test_repeating_needs_what_a_file_cannot_hold(tmp_path):
    """Such as a schedule of one's own."""
    algorithm = al.A2C(ent_coef=lambda remaining: 0.01 * remaining)
    learner = al.Learner(linear_network(), algorithm, action_space=TWO_ACTIONS, total_steps=1000)
    incident = write_incident(tmp_path, learner, random_trajectory(), {"undone": 1.0})
    with pytest.raises(ValueError, match="give it: Learner.load"):
        al.Learner.load(incident)
    assert al.Learner.load(incident, algorithm=algorithm).updates == 0
