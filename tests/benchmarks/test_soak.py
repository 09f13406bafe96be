"""A small soak: faults of every kind while a run learns, with every batch checked; and tests of the checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actor_learner.actors.pool import ActorPool
from actor_learner.networks import default
from benchmarks.faults import stamped
from tests.support.processes import patience

pytestmark = pytest.mark.thorough


ROOT = Path(__file__).parents[2]
ENVS = 2


def test_a_soak_in_small(tmp_path):
    words = ["--minutes", "0.12", "--fault-every", "0.8", "--actors", "2", "--actor-timeout", str(patience(2.0))]
    command = [sys.executable, "-m", "benchmarks", "soak", *words, "--output", tmp_path / "soak.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["problems"] == []
    assert result["faults_caused"] >= 4
    assert result["replacements"] >= 2
    assert result["batches_checked"] >= 5


@pytest.fixture(scope="module")
def batches():
    """Collect four batches in a row, from an actor without faults."""
    env = stamped.StampedCartPole()
    network = default.default_network(env.observation_space, env.action_space, hidden_sizes=(8,))
    with ActorPool(stamped.StampedCartPole, network, num_actors=1, envs_per_actor=ENVS, unroll_length=40) as actors:
        return [actors.collect().copy() for _ in range(4)]


def check(batches, restarts=()):
    checking = stamped.BatchCheck(ENVS, 0)
    for batch in batches:
        checking.check(batch, restarts)
    checking.finish()
    return checking


def test_batches_as_they_are_pass(batches):
    checking = check(batches)
    assert checking.batches == 4
    assert checking.rows == 4 * 40 * ENVS
    assert len(checking.processes) == 1
    assert any(batch.terminated.any() for batch in batches)


def changed(batch, name, index, value):
    array = np.array(getattr(batch, name))
    array[index] = value(array[index])
    return batch._replace(**{name: array})


def stamp(row, column, value):
    """Return a row with another stamp and the checksum that its environment would have written."""
    row = row.copy()
    row[..., column] = value
    row[..., stamped.CHECKSUM] = stamped.checksum(row)
    return row


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("checksum", lambda b: changed(b, "observation", (7, 0, 1), lambda value: value + 1e-3)),
        ("one by one", lambda b: b._replace(observation=b.observation[[*range(9), 8, *range(10, 41)]])),
        ("another's", lambda b: b._replace(observation=b.observation[:, ::-1])),
        ("another's", lambda b: b._replace(env_index=b.env_index[::-1])),
        ("an action", lambda b: b._replace(action=1 - b.action)),
        ("an action", lambda b: b._replace(terminated=np.roll(b.terminated, 1, axis=0))),
        ("a reward", lambda b: changed(b, "reward", (3, 1), lambda value: value + 1)),
        ("ends after", lambda b: changed(b, "valid", slice(30, None), np.zeros_like)),
        ("several", lambda b: changed(b, "observation", (5, 0), lambda row: stamp(row, stamped.PROCESS, 1))),
        ("a report", lambda b: changed(b, "observation", ..., lambda rows: stamp(rows, stamped.PROCESS, 1))),
    ],
)
def test_a_batch_that_is_not_what_the_environments_gave_is_noticed(batches, message, change):
    with pytest.raises(stamped.WrongBatchError, match=f"Batch 1, column .*{message}"):
        check([batches[0], change(batches[1])])


@pytest.mark.parametrize(
    ("order", "message"), [((0, 2), "are missing"), ((0, 1, 1), "in two columns"), ((1,), "are missing")]
)
def test_a_batch_that_is_missing_or_comes_twice_is_noticed(batches, order, message):
    with pytest.raises(stamped.WrongBatchError, match=message):
        check([batches[place] for place in order])


def test_a_column_must_begin_where_the_one_before_has_ended(batches):
    other = changed(batches[1], "observation", (0, 0), lambda row: stamp(row, 0, row[0] + 1))
    with pytest.raises(stamped.WrongBatchError, match="doesn't begin with the observation"):
        check([batches[0], other])
