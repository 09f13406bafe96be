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
from tests.faults.failing_envs import forking_by_actor
from tests.support.processes import patience

pytestmark = pytest.mark.slow

WAYS = {
    ("return", "step"): "`step` of env `forking_by_actor` in actor 0 forked a process that returned from it",
    (
        "raise",
        "step",
    ): "`step` of env `forking_by_actor` in actor 1 forked a process that raised ZeroDivisionError",
    ("return", "reset"): "`reset` of env `forking_by_actor` in actor 2 forked a process that returned from it",
    ("return", "__init__"): "env `forking_by_actor` forked a process that returned from it",
    ("sys.exit", "step"): None,
    ("os._exit", "step"): None,
    ("work", "step"): None,
}
"""What each actor's environment does, and what the first of its children is named as; None: it may do that."""


@pytest.mark.filterwarnings("ignore:There are more actors than cores")
@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_ends_and_its_actor_goes_on(network, tmp_path):
    marker, logs = tmp_path / "stepped", tmp_path / "logs"
    env = functools.partial(forking_by_actor, list(WAYS), marker)
    options = {"num_actors": len(WAYS), "envs_per_actor": 2, "unroll_length": 32, "logs_dir": logs}
    with ActorPool(env, network, **options) as pool:
        for _ in range(2):
            trajectory = pool.collect()
            assert not trajectory.reward.any()
            assert np.isfinite(trajectory.behaviour_log_prob).all()
            pool.publish(network.get_weights())
        assert pool.restart_count == 0
    assert not marker.exists()
    for actor, named in enumerate(WAYS.values()):
        lines = [line for line in (logs / f"actor-{actor}.log").read_text().splitlines() if line != "the last words"]
        assert len(lines) == (named is not None)
        for line in lines:
            assert line.startswith(named)
            assert "so it was ended: let it call `os._exit`, or start it with" in line


LOCAL = """
import functools, sys
import numpy as np
from actor_learner.actors.actor import make_environments, make_startups
from actor_learner.config.settings import PoolSettings
from actor_learner.environments.factory import resolve_env
from tests.faults.failing_envs import ForkingEnv

factory = resolve_env(functools.partial(ForkingEnv, "return", sys.argv[1]))
(startup,) = make_startups([1], PoolSettings())
environments = make_environments(factory, startup)
rewards = [environments.step(np.zeros(1, np.int64)).reward[0] for _ in range(32)]
print("rewards:", np.unique(rewards), flush=True)
"""


def test_a_program_s_own_environment_does_not_go_on_in_the_child(tmp_path):
    """As with `num_actors=0`: the child would learn on."""
    command = [sys.executable, "-c", LOCAL, tmp_path / "stepped"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True, **pipes)
    try:
        printed, errors = process.communicate(timeout=patience(60))
    finally:
        with contextlib.suppress(ProcessLookupError):  # as it should be
            os.killpg(process.pid, signal.SIGKILL)
    assert printed == "rewards: [0.]\n", errors
    assert "`step` of env `ForkingEnv` in actor 0 forked a process that returned from it" in errors
