"""Both backends learn the same: weights, optimizer and metrics after updates from the same weights and batches."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from actor_learner.learner import batch
from tests.support.backend_updates import CASES, IN_PARTS, learn
from tests.support.processes import patience

pytest.importorskip("jax", reason="needs jax")

SMALLEST = "regularized"
ROUNDING = {"td3/after/2": 2e-5}
"""Greater differences. Adam divides a gradient by its own size: one number's first, 5e-8, is rounding for a part."""
OTHERS = tuple(case for case in CASES if case != SMALLEST)


@pytest.fixture(scope="module")
def found(without_xla, tmp_path_factory):
    """A function that gives what each backend has learned in a case; both run at the same time, this one here."""

    @functools.cache
    def learned(cases):
        file = tmp_path_factory.mktemp("backends") / "jax.npz"
        command = [sys.executable, "-m", "tests.support.backend_updates", file, *cases]
        process = subprocess.Popen(command, env={**os.environ, "KERAS_BACKEND": "jax"})
        by_tensorflow = {}
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(batch, "CHUNK_NUMBERS", IN_PARTS)
                for case in cases:
                    learn(case, by_tensorflow)
            assert process.wait(timeout=patience(280)) == 0
        finally:
            process.kill()
            process.wait()
        return {"tensorflow": by_tensorflow, "jax": dict(np.load(file))}

    return lambda case: learned((SMALLEST,) if case == SMALLEST else OTHERS)


def part(found, prefix):
    """The arrays of both backends whose names begin so."""
    names = [name for name in found["tensorflow"] if name.startswith(prefix)]
    assert names
    return [(name, found["tensorflow"][name], found["jax"][name]) for name in names]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(SMALLEST, marks=pytest.mark.slow),
        *(pytest.param(case, marks=pytest.mark.thorough) for case in OTHERS),
    ],
)
def test_weights_optimizer_and_metrics(found, case):
    arrays = found(case)
    changes = [
        np.abs(one - arrays["jax"][name.replace("before", "after")]).max()
        for name, _, one in part(arrays, f"{case}/before/")
    ]
    assert max(changes) > 1e-5
    if "float16" in case:
        return
    for name, expected, actual in [*part(arrays, f"{case}/after/"), *part(arrays, f"{case}/optimizer/")]:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=ROUNDING.get(name, 1e-6), err_msg=name)
    for name, expected, actual in part(arrays, f"{case}/metrics/"):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.thorough
def test_an_update_is_undone_on_both(found):
    for backend in found("mlp").values():
        assert backend["mlp/undone"].astype(bool).tolist() == [False, False, True, False]


@pytest.mark.thorough
def test_variables_that_a_layer_assigns_wherever_it_is_called(found):
    """In the loss, in parts of a batch and for last observations, which are evaluated by branches and loops."""
    counts = {name: float(arrays["counting/after/0"]) for name, arrays in found("counting").items()}
    assert counts["jax"] == counts["tensorflow"] > 3


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["unused", "unused, float16"])
def test_weights_that_the_loss_ignores_do_not_decay(found, case):
    """Their gradient is None, not zero."""
    arrays = found(case)["jax"]
    names = [name for name in arrays if name.startswith(f"{case}/before/")]
    same = [np.array_equal(arrays[name], arrays[name.replace("before", "after")]) for name in names]
    assert any(same)
    assert not all(same)
