"""The tiers of tests, and what unmarked ones may not do: pytest runs with this project's hooks on files of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os, platform, subprocess, threading
import pytest

def start():
    return subprocess.run(["true"], check=True).returncode

@pytest.fixture(scope="module")
def started():
    return start()

def test_quiet():
    assert platform.processor() is not None  # starts `uname -p`

def test_process():
    start()

def test_caught():
    try:
        start()
    except BaseException:
        pass

def test_thread():
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

def test_fork():
    if not os.fork():
        os._exit(0)

@pytest.mark.slow
def test_slow(started):
    assert started == 0

def test_fixture_of_a_slow_test(started):
    pass

@pytest.mark.thorough
def test_thorough():
    start()
"""
LEARNS = """
from actor_learner.learner.base import Learner

def test_learns():
    Learner.update(None, None)
"""
UNFAIR = {"test_process", "test_caught", "test_thread", "test_fork", "test_fixture_of_a_slow_test", "test_learns"}


@pytest.mark.slow
def test_unmarked_tests_that_start_a_process_or_learn_fail_in_every_tier(tmp_path):
    (tmp_path / "test_file.py").write_text(TESTS)
    (tmp_path / "test_learns.py").write_text(LEARNS)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:randomly"]  # in the order of the file
    command = [sys.executable, "-m", "pytest", *plugins, "-rA", "--tb=no"]
    fair = {"": {"test_quiet", "test_slow"}, "--quick": {"test_quiet"}, "--rest": {"test_slow"}}
    for tier, expected in {**fair, "--all": {"test_quiet", "test_slow", "test_thorough"}}.items():
        files = [tmp_path / name for name in ("test_file.py", "test_learns.py")[: 1 if tier else 2]]
        words = [*command, f"--rootdir={tmp_path}", *files, *([tier] if tier else [])]
        printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
        found = {word: set(re.findall(rf"^{word} \S*::(\w+)", printed, re.M)) for word in ("PASSED", "FAILED", "ERROR")}
        failed = found["FAILED"] | found["ERROR"]
        assert found["PASSED"] - failed == expected, printed
        unfair = set() if tier == "--rest" else UNFAIR
        assert failed == (unfair - {"test_learns"} if tier else unfair), printed
