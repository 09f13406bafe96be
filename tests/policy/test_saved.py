"""Saved policies act the same in another process, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import Policy, load_policy
from actor_learner.spaces.kinds import to_json
from actor_learner.system.files import write_manifest
from actor_learner.system.keras_import import silent_stderr
from tests.support.exporting import Inexpressible
from tests.support.policies import ACTIONS, TORQUES, VECTOR, acted
from tests.support.processes import patience

ROOT = Path(__file__).parents[2]


def test_saved_and_loaded(tmp_path, exported, gaussian):
    for name, each in (("discrete", exported), ("gaussian", gaussian)):
        each.save(tmp_path / name / "policy")
        for directory in (tmp_path / name, tmp_path / name / "policy"):
            loaded, original = load_policy(directory, seed=4), Policy(each, seed=4)
            assert acted(loaded) == acted(original)
            assert loaded.action_space == original.action_space


def test_loaded_is_equal_to_saved(tmp_path, gaussian):
    gaussian.save(tmp_path)
    loaded = ExportedPolicy.load(tmp_path)
    for name, value in vars(gaussian).items():
        np.testing.assert_equal(vars(loaded)[name], value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "policy.json",
        "step.tflite",
        "value.tflite",
        "weights.npy",
    ]
    assert json.loads((tmp_path / "policy.json").read_text())["action_space"] == to_json(TORQUES)


def test_loading_from_elsewhere_is_one_clear_error(tmp_path, exported):
    with pytest.raises(ValueError, match=r"no exported policy.*Received: .*missing"):
        load_policy(tmp_path / "missing")
    exported.save(tmp_path)
    description = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({**description, "format": 99}))
    write_manifest(tmp_path)
    with pytest.raises(ValueError, match=r"policy.json is in format 99, .* or a newer one \(\d.* Received: file="):
        load_policy(tmp_path)


def printed(script, *arguments):
    """Returns the lines that a script prints in a process of its own, and what it says on standard error."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=patience(60))
    return done.stdout.splitlines(), done.stderr


ACT = """
import os, sys
if sys.argv[1] == "closed":
    os.close(2)
from actor_learner.policy.policy import load_policy
from tests.support.policies import acted
for folder in sys.argv[2:]:
    print(acted(load_policy(folder, seed=9)).hex())
loaded = [name for name in ("tensorflow", "keras") if name in sys.modules]
mapped = [line for line in open("/proc/self/maps") if "tensorflow/" in line] if sys.platform == "linux" else []
print(loaded, mapped)
"""


@pytest.mark.slow
@pytest.mark.parametrize("standard_error", ["open", "closed"])
def test_another_process_acts_the_same_without_tensorflow(tmp_path, exported, gaussian, composite, standard_error):
    policies = {"exported": exported, "gaussian": gaussian, "composite": composite}
    for name, each in policies.items():
        each.save(tmp_path / name)
    lines, told = printed(ACT, standard_error, *(tmp_path / name for name in policies))
    assert lines == [*(acted(Policy(each, seed=9)).hex() for each in policies.values()), "[] []"]
    assert told == ""


def test_silence_ends(capfd):
    with silent_stderr():
        os.write(2, b"unheard")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
    with pytest.raises(ZeroDivisionError), silent_stderr():
        raise ZeroDivisionError
    os.write(2, b"again")
    assert capfd.readouterr().err == "again"


def test_silence_leaks_no_file_descriptor():
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with silent_stderr():
            pass
    assert len(os.listdir("/dev/fd")) == before


FALL_BACK = """
import sys
import numpy as np
from actor_learner.policy.policy import load_policy
policy = load_policy(sys.argv[1], seed=9)
print(policy.value(np.ones((6, 4), np.float32)).tolist())
import tensorflow as tf
print(tf.config.get_visible_devices("GPU"))
"""


@pytest.mark.thorough
def test_fallback_in_another_process(tmp_path):
    """The process needs TensorFlow, but not the code of the layers, and sees no GPU."""
    observation = keras.Input((4,))
    hidden = Inexpressible()(observation)
    network = keras.Model(observation, (layers.Dense(3)(hidden), layers.Dense(1)(hidden)))
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        exported = export_policy(network, ACTIONS, 6, VECTOR)
    exported.save(tmp_path)
    (values, devices), _ = printed(FALL_BACK, tmp_path)
    np.testing.assert_allclose(json.loads(values), Policy(exported).value(np.ones((6, 4), np.float32)), atol=1e-6)
    assert devices == "[]"
