"""An environment that leaks trains to the end, because its actors are restarted in time."""

from __future__ import annotations

import numpy as np
import pytest

import actor_learner as al
from actor_learner.system import memory
from actor_learner.system.memory import measure
from tests.support.leaking_env import LeakingEnv
from tests.support.processes import children

MB = 1_000_000
HEADROOM = 600 * MB
"""Above what the tests take before they train: a few hundred of it are for the actors, and for compiling."""
UPDATES = 30


class Watch(al.callbacks.Callback):
    """What is in use after each update, before anything is done about it."""

    def __init__(self):
        super().__init__()
        self.used = []
        self.restarted = []

    def on_train_batch_end(self, batch, logs=None):
        self.used.append(measure(self.actors.pids).total)
        self.restarted += [restart.actor for restart in self.actors.restarts]


@pytest.mark.thorough
@pytest.mark.usefixtures("without_xla")
def test_an_environment_that_leaks_20_mb_at_each_reset_trains_to_the_end(tmp_path, monkeypatch):
    """Each of 2 actors resets once in an update: unbounded, 1.2 GB more would be in use at the end."""
    monkeypatch.setattr(memory, "_MAX_SHARE", 1e9)  # a run of seconds is checked after each update
    before = children()
    allowed = measure({}).total + HEADROOM
    watch, limit = Watch(), al.callbacks.MemoryLimit(allowed / 1e9, "restart_actors", seconds=1e-9)
    config = al.TrainConfig(
        env=LeakingEnv,
        env_kwargs={"megabytes": 20, "steps": 15},
        algorithm=al.A2C(),
        num_actors=2,
        envs_per_actor=1,
        unroll_length=16,
        total_steps=2 * 15 * UPDATES,  # a reset is no step
        hidden_sizes=(8,),
        run_dir=tmp_path / "run",
        callbacks=[watch, limit],
        quiet=True,
    )
    result = al.train(config)
    assert result.metrics["env_steps"] >= config.total_steps
    assert len(watch.used) > 0.8 * UPDATES
    assert max(watch.used) < allowed + 80 * MB  # what an update adds, and what measuring misses
    assert set(watch.restarted) == {0, 1}
    assert np.isfinite(list(result.metrics.values())).all()
    assert children() == before
