"""Processes that `jax.distributed` joins share each update, as hosts would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.support.processes import patience
from tests.support.quick_xla import QUICK_XLA

CASE = "normalization"  # statistics of observations and of rewards, rows that are left out, the end by target_kl


def start(address, index, output):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": QUICK_XLA}
    command = [sys.executable, "-m", "tests.support.hosts", address, str(index), str(output), CASE]
    return subprocess.Popen(command, env=environment)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.thorough
def test_two_hosts_learn_what_one_does(tmp_path):
    pytest.importorskip("jax", reason="needs jax")
    address = f"127.0.0.1:{free_port()}"
    processes = []
    try:
        processes += [start(address, index, tmp_path / f"{index}.npz") for index in range(2)]
        processes.append(start("none", 0, tmp_path / "one.npz"))
        assert [process.wait(patience(280)) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second, one = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("0", "1", "one"))
    assert first.keys() == second.keys() == one.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], array, rtol=1e-6, atol=2e-6, err_msg=name)
