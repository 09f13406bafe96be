"""Writes the measured figures of the README and of docs/ as their sources have them, or checks them.

    scripts/measure figures            # after a measurement: writes each figure anew
    scripts/measure figures --check    # lists the figures that differ from their source or have none

`figures.toml` has the text around each figure, and in braces its place in a JSON file of benchmarks/:
`{deploy/policy[litert][megabytes]:.0f} MB` is the entry of deploy/policy.json, in Python's format. Of a list, an entry
is that of each element: `[runs][lag1][speed]`; `[lag1/sb3]` divides two lists element by element, `[a,b]` takes several
entries, `[newest]` the last one that has entries. A list is written as its median, with `!l` and `!h` as its least and
its highest, `!i` its interquartile mean, `!a` its mean, `!n` its length. `!k` divides by a thousand, `!m` multiplies.
Whole tables of docs/ are in `[tables]` alone: the site shows them where a page has `<!-- figures NAME -->`.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actor_learner.reports.curves import interquartile_mean
from benchmarks.harness import ROOT

NUMBER = r"[-+]?\d(?:[\d,.-]*\d)?%?"
UNITS = r"\s(?:s|ms|us|MB|GB|minutes|(?:env\s)?steps(?:/|\sa\s)s(?:econd)?|times)\b|x\b|%"
MEASURED = re.compile(rf"(?<![\w.^-])\d[\d,]*(?:\.\d+)?(?:{UNITS})")
NOT_PROSE = re.compile(r"^```.*?^```|`[^`\n]*`|^    .*?$", re.DOTALL | re.MULTILINE)
"""Blocks and pieces of code."""


class Record(dict[Any, Any]):
    """An object of a JSON file, with entries that follow from its own."""

    def __missing__(self, key: Any) -> Any:
        if key == "newest":
            return [entry for entry in self.values() if isinstance(entry, Record)][-1]
        if isinstance(key, int) and str(key) in self:
            return self[str(key)]
        over, _, under = str(key).partition("/")
        if over in self and under in self:
            return ratio(self[over], self[under])
        if "," in str(key):
            return Records(self[each] for each in key.split(","))
        raise KeyError(key)


class Records(list[Any]):
    """A list of a JSON file; an entry by name is that of each element, or the elements that have this `name`."""

    def __getitem__(self, key: Any) -> Any:
        if named := [each for each in self if isinstance(each, Record) and each.get("name") == key]:
            return Records(named)
        return super().__getitem__(key) if isinstance(key, int) else Records(each[key] for each in self)


class Ratio(NamedTuple):
    """An entry of it is the quotient of the entries of both."""

    over: Any
    under: Any

    def __getitem__(self, key: Any) -> Any:
        return self.over[key] / self.under[key]


def ratio(over: Any, under: Any) -> Any:
    """Return the ratio of two objects, or of each two in lists, without those of which one is missing."""
    if isinstance(over, list):
        return Records(Ratio(*pair) for pair in zip(over, under, strict=True) if all(pair))
    return Ratio(over, under)


def median(value: Any) -> Any:
    """Return a number as it is, and the median of a list, without the missing ones."""
    return statistics.median(median(each) for each in value if each is not None) if isinstance(value, list) else value


CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "l": lambda values: min(map(median, values)),
    "h": lambda values: max(map(median, values)),
    "i": lambda values: float(interquartile_mean(np.array(values)[:, None])[0]),
    "a": statistics.mean,
    "n": lambda values: sum(each is not None for each in values),
    "k": lambda value: median(value) / 1000,
    "m": lambda value: median(value) * 1000,
}


class Sources(string.Formatter):
    """Formats a text whose fields are places in the JSON files of a folder. names: short names of places."""

    def __init__(self, folder: Path, names: Mapping[str, str]) -> None:
        self._load = functools.cache(lambda name: read(folder / f"{name}.json"))
        self._names = names

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return self.get_field(self._names[key], args, kwargs)[0] if key in self._names else self._load(key)

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return CONVERSIONS[conversion](value) if conversion else value

    def format_field(self, value: Any, format_spec: str) -> str:
        return format(median(value), format_spec)


def read(file: Path) -> Any:
    def wrap(value: Any) -> Any:
        if isinstance(value, dict):
            return Record({key: wrap(each) for key, each in value.items()})
        return Records(map(wrap, value)) if isinstance(value, list) else value

    return wrap(json.loads(file.read_text(encoding="utf-8")))


class Figure(NamedTuple):
    """A figure of a page: where it stands, and what its source has. start, end: places in the page's text."""

    start: int
    end: int
    expected: str


