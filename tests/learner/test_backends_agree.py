"""Both backends learn the same: weights, optimizer and metrics after updates from the same weights and batches."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.backend_updates import CASES
from tests.support.quick_xla import QUICK_XLA

pytestmark = pytest.mark.slow
IN_FLOAT32 = [case for case in CASES if "float16" not in case]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each backend has learned; both run at the same time."""
    folder = tmp_path_factory.mktemp("backends")
    files = {name: folder / f"{name}.npz" for name in ("tensorflow", "jax")}
    command = [sys.executable, "-m", "tests.support.backend_updates"]
    processes = [
        subprocess.Popen([*command, str(file)], env={**os.environ, "KERAS_BACKEND": name, "XLA_FLAGS": QUICK_XLA})
        for name, file in files.items()
    ]
    try:
        assert [process.wait(timeout=280) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return {name: dict(np.load(file)) for name, file in files.items()}


def part(found, prefix):
    """The arrays of both backends whose names begin so, without those that only count."""
    names = [name for name in found["tensorflow"] if name.startswith(prefix)]
    assert names
    return [(name, found["tensorflow"][name], found["jax"][name]) for name in names]


@pytest.mark.parametrize("case", IN_FLOAT32)
def test_weights_and_optimizer(found, case):
    for name, expected, actual in [*part(found, f"{case}/after/"), *part(found, f"{case}/optimizer/")]:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", IN_FLOAT32)
def test_metrics(found, case):
    for name, expected, actual in part(found, f"{case}/metrics/"):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_something_was_learned(found, case):
    names = [name for name in found["jax"] if name.startswith(f"{case}/before/")]
    changes = [np.abs(found["jax"][name] - found["jax"][name.replace("before", "after")]).max() for name in names]
    assert max(changes) > 1e-5


def test_an_update_is_undone_on_both(found):
    for backend in found.values():
        assert backend["mlp/undone"].astype(bool).tolist() == [False, False, True, False]


def test_variables_that_a_layer_assigns_wherever_it_is_called(found):
    """In the loss, in parts of a batch and for last observations, which are evaluated by branches and loops."""
    counts = {name: float(arrays["counting/after/0"]) for name, arrays in found.items()}
    assert counts["jax"] == counts["tensorflow"] > 3


@pytest.mark.parametrize("case", ["unused", "unused, float16"])
def test_weights_that_the_loss_ignores_do_not_decay(found, case):
    """Their gradient is None, not zero."""
    names = [name for name in found["jax"] if name.startswith(f"{case}/before/")]
    same = [np.array_equal(found["jax"][name], found["jax"][name.replace("before", "after")]) for name in names]
    assert any(same)
    assert not all(same)
