"""Several devices share an update: the same result as one's, each with its part of the work."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys

import pytest

import actor_learner as al
from actor_learner.algorithms.source import ShuffledEpochs
from tests.support.backend_updates import CASES
from tests.support.processes import patience
from tests.support.quick_xla import QUICK_XLA

SHARED = ("mlp", "images", "memory", "pqn")


def sizes(shapes):
    """The first axis of each shape, as in "f32[32,64]"."""
    return {int(re.findall(r"\d+", shape.partition("[")[2])[0]) for shape in shapes if "[]" not in shape}


@pytest.mark.thorough
def test_two_devices_learn_what_one_does_each_with_half_of_the_work(tmp_path):
    """Weights, optimizer and metrics are the same, with an undone update and rows that are left out among them."""
    pytest.importorskip("jax", reason="needs jax")
    environment = {"KERAS_BACKEND": "jax", "XLA_FLAGS": f"{QUICK_XLA} --xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-m", "tests.support.shared_updates", str(tmp_path / "found.json"), *SHARED]
    subprocess.run(command, env={**os.environ, **environment}, timeout=patience(290), check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    for case in SHARED:
        assert found[case]["difference"] < 2e-6, case
        assert_that_no_observation_leaves_its_device(found[case]["gathered"], case)
    # A minibatch of 64 rows is two of 32; values of 65 steps of 8 columns are two of 65 of 4.
    assert CASES["mlp"][3]().minibatch_size == 64
    rows = sizes(found["mlp"]["products"])
    assert {32, 65 * 4} <= rows
    assert not {64 * 8, 65 * 8} & rows
    assert_that_little_is_passed_and_no_loop_asks_the_host(found["known length"])


def assert_that_little_is_passed_and_no_loop_asks_the_host(program):
    """State and batch come as a few vectors."""
    assert program["parameters"] <= 6
    assert program["known"] == program["loops"] > 0


def assert_that_no_observation_leaves_its_device(gathered, case):
    """Weights' gradients are added up; nothing with a row's axes is gathered, but vectors of columns and of flags."""
    steps, columns = CASES[case][4:6]
    for shape in gathered:
        numbers = [int(number) for number in re.findall(r"\d+", shape.partition("[")[2])]
        assert math.prod(numbers) < steps * columns // 2, (case, shape)


def test_minibatches_that_devices_cannot_share_are_refused():
    with pytest.raises(ValueError, match=r"`minibatch_size` must be a multiple of the devices.*minibatch_size=65"):
        ShuffledEpochs(1, 65).share(2)
    assert ShuffledEpochs(3, 64).share(4) == ShuffledEpochs(3, 16)
    assert ShuffledEpochs(3).share(4) == ShuffledEpochs(3)


def test_tensorflow_has_one_device():
    with pytest.raises(ValueError, match=r"`devices` above 1 needs JAX \(--backend jax\). Received: devices=2"):
        al.TrainConfig(devices=2)
    network = al.default_network(CASES["mlp"][0], CASES["mlp"][1])
    with pytest.raises(ValueError, match=r"only JAX shares an update"):
        al.Learner(network, al.PPO(), action_space=CASES["mlp"][1], devices=2)