def pages(root: Path) -> dict[str, str]:
    """Return the text of the README and of each page in docs/, by its path."""
    files = (root / "README.md", *sorted((root / "docs").rglob("*.md")))
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def find(text: str, entry: str, sources: Sources) -> list[Figure]:
    """Return the figures of an entry of figures.toml. Raises ValueError unless its text stands in the page once."""
    pattern, expected = "", []
    for words, place, spec, conversion in sources.parse(entry):
        pattern += _pattern(words)
        if place is not None:
            field = f"{{{place}{f'!{conversion}' if conversion else ''}:{spec}}}"
            try:
                expected.append(sources.format(field))
            except (LookupError, TypeError, ValueError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
                raise ValueError(f"there is no such source ({why}). Received: {field}") from None
            pattern += f"({NUMBER})"
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ValueError(f"the text must stand in the page once, not {len(found)} times. Received: {entry!r}")
    return [Figure(*found[0].span(number), value) for number, value in enumerate(expected, 1)]


def without_source(text: str, figures: Sequence[Figure], given: Sequence[str]) -> Iterator[re.Match[str]]:
    """Yield the numbers with a unit that are neither figures with a source nor in a text that needs none."""
    known = [range(figure.start, figure.end) for figure in figures]
    known += [range(*match.span()) for words in given for match in re.finditer(_pattern(words), text)]
    known += [range(*match.span()) for match in NOT_PROSE.finditer(text)]
    for match in MEASURED.finditer(text):
        if not any(match.start() in place for place in known):
            yield match


def _pattern(words: str) -> str:
    """Return a pattern of the words that may be on several lines."""
    return re.sub(r"(\\\s|\s)+", r"\\s+", re.escape(words))


def check(texts: Mapping[str, str], listed: Mapping[str, Any], sources: Sources) -> tuple[list[str], dict[str, str]]:
    """Return what is wrong, a line each, and the pages with all figures as their sources have them."""
    problems, written = [], dict(texts)
    given = [words for group in listed["given"].values() for words in group]
    for page, text in texts.items():
        figures = []
        for entry in listed["pages"].get(page, ()):
            try:
                figures += find(text, entry, sources)
            except ValueError as error:
                problems.append(f"{page}: {error}")
        for figure in sorted(figures, reverse=True):
            if (stands := text[figure.start : figure.end]) != figure.expected:
                line = text.count("\n", 0, figure.start) + 1
                problems.append(f"{page}, line {line}: {stands} stands there, its source has {figure.expected}")
                written[page] = written[page][: figure.start] + figure.expected + written[page][figure.end :]
        for match in without_source(text, figures, given):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{page}, line {line}: {match[0]!r} has no source in benchmarks/figures.toml")
    prose = "\n".join(texts.values())
    stale = [words for words in given if not re.search(_pattern(words), prose)]
    return problems + [f"benchmarks/figures.toml: {words!r} is on no page" for words in stale], written


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/measure figures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something is wrong")
    arguments = parser.parse_args()
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    texts, sources = pages(ROOT), Sources(ROOT / "benchmarks", listed["names"])
    problems, written = check(texts, listed, sources)
    if not arguments.check:
        for page, text in written.items():
            if text != texts[page]:
                (ROOT / page).write_text(text, encoding="utf-8")
                print(f"written: {page}")
        problems = check(written, listed, sources)[0]
    print("\n".join(problems) or "Each figure is as its source has it.")
    return int(bool(problems))
