"""A run that SIGKILL ends at random moments goes on each time; scripts/kill_and_resume.py does it fifty times."""

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

import actor_learner as al

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def kill_and_resume(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPTS / "kill_and_resume.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kill_and_resume", module)
    spec.loader.exec_module(module)
    return module


def test_two_kills_lose_nothing_that_was_saved(kill_and_resume, tmp_path):
    trial = kill_and_resume.Trial(tmp_path / "run")
    for while_learning in (True, False):
        trial.kill(while_learning=while_learning)
    assert trial.finish() == 128 + signal.SIGTERM
    for kill in trial.kills:
        assert kill.resumed_at == kill.updates
        assert not kill.damaged
    rows = kill_and_resume.rows_of(tmp_path / "run")
    assert al.Learner.load(tmp_path / "run/checkpoints/final").updates == rows[-1]["updates"] == len(rows)
