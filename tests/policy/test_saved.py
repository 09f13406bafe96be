"""Saved policies act the same in another process, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

from actor_learner.networks import default
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import Policy, load_policy
from actor_learner.spaces.kinds import to_json
from actor_learner.spaces.structure import observation_structure
from actor_learner.system.files import write_manifest
from actor_learner.system.keras_import import silent_stderr
from tests.support.policies import ACTIONS, BATCH, TORQUES, VECTOR, observations
from tests.support.trajectories import HYBRID, SENSES


def test_saved_and_loaded(tmp_path, exported, gaussian):
    for name, each in (("discrete", exported), ("gaussian", gaussian)):
        each.save(tmp_path / name / "policy")
        for directory in (tmp_path / name, tmp_path / name / "policy"):
            loaded, original = load_policy(directory, seed=4), Policy(each, seed=4)
            for _ in range(5):
                for ours, theirs in zip(
                    loaded.step(observations(BATCH)), original.step(observations(BATCH)), strict=True
                ):
                    np.testing.assert_array_equal(ours, theirs)
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
    (tmp_path / "policy.json").write_text(json.dumps({**description, "version": 99}))
    write_manifest(tmp_path)
    with pytest.raises(ValueError, match=r"another version \(99\); export it again. Received: "):
        load_policy(tmp_path)


ACT_IN_A_BARE_PROCESS = """
import sys
import numpy as np
from actor_learner.policy.policy import load_policy
policy = load_policy(sys.argv[1], seed=9)
observation = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
for _ in range(5):
    action, log_prob = policy.step(observation)
    print(action.tolist(), [x.hex() for x in log_prob.astype(float).tolist()])
print(policy.value(observation).tobytes().hex())
loaded = [name for name in ("tensorflow", "keras") if name in sys.modules]
mapped = [line for line in open("/proc/self/maps") if "tensorflow/" in line] if sys.platform == "linux" else []
print(loaded, mapped)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exported", "gaussian"])
def test_another_process_acts_the_same_without_tensorflow(tmp_path, kind, request):
    each = request.getfixturevalue(kind)
    each.save(tmp_path)
    policy, observation = Policy(each, seed=9), observations(6)
    expected = []
    for _ in range(5):
        action, log_prob = policy.step(observation)
        expected.append(f"{action.tolist()} {[x.hex() for x in log_prob.astype(float).tolist()]}")
    expected += [policy.value(observation).tobytes().hex(), "[] []"]
    done = subprocess.run(
        [sys.executable, "-c", ACT_IN_A_BARE_PROCESS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == expected
    assert done.stderr == ""


ACT_ON_COMPOSITES = """
import sys
import numpy as np
from actor_learner.policy.policy import load_policy
policy = load_policy(sys.argv[1], seed=9)
structure = policy.spaces.observation
observation = structure.unflatten([np.ones((3, *leaf.shape), leaf.dtype) for leaf in structure.leaves])
mask = {"kind": np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])}
action, log_prob = policy.step(observation, mask)
assert action["kind"].tolist() == [1, 0, 2] == policy.act(observation, action_mask=mask)["kind"].tolist()
print(log_prob.tobytes().hex(), "tensorflow" in sys.modules, "keras" in sys.modules)
"""


@pytest.mark.slow
def test_composites_in_another_process(tmp_path):
    network = default.default_network(SENSES, HYBRID, image_network="impala")
    exported = export_policy(network, HYBRID, 3, SENSES, masked=True)
    exported.save(tmp_path)
    structure = observation_structure(SENSES)
    observation = structure.unflatten([np.ones((3, *leaf.shape), leaf.dtype) for leaf in structure.leaves])
    expected = Policy(exported, seed=9).step(observation, {"kind": np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])})[1]
    done = subprocess.run(
        [sys.executable, "-c", ACT_ON_COMPOSITES, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected.tobytes().hex(), "False", "False"]


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


@pytest.mark.slow
def test_acts_with_standard_error_closed(tmp_path, exported):
    exported.save(tmp_path)
    script = """
import os, sys
os.close(2)
import numpy as np
from actor_learner.policy.policy import load_policy
print(load_policy(sys.argv[1]).act(np.zeros(4)))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ACTIONS.contains(np.int64(done.stdout))


@pytest.mark.slow
def test_fallback_in_another_process(tmp_path):
    """The process needs TensorFlow, but not the code of the layers, and sees no GPU."""

    class Inexpressible(layers.Layer):
        def call(self, x):
            return x + keras.ops.cast(keras.ops.argmax(x, axis=-1, keepdims=True), "float32")

    observation = keras.Input((4,))
    hidden = Inexpressible()(observation)
    network = keras.Model(observation, (layers.Dense(3)(hidden), layers.Dense(1)(hidden)))
    with pytest.warns(UserWarning, match="LiteRT can't run"):
        exported = export_policy(network, ACTIONS, BATCH, VECTOR)
    exported.save(tmp_path)
    script = """
import sys
import numpy as np
from actor_learner.policy.policy import load_policy
policy = load_policy(sys.argv[1], seed=9)
print(policy.value(np.ones((6, 4), np.float32)).tolist())
import tensorflow as tf
print(tf.config.get_visible_devices("GPU"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    values = np.array(json.loads(done[0]))
    np.testing.assert_allclose(values, Policy(exported).value(np.ones((6, 4), np.float32)), atol=1e-6)
    assert done[1] == "[]"
