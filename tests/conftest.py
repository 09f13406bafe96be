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


@pytest.fixture
def without_xla(request, monkeypatch):
    """Lets small networks learn without XLA, as large ones do, unless a test is marked `xla`.

    For tests of what doesn't depend on it: compiling takes XLA seconds for each learner.
    """
    if request.node.get_closest_marker("xla") is None:
        monkeypatch.setattr("actor_learner.learner.devices.XLA_MAXIMUM_FLOPS", 0.0)
