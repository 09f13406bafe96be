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


XLA_RULE = "actor_learner.learner.tf.devices.XLA_MAXIMUM_FLOPS"


@pytest.fixture(scope="module")
def without_xla():
    """Lets small networks learn without XLA, as large ones do, in the module's tests and in the runs that they share.

    For tests of what doesn't depend on it: compiling takes XLA seconds for each learner.
    """
    from actor_learner.learner.tf import devices

    usual = devices.XLA_MAXIMUM_FLOPS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(XLA_RULE, 0.0)
        yield usual


@pytest.fixture(autouse=True)
def _with_xla(request, monkeypatch):
    """Learners of a test that is marked `xla` are compiled by it nevertheless."""
    if request.node.get_closest_marker("xla"):
        monkeypatch.setattr(XLA_RULE, request.getfixturevalue("without_xla"))
