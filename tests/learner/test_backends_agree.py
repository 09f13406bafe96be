"""Both backends learn the same: weights, optimizer and metrics after updates from the same weights and batches."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from actor_learner.learner import batch
from actor_learner.runs.meter import look_up
from tests.support.backend_updates import CASES, IN_PARTS, learn
from tests.support.processes import patience

pytest.importorskip("jax", reason="needs jax")

SMALLEST = "regularized"
ROUNDING = {"td3/after/2": 2e-5, "crossq/after/12": 5e-6, "crossq/optimizer": 1e-5}
"""Greater differences. Adam divides a gradient by its own size: one number's first, 5e-8, is rounding for a part.

CrossQ's moments differ by 2e-5 of an array's largest number, SAC's by 8e-6: statistics of batches amplify it.
"""


@pytest.fixture
def learn_on_both(without_xla, tmp_path, monkeypatch):
    """A function that gives what each backend has learned in some cases; both run at the same time, this one here."""
    monkeypatch.setattr(batch, "CHUNK_NUMBERS", IN_PARTS)

    def learned(*cases):
        command = [sys.executable, "-m", "tests.support.backend_updates", tmp_path / "jax.npz", *cases]
        process = subprocess.Popen(command, env={**os.environ, "KERAS_BACKEND": "jax"})
        by_tensorflow = {}
        try:
            for case in cases:
                learn(case, by_tensorflow)
            assert process.wait(timeout=patience(280)) == 0
        finally:
            process.kill()
            process.wait()
        return {"tensorflow": by_tensorflow, "jax": dict(np.load(tmp_path / "jax.npz"))}

    return learned


def part(found, prefix):
    """The arrays of both backends whose names begin so."""
    names = [name for name in found["tensorflow"] if name.startswith(prefix)]
    assert names
    return [(name, found["tensorflow"][name], found["jax"][name]) for name in names]


def assert_agree(found, case):
    """Weights, optimizer and metrics, of which some have changed."""
    changes = [
        np.abs(one - found["jax"][name.replace("before", "after")]).max()
        for name, _, one in part(found, f"{case}/before/")
    ]
    assert max(changes) > 1e-5, case
    for name, expected, actual in [*part(found, f"{case}/after/"), *part(found, f"{case}/optimizer/")]:
        rounding = ROUNDING.get(name, ROUNDING.get(name.rpartition("/")[0], 1e-6))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=rounding, err_msg=name)
    for name, expected, actual in part(found, f"{case}/metrics/"):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_losses_of_layers(learn_on_both):
    assert_agree(learn_on_both(SMALLEST), SMALLEST)


@pytest.mark.thorough
def test_weights_optimizer_and_metrics(learn_on_both):
    """One test for all cases: each backend starts once."""
    cases = [case for case in CASES if case != SMALLEST]
    found = learn_on_both(*cases)
    for case in cases:
        assert_agree(found, case)
    metrics = {name.split("/", 3)[3] for name in found["jax"] if "/metrics/" in name}
    assert {name for name in metrics if look_up(name) is None} == set()
    assert_that_an_update_was_undone(found)
    assert_that_layers_may_assign_wherever_they_are_called(found)
    assert_that_weights_without_a_gradient_do_not_decay(found["jax"], "unused")


def assert_that_an_update_was_undone(found):
    for backend in found.values():
        assert backend["mlp/undone"].astype(bool).tolist() == [False, False, True, False]


def assert_that_layers_may_assign_wherever_they_are_called(found):
    """In the loss, in parts of a batch and for last observations, which are evaluated by branches and loops."""
    counts = {name: float(arrays["counting/after/0"]) for name, arrays in found.items()}
    assert counts["jax"] == counts["tensorflow"] > 3


def assert_that_weights_without_a_gradient_do_not_decay(arrays, case):
    """The gradient of what the loss ignores is None, not zero."""
    names = [name for name in arrays if name.startswith(f"{case}/before/")]
    same = [np.array_equal(arrays[name], arrays[name.replace("before", "after")]) for name in names]
    assert any(same), case
    assert not all(same), case
