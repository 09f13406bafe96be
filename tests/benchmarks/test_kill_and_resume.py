"""A run that SIGKILL ends at random moments resumes each time; scripts/measure kill-and-resume does it fifty times."""

import signal

import pytest

import actor_learner as al
from benchmarks.faults import kill_and_resume

pytestmark = pytest.mark.slow


def test_two_kills_lose_nothing_that_was_saved(tmp_path):
    trial = kill_and_resume.Trial(tmp_path / "run")
    for while_learning in (True, False):
        trial.kill(while_learning=while_learning)
    assert trial.finish() == 128 + signal.SIGTERM
    for kill in trial.kills:
        assert kill.resumed_at == kill.updates
        assert not kill.damaged
    rows = kill_and_resume.rows_of(tmp_path / "run")
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == rows[-1]["updates"] == len(rows)
