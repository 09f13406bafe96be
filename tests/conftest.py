"""Set before anything imports TensorFlow: no start-up messages, one core for each worker, a cache of our own."""

import gc
import os
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


XLA_RULE = "actor_learner.learner.cost.SMALL_FLOPS"


@pytest.fixture(scope="module")
def without_xla():
    """Lets small networks learn without XLA, as large ones do, in the module's tests and in the runs that they share.

    For tests of what doesn't depend on it: compiling takes XLA seconds for each learner.
    """
    from actor_learner.learner import cost

    usual = cost.SMALL_FLOPS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(XLA_RULE, 0.0)
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
        monkeypatch.setattr(XLA_RULE, request.getfixturevalue("without_xla"))
