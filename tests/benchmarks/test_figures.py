"""The figures of the README and of docs/ are those of the files that the measuring programs wrote."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from benchmarks import figures
from benchmarks.harness import ROOT
from benchmarks.learning import table

LISTED = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text(encoding="utf-8"))
PAGES = figures.pages(ROOT)
SOURCES = figures.Sources(ROOT / "benchmarks", LISTED["names"])


def test_each_figure_has_a_source_and_is_as_it_says():
    assert figures.check(PAGES, LISTED, SOURCES)[0] == []


def test_a_page_shows_each_table_and_each_table_has_its_sources():
    shown = re.findall(r"^<!-- figures (\w+) -->$", "\n".join(PAGES.values()), re.MULTILINE)
    assert sorted(shown) == sorted(LISTED["tables"])
    assert all("{" not in SOURCES.format(text) for text in LISTED["tables"].values())


@pytest.mark.parametrize("page", LISTED["pages"])
def test_a_changed_digit_is_found_and_written_back(page):
    text = PAGES[page]
    figure = figures.find(text, LISTED["pages"][page][-1], SOURCES)[-1]
    digit = figure.end - 1 - (text[figure.end - 1] == "%")
    changed = text[:digit] + str(9 - int(text[digit])) + text[digit + 1 :]
    problems, written = figures.check(PAGES | {page: changed}, LISTED, SOURCES)
    assert [problem.partition(" stands")[2] for problem in problems] == [f" there, its source has {figure.expected}"]
    assert written == PAGES


def test_the_counted_rows_are_those_of_the_learning_results():
    learning = ROOT / "benchmarks" / "learning"
    found, counts = (json.loads((learning / f"{name}.json").read_text("utf-8")) for name in ("learning", "counts"))
    assert table.counts(found) == counts
