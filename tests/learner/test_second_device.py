"""All weights and tensors of a run are on its device: tried with two fake devices, of which it has the second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.processes import patience
from tests.support.quick_xla import QUICK_XLA

ALL_THERE = {"network": [], "learner": [], "loaded": []}


def found_on(backend, folder):
    """What `tests.support.second_device` prints, in a process with two devices."""
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.second_device", str(folder)],
        env={**os.environ, "KERAS_BACKEND": backend, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_nothing_of_a_run_is_on_another_device(backend, tmp_path):
    """JAX refuses copies between devices meanwhile, and moves a network that was built elsewhere; TensorFlow can't."""
    if find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    found = found_on(backend, tmp_path)
    assert found["ppo"] == found["sac"] == ALL_THERE
    assert found["read"] == ["/CPU:1"]
    if backend == "jax":
        assert found["user"] == []
    else:
        assert found["user"] == (
            "The network must be on the learner's device: build it under `tf.device('/CPU:1')`. "
            "Received: device='/CPU:1', weights on CPU:0"
        )
