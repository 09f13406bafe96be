"""The list of topics, and the functions of the package that measuring programs observe by name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name

import pytest

from benchmarks.__main__ import TOPICS, summary
from benchmarks.overhead.overhead import TIMED
from benchmarks.speed import timeline

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]


def test_every_topic_has_a_program_and_a_line():
    done = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True)
    for topic in TOPICS:
        assert summary(topic)
        assert f"  {topic} " in done.stdout


def test_an_unknown_topic_is_refused_in_one_line():
    done = subprocess.run([sys.executable, "-m", "benchmarks", "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/measure: error: unknown topic 'nothing'")


def exists(modules, path):
    for module in modules.split():
        try:
            attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError):
            continue
        return True
    return False


def test_each_mark_of_the_timeline_has_a_function():
    places = (*timeline.BEFORE_TENSORFLOW, *timeline.WITH_TENSORFLOW, (*timeline.IMPORTS_TENSORFLOW, "learner"))
    found = {name for modules, path, name in places if exists(modules, path)}
    assert found == {name for _, _, name in places}


@pytest.mark.parametrize("subject", TIMED)
def test_what_the_overhead_program_times_exists(subject):
    for _, owner, method in TIMED[subject]:
        assert callable(getattr(resolve_name(owner), method))
