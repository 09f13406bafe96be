from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import time

import pytest

from actor_learner.actors.cluster import broker
from actor_learner.actors.pool import ActorPool
from tests.support.processes import children, patience, wait_until

SECONDS = 60.0
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray")


class Machines:
    """The machines of a cluster on loopback (see `tests.support.loopback_cluster`), and pools on them."""

    def __init__(self, file):
        self._file = file

    def are(self, **machines):
        """Sets the machines: numbers of CPUs by name; the learner's own is called `own`."""
        found = {name: {"cpus": cpus, "own": name == "own"} for name, cpus in machines.items()}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(found))
        os.replace(new, self._file)

    @contextlib.contextmanager
    def pool(self, env, network=None, **fields):
        """A pool on the machines; nothing of it may be left afterwards."""
        before = children()
        options = {"num_actors": 4, "envs_per_actor": 2, "unroll_length": 8, "ray_address": "auto", "seed": 3}
        with ActorPool(env, network, **{**options, "vectorization": "sync", **fields}) as pool:
            yield pool
        assert wait_until(lambda: children() <= before)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    if not HAS_RAY:  # a pool refuses a cluster without it
        pytest.skip("needs Ray")
    file = tmp_path / "machines.json"
    monkeypatch.setenv("LOOPBACK_CLUSTER", str(file))
    monkeypatch.setattr(broker, "PROGRAM", "tests.support.loopback_cluster:main")
    return Machines(file)


def hosts(pool):
    """The hosts that run actors, by their names' order."""
    return [share.link for share in pool._group._shares.all]


def collect_until(pool, condition):
    """Collects batches until one satisfies the condition; returns it."""
    deadline = time.monotonic() + patience(SECONDS)
    while True:
        trajectory = pool.collect(timeout=patience(SECONDS))
        if condition(trajectory):
            return trajectory
        assert time.monotonic() < deadline, pool.restarts
        pool.publish(pool.exported.weights)
