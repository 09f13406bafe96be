"""Set before anything imports TensorFlow: no start-up messages, one core for each worker, a cache of our own."""

import gc
import os
import pkgutil
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("ACTOR_LEARNER_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "actor_learner"))


def pytest_collection_finish():
    """By now TensorFlow is imported: the garbage collector needn't walk through its objects again and again."""
    gc.collect()
    gc.freeze()


XLA_RULES = {
    "actor_learner.learner.cost.SMALL_FLOPS": 0.0,
    "actor_learner.learner.tf.devices.Memories": lambda network: (),
}
"""What decides that XLA compiles an update, and what stands there where it doesn't."""


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


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="only tests that start no process and train nothing")


def pytest_collection_modifyitems(config, items):
    """Leaves out what is marked as slow, and what trains (`without_xla` is for those)."""
    if config.getoption("--quick"):
        slow = [item for item in items if {"slow", "xla"} & {mark.name for mark in item.iter_markers()}]
        slow += [item for item in items if "without_xla" in item.fixturenames]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch):
    """With `--quick`, a test that starts a process or learns fails: mark it as slow."""
    if request.config.getoption("--quick"):
        # The learner first: to import it starts a process.
        for name in ("actor_learner.learner.learner.Learner.update", "subprocess.Popen.__init__"):
            monkeypatch.setattr(
                name, lambda *_, name=name, **__: pytest.fail(f"--quick: {name}; mark the test as slow")
            )


@pytest.fixture(autouse=True)
def _with_xla(request, monkeypatch):
    """Learners of a test that is marked `xla` are compiled by it nevertheless."""
    if request.node.get_closest_marker("xla"):
        for rule, value in request.getfixturevalue("without_xla").items():
            monkeypatch.setattr(rule, value)
