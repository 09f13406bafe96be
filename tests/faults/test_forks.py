"""An environment that forks: a child that comes back into an actor ends, is named, and disturbs nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actor_learner.actors.pool import ActorPool
from tests.faults.failing_envs import ForkingEnv

pytestmark = pytest.mark.slow


def messages_of(env, network, logs):
    """The messages in the actors' logs, after two batches that nothing disturbed."""
    with ActorPool(env, network, num_actors=2, envs_per_actor=2, unroll_length=32, logs_dir=logs) as pool:
        for _ in range(2):
            trajectory = pool.collect()
            assert not trajectory.reward.any()
            assert np.isfinite(trajectory.behaviour_log_prob).all()
            pool.publish(network.get_weights())
        assert pool.restart_count == 0
    texts = [(logs / f"actor-{actor}.log").read_text() for actor in (0, 1)]
    return [[line for line in text.splitlines() if line != "the last words"] for text in texts]


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("how", "end"),
    [("return", "returned from it"), ("raise", "raised ZeroDivisionError: a bad day (")]
    + [(how, None) for how in ("sys.exit", "os._exit", "work")],
)
def test_a_child_of_a_step_ends_and_its_actor_goes_on(network, tmp_path, how, end):
    marker = tmp_path / "stepped"
    for actor, lines in enumerate(messages_of(functools.partial(ForkingEnv, how, marker), network, tmp_path)):
        assert len(lines) == (end is not None)  # the first of many is named
        for line in lines:
            assert line.startswith(f"`step` of env `ForkingEnv` in actor {actor} forked a process that {end}")
            assert "so it was ended: let it call `os._exit`, or start it with" in line
    assert not marker.exists()


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(("where", "what"), [("reset", "`reset` of env `ForkingEnv` in"), ("__init__", "env `Forking")])
def test_a_child_of_a_start_ends_and_its_actor_goes_on(network, tmp_path, where, what):
    env = functools.partial(ForkingEnv, "return", tmp_path / "stepped", where)
    for (line,) in messages_of(env, network, tmp_path):
        assert line.startswith(what)


LOCAL = """
import functools, os, sys
import numpy as np
from actor_learner.actors.pool import ActorPool
from tests.faults.failing_envs import ForkingEnv

with ActorPool(functools.partial(ForkingEnv, "return", sys.argv[1]), num_actors=0, unroll_length=32) as pool:
    print("rewards:", np.unique(pool.collect().reward), flush=True)
"""


def test_without_actor_processes_the_child_does_not_learn_on(tmp_path):
    command = [sys.executable, "-c", LOCAL, tmp_path / "stepped"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True, **pipes)
    try:
        printed, errors = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):  # as it should be
            os.killpg(process.pid, signal.SIGKILL)
    assert printed == "rewards: [0.]\n", errors
    assert "`step` of env `ForkingEnv` in actor 0 forked a process that returned from it" in errors
