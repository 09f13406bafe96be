"""The figures of the README and of docs/ are those of the files that the measuring programs wrote."""

from __future__ import annotations

import json
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


@pytest.fixture
def sources(tmp_path):
    runs = {"ours": [{"speed": 8.0}, {"speed": 6.0}, {"speed": 1e4}], "sb3": [{"speed": 2.0}, {"speed": 3.0}, None]}
    rest = {"64": 0.5, "seconds": [1.0, None, 3.0, 8.0], "a1b2": {"seconds": 4.0}, "version": "1"}
    (tmp_path / "one.json").write_text(json.dumps({"works": {"a": {"runs": runs}, "b": {"runs": runs}}, **rest}))
    return figures.Sources(tmp_path, {"a": "one[works][a][runs]", "both": "one[works][a,b][runs]"})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("{a[ours][speed]:.1f}", "8.0"),
        ("{a[ours][speed]!h:,.0f}", "10,000"),
        ("{a[ours/sb3][speed]!l:.2f}", "2.00"),
        ("{both[ours/sb3][speed]:.0f}", "3"),
        ("{a[ours/sb3]!n}", "2"),
        ("{one[seconds]!n} of 4, {one[seconds]:.0f}", "3 of 4, 3"),
        ("{one[64]:.0%}, {one[64]!m:.0f} ms", "50%, 500 ms"),
        ("{one[newest][seconds]:.1f}", "4.0"),
    ],
)
def test_a_place_is_a_path_in_a_file_and_a_list_its_median(place, value, sources):
    assert sources.format(place) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It takes\n8 s on two cores.", None),
        ("It takes 9 s on two cores.", "line 1: 9 stands there, its source has 8"),
        ("It takes 8 s on two cores. It takes 8 s on two cores.", "once, not 2 times"),
        ("It takes 8 s on two cores, 4.5 MB.", "line 1: '4.5 MB' has no source"),
        ("It takes 8 s on two cores, is 3.1x or 3 times as fast.", "line 1: '3.1x' has no source"),
        ("It takes 8 s on two cores, 300 env\nsteps a second.", "line 1: '300 env\\nsteps a second' has no source"),
        ("It takes 8 s on two cores, `9 s`, 84 x 84.\n\n```text\n7 MB\n```\n", None),
    ],
)
def test_what_is_wrong_with_a_page_is_said_in_a_line(text, problem, sources):
    listed = {"pages": {"a.md": ["It takes {a[ours][speed]:.0f} s on two cores"]}, "given": {}}
    found = figures.check({"a.md": text}, listed, sources)[0]
    assert found == [] if problem is None else problem in found[0]
    assert all("\n" not in line for line in found)


def test_a_source_that_is_missing_and_a_text_that_no_page_has_are_named(sources):
    listed = {
        "pages": {"a.md": ["It takes {a[others][speed]:.0f} s"]},
        "given": {"a setting": ["every 5 s", "after 6 s"]},
    }
    missing, unused = figures.check({"a.md": "It takes `8` s, every 5 s."}, listed, sources)[0]
    assert missing.startswith("a.md: there is no such source (KeyError: 'others'). Received: {a[others][speed]")
    assert unused == "benchmarks/figures.toml: 'after 6 s' is on no page"
