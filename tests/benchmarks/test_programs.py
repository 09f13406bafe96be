"""Measuring programs can be imported, are listed, and find what they observe in the package by name."""

from __future__ import annotations

import importlib
import json
import re
import sys

from benchmarks import __main__ as measure
from benchmarks.figures import pages
from benchmarks.harness import ROOT
from benchmarks.learning.table import page, text_of

BY_HAND = "by hand, on the machine of the measurement"


def test_every_topic_is_listed_with_a_program_that_can_be_imported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scripts/measure"])
    measure.main()
    listed = capsys.readouterr().out
    for topic, place in measure.TOPICS.items():
        assert callable(importlib.import_module(place).main)
        assert f"  {topic:16} {measure.summary(topic)}\n" in listed
        assert measure.summary(topic)
    assert all(f"  {topic:16} {measure.archive_note(topic)}\n" in listed for topic in measure.ARCHIVED)


def test_the_page_of_learning_results_is_made_of_the_figures():
    folder = ROOT / "benchmarks" / "learning"
    found = json.loads((folder / "learning.json").read_text(encoding="utf-8"))
    assert (folder / "learning.md").read_text(encoding="utf-8") == page(found, folder)
    assert (folder / "learning.json").read_text(encoding="utf-8") == text_of(found)


def test_a_page_shows_each_picture():
    shown = " ".join(pages(ROOT).values())
    places = ("benchmarks/**/*.png", "docs/pictures/*", "docs/drawings/*")
    pictures = [path.name for place in places for path in ROOT.glob(place)]
    assert [picture for picture in pictures if f"/{picture}" not in shown] == []


def test_each_result_names_a_program_that_there_is_or_the_commit_of_one_that_is_gone():
    places = {f"git show {program.replace(':', ':benchmarks/')}.py" for _, program, _ in measure.ARCHIVED.values()}
    for file in ROOT.glob("benchmarks/**/*.json"):
        text = file.read_text(encoding="utf-8")
        if file.parent.name == "archive":
            assert json.loads(text)["archived"] in {*places, BY_HAND}, file.name
        elif file.name not in ("learning.json", "counts.json"):
            topics = re.findall(r'"(?:scripts/measure|bash gpu-pack/run.sh) ([a-z-]+)', text)
            assert topics, file.name
            assert set(topics) <= set(measure.TOPICS), file.name
