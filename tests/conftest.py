"""Tiers, what unmarked tests may not do, and what is set before anything imports TensorFlow.

    --quick   unmarked tests: they start no process, train nothing, and are quick
    (none)    all but those marked `thorough`
    --all     all

`--rest` leaves out what `--quick` runs: so `scripts/test` runs each test once, the quick ones first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pkgutil
import re
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from actor_learner.system import compile_cache
from actor_learner.system.machine import available_cores
from tests.support.processes import children, open_descriptors
from tests.support.quick_xla import QUICK_XLA

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("ACTOR_LEARNER_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "actor_learner"))

compile_cache.begin = lambda threads=None: None
"""In processes that tests start it is as it is; here, the first test that trains would begin it for all others."""

hypothesis.settings.register_profile(
    "beside other load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("beside other load")

XLA_RULES = {
    "actor_learner.learner.cost.SMALL_FLOPS": 0.0,
    "actor_learner.learner.tf.devices.Memories": lambda network: (),
}
"""What decides that XLA compiles an update, and what stands there where it doesn't."""


def pytest_addoption(parser):
    group = parser.getgroup("tiers")
    group.addoption("--quick", action="store_true", help="only tests that start no process and train nothing")
    group.addoption("--all", action="store_true", help="tests that are marked `thorough`, too")
    group.addoption("--rest", action="store_true", help="leave out the tests of --quick")


def pytest_configure():
    """Handle Ctrl-C and hang-ups as a shell's programs do, under `nohup` and in the background, too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


SLOW_MARKS = ("slow", "xla", "thorough")


def is_quick(item):
    """Whether a test starts no process and trains nothing; `without_xla` is for those that train."""
    return not any(map(item.get_closest_marker, SLOW_MARKS)) and "without_xla" not in item.fixturenames


def pytest_ignore_collect(collection_path, config):
    """Spare `--quick` the import of files that are marked as a whole."""
    if config.getoption("quick") and collection_path.match("test_*.py"):
        words = "|".join((*SLOW_MARKS, "without_xla"))
        if re.search(rf"^pytestmark = .*\b({words})\b", collection_path.read_text("utf-8"), re.M):
            return True
    return None


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of other tiers, but for those that the command line names one by one."""
    named = tuple(argument for argument in config.args if "::" in argument)
    quick, thorough, rest = map(config.getoption, ("quick", "all", "rest"))

    def runs(item):
        if (quick or rest) and is_quick(item) != quick:
            return False
        return thorough or item.nodeid.startswith(named) or not item.get_closest_marker("thorough")

    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    items[:] = [item for item in items if runs(item)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """A worker for each core that a cgroup's quota leaves, and no more than the memory of a usual machine has room for.

    pytest-xdist itself counts the machine's cores.
    """
    return min(8, available_cores())


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports make no garbage, and looking for it costs a third of their time; what they make is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


class QuickTests:
    """A plugin: an unmarked test fails if it, or a fixture that it uses, starts a process or lets a learner learn."""

    EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

    def __init__(self):
        self._test = None  # the unmarked test that runs
        self._found = []  # what it has done
        self._fixtures = []  # that are being set up
        self._slow_fixtures = set()
        sys.addaudithook(self._watch)

    def _watch(self, event, arguments):
        # `platform.processor()` starts `uname`, and matplotlib's first import on a machine `fc-list`.
        started = list(arguments[1])[:1] if event == "subprocess.Popen" else []
        if event in self.EVENTS and started not in (["uname"], ["fc-list"]):
            self.refuse(f"it starts a process ({event}{str(arguments[1])[:80] if len(arguments) > 1 else ''})")

    def refuse(self, what):
        self._slow_fixtures |= {id(fixture) for fixture in self._fixtures}
        if self._test is not None:
            self._found.append(what)
            pytest.fail(f"{what}: mark the test as slow")

    def watch_learners(self):
        for module, kind in (("learner.base", "Learner"), ("learner.replay", "ReplayLearner")):
            learner = getattr(sys.modules.get(f"actor_learner.{module}"), kind, None)
            if learner is not None and not hasattr(learner.update, "__wrapped__"):
                learner.update = self._watched(learner.update)

    def _watched(self, update):
        @functools.wraps(update)
        def watched(*arguments, **options):
            self.refuse("it learns (Learner.update)")
            return update(*arguments, **options)

        return watched

    @contextlib.contextmanager
    def running(self, item):
        """Fail a quick `item` after this phase if something in it, or an earlier set-up of its fixtures, was slow."""
        if not is_quick(item):
            yield
            return
        self._test, self._found = item.nodeid, []
        try:
            yield
        finally:
            self._test = None
        definitions = [each for name in item.fixturenames for each in item._fixtureinfo.name2fixturedefs.get(name, ())]
        if any(id(each) in self._slow_fixtures for each in definitions):
            self._found.append("it uses a fixture that starts a process or learns")
        if self._found:  # where the test itself caught the failure, or another thread met it
            pytest.fail(f"{self._found[0]}: mark the test as slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        self._fixtures.append(fixturedef)
        try:
            return (yield)
        finally:
            self._fixtures.pop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        self.watch_learners()
        with self.running(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        with self.running(item):
            return (yield)


def pytest_sessionstart(session):
    session.config.pluginmanager.register(QuickTests(), "quick-tests")


@pytest.fixture(scope="module")
def without_xla():
    """Lets networks that are small, or have a memory, learn without XLA, as large ones do, in the module's tests.

    For tests of what doesn't depend on it: compiling takes XLA seconds for each learner.
    """
    usual = {rule: pkgutil.resolve_name(rule) for rule in XLA_RULES}
    with pytest.MonkeyPatch.context() as patch:
        for rule, value in XLA_RULES.items():
            patch.setattr(rule, value)
        yield usual


@pytest.fixture(autouse=True)
def _with_xla(request, monkeypatch):
    """Learners of a test that is marked `xla` are compiled by it nevertheless."""
    if request.node.get_closest_marker("xla"):
        for rule, value in request.getfixturevalue("without_xla").items():
            monkeypatch.setattr(rule, value)


@pytest.fixture
def nothing_is_left():
    """A test ends with no child and no descriptor that wasn't there before."""
    processes, descriptors = children(), open_descriptors()
    yield
    gc.collect()
    assert children() <= processes
    assert not Counter(open_descriptors()) - Counter(descriptors)
