import os
import subprocess
import sys
from pathlib import Path

import pytest

from actor_learner.system import machine
from actor_learner.system.machine import (
    JAX_THREADS,
    TENSORFLOW_THREADS as THREADS,
    available_cores,
    cpu_pressure,
    current_core,
    learner_cores,
    renew_suggestion,
    suggest_threads,
)


def test_the_pressure_is_the_kernels_figure_or_that_of_the_load(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    file = tmp_path / "proc/pressure/cpu"
    file.parent.mkdir(parents=True)
    file.write_text("some avg10=59.29 avg60=63.47 avg300=53.38 total=356746979\nfull avg10=0.00 avg60=0.00\n")
    assert cpu_pressure() == pytest.approx(0.5929)
    cores = machine.allowed_cores()
    file.unlink()
    assert cpu_pressure() == pytest.approx(min(1, max(0, os.getloadavg()[0] / cores - 1)), abs=0.2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_affinity_bounds_the_cores():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cores() == 1
        assert current_core() == min(before)
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= available_cores() <= len(before)


def test_the_learner_has_the_cores_that_actors_leave_unless_it_learns_from_images(monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    assert [learner_cores(3, lag) for lag in (0, 1, 4)] == [4, 1, 1]
    assert learner_cores(6, 1) == 1
    assert learner_cores(3, 1, images=True) == 4


def test_threads_are_suggested_again_but_never_over_what_the_environment_says(monkeypatch):
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.delenv(JAX_THREADS, raising=False)
    monkeypatch.setattr(machine, "_suggested", {})
    renew_suggestion(5)
    assert THREADS not in os.environ, "embedded, the threads are the caller's"
    suggest_threads(1)
    renew_suggestion(2)
    assert os.environ[THREADS] == "2"
    monkeypatch.setenv(THREADS, "7")
    renew_suggestion(7)
    renew_suggestion(3)
    assert os.environ[THREADS] == "7"
    assert os.environ[JAX_THREADS] == "3"


@pytest.mark.slow
def test_a_process_that_lets_others_go_first():
    program = (
        "import os; from actor_learner.system.machine import lower_priority;"
        "print(lower_priority(0), lower_priority(3));"
        "print(os.getpriority(os.PRIO_PROCESS, 0)); print(open('/proc/self/autogroup').read())"
    )
    if not Path("/proc/self/autogroup").exists():
        program = program.rpartition(";")[0]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    answers, niceness, session = done.stdout.split("\n", 2)
    assert int(niceness) == max(3, os.getpriority(os.PRIO_PROCESS, 0))
    assert "nice 3" in session or answers == "True False" or not session
