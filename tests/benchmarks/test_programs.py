"""Measuring programs can be imported, are listed, and find what they observe in the package by name."""

from __future__ import annotations

import importlib
import json
import re
import sys
from operator import attrgetter
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as measure
from benchmarks.harness import ROOT
from benchmarks.learning.table import page
from benchmarks.replay.compare import DQN, SAC
from benchmarks.replay.programs import ours
from benchmarks.speed import timeline


def test_every_topic_is_listed_with_a_program_that_can_be_imported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scripts/measure"])
    measure.main()
    listed = capsys.readouterr().out
    for topic, place in measure.TOPICS.items():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function or "main"))
        assert f"  {topic:16} {measure.summary(topic)}\n" in listed
        assert measure.summary(topic)
    assert all(f"  {topic:16} {measure.archive_note(topic)}\n" in listed for topic in measure.ARCHIVED)


def test_an_unknown_topic_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/measure", "nothing"])
    with pytest.raises(SystemExit, match="^scripts/measure: error: unknown topic 'nothing'.*$"):
        measure.main()


@pytest.mark.parametrize("topic", measure.ARCHIVED)
def test_an_archived_topic_says_where_its_program_and_its_result_are(topic, monkeypatch):
    module = measure.ARCHIVED[topic][0]
    monkeypatch.setattr(sys, "argv", ["scripts/measure", topic])
    with pytest.raises(SystemExit, match=f"{topic} was answered: .* git show .*:benchmarks/{module}.py"):
        measure.main()
    assert any((ROOT / "benchmarks" / module).parent.glob("*.json"))


def exists(module, path):
    try:
        attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def test_what_programs_observe_in_the_package_exists():
    places = (*timeline.BEFORE_TENSORFLOW, *timeline.WITH_TENSORFLOW, (*timeline.IMPORTS_TENSORFLOW, "learner"))
    found = {name for modules, path, name in places if any(exists(module, path) for module in modules.split())}
    assert found == {name for _, _, name in places}


def test_the_page_of_learning_results_is_made_of_the_figures_and_shows_every_curve():
    folder = ROOT / "benchmarks" / "learning"
    made = page(json.loads((folder / "learning.json").read_text(encoding="utf-8")), folder)
    assert (folder / "learning.md").read_text(encoding="utf-8") == made
    assert sorted(re.findall(r'<img src="([^"]+)"', made)) == sorted(path.name for path in folder.glob("*.png"))


@pytest.mark.thorough
@pytest.mark.parametrize("task", [{**DQN, "max_grad_norm": 10.0}, SAC], ids=["DQN", "SAC"])
def test_a_gradient_step_of_our_off_policy_learner_is_measured(task, without_xla):
    seconds = ours.step(SimpleNamespace(**{**task, "minibatch_size": 8, "steps": 2, "calls": 1}))
    assert 0 < seconds < float("inf")
