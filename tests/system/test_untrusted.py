"""Damaged and hostile files are refused in one line; nothing that they name is run or followed."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import actor_learner as al
from actor_learner.learner.state import read_return_statistics
from actor_learner.policy.export.exporting import export_policy
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.system.files import check_folder, write_arrays, write_manifest
from tests.support.damage import damaged
from tests.support.small_networks import linear_network
from tests.support.trajectories import TWO_ACTIONS, VECTOR, random_trajectory
from tests.system.test_files import Hostile


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A saved learner, policy and trajectory, and a network alone, as a run saves it."""
    folder = tmp_path_factory.mktemp("sources")
    network = linear_network()
    al.Learner(network, al.PPO(normalize_reward=True), action_space=TWO_ACTIONS).save(folder / "learner")
    export_policy(network, TWO_ACTIONS, 1, VECTOR).save(folder / "policy")
    random_trajectory(steps=2, columns=2).save(folder / "trajectory.npz")
    (folder / "run").mkdir()
    shutil.copy(folder / "learner" / "network.keras", folder / "run")
    return folder


@pytest.fixture
def copied(sources, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(sources, tmp_path / "copied")


def refused(load, *arguments, match="", **options):
    """Calls `load`, which must refuse in one line."""
    with pytest.raises(ValueError, match=match) as error:
        load(*arguments, **options)
    assert "\n" not in str(error.value)
    assert "Received: " in str(error.value)


LOADS = {
    "learner": (al.Learner.load, lambda learner: [learner.updates, *learner.get_weights()]),
    "policy": (ExportedPolicy.load, vars),
    "trajectory.npz": (al.load_trajectory, keras.tree.flatten),
    "run/network.keras": (al.load_network, lambda network: network.get_weights()),
}
"""Functions that load the sources, and return what they hold; a network alone is checked by its archive's sums."""


@pytest.fixture(scope="module")
def contents(sources):
    return {name: of(load(sources / name)) for name, (load, of) in LOADS.items()}


@pytest.mark.parametrize("name", LOADS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_damaged_is_never_loaded_wrong(sources, contents, name, data):
    path, (load, of) = sources / name, LOADS[name]
    file = path if path.is_file() else data.draw(st.sampled_from(sorted(path.iterdir())))
    whole = file.read_bytes()
    file.write_bytes(data.draw(damaged(whole)))
    try:
        found = load(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:  # the changed bytes have no meaning, such as a time of an archive
        np.testing.assert_equal(of(found), contents[name])
    finally:
        file.write_bytes(whole)


def test_a_missing_file_is_named(copied):
    for name, message in (("learner.npz", None), ("network.keras", None), ("learner.json", "There is no learner")):
        file = copied / "learner" / name
        whole = file.read_bytes()
        file.unlink()
        refused(al.Learner.load, copied / "learner", match=message or name)
        file.write_bytes(whole)
    (copied / "policy" / "manifest.json").unlink()
    refused(al.load_policy, copied / "policy", match="'manifest.json' is missing")


@pytest.mark.parametrize("name", ["learner.npz", "network.keras"])
def test_what_a_manifest_leaves_out_is_not_read(copied, name):
    file = copied / "learner" / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["files"][name]
    file.write_text(json.dumps(manifest))
    check_folder(copied / "learner")
    refused(al.Learner.load, copied / "learner", match=name)


def test_a_link_out_of_a_folder_is_not_followed(copied):
    for folder, name, load in (("learner", "learner.npz", al.Learner.load), ("policy", "step.tflite", al.load_policy)):
        file = copied / folder / name
        file.symlink_to(file.rename(copied / name))
        refused(load, copied / folder, match=f"'{name}' is a link")


# Hostile files, with right manifests.


@pytest.fixture
def mark(tmp_path):
    """A file that appears if something hostile runs; checked at the end."""
    mark = tmp_path / "executed"
    yield mark
    assert not mark.exists()


def npz_with_a_pickle(file, mark):
    array = np.empty(1, object)
    array[0] = Hostile(mark)
    with file.open("wb") as stream:
        np.savez(stream, **{"optimizer/0": array})


def test_a_pickle_in_a_learner_a_trajectory_and_a_policy(copied, mark):
    npz_with_a_pickle(copied / "learner" / "learner.npz", mark)
    npz_with_a_pickle(copied / "trajectory.npz", mark)
    array = np.empty(1, object)
    array[0] = Hostile(mark)
    np.save(copied / "policy" / "weights.npy", array)
    for folder in ("learner", "policy"):
        write_manifest(copied / folder)
    refused(al.Learner.load, copied / "learner", match="which aren't unpickled")
    refused(al.load_trajectory, copied / "trajectory.npz", match="which aren't unpickled")
    refused(al.load_policy, copied / "policy", match="which aren't unpickled")


def network_file(folder, layer, **weights):
    """Writes a hostile .keras file: a network with one layer of this configuration."""
    config = {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"name": "hostile", "layers": [layer], "build_input_shape": [None, 4]},
        "registered_name": None,
    }
    with zipfile.ZipFile(folder / "network.keras", "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": keras.__version__}))
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", weights.get("weights", b""))


def empty_weights():
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_group("layers")
    return stream.getvalue()


def refused_everywhere(copied, match, layer, weights=None):
    """Checks that `load_network` and `Learner.load` refuse a network."""
    for folder in ("run", "learner"):
        network_file(copied / folder, layer, weights=weights or empty_weights())
    write_manifest(copied / "learner")
    refused(al.load_network, copied / "run", match=match)
    refused(al.load_network, copied / "learner", match=match)
    refused(al.Learner.load, copied / "learner", match=match)


def test_a_lambda_layer(copied, mark):
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    layer = keras.layers.Lambda(eval(f"lambda x: ({touch}, x)[1]"), output_shape=(4,), name="lambda")
    refused_everywhere(copied, "Lambda", keras.saving.serialize_keras_object(layer))


@pytest.mark.parametrize("registered", [None, "planted>Evil", "Evil"])
def test_a_module_that_a_network_names_is_not_imported(copied, mark, monkeypatch, registered):
    (copied / "planted.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    monkeypatch.syspath_prepend(copied)
    for module in ("planted", "keras_planted", "builtins", "os"):
        layer = {"module": module, "class_name": "Evil", "config": {}, "registered_name": registered}
        refused_everywhere(copied, "Keras can't rebuild this network", layer)
    assert "planted" not in sys.modules


def test_functions_of_keras_that_are_no_part_of_a_network_and_layers_that_load_programs(copied):
    for module, name in (
        ("keras.utils", "get_file"),
        ("keras.src.utils.file_utils", "get_file"),
        ("keras.config", "enable_unsafe_deserialization"),
        ("keras.src.saving.serialization_lib", "enable_unsafe_deserialization"),
        ("keras.saving", "load_model"),
    ):
        layer = {"module": module, "class_name": name, "config": name, "registered_name": name}
        refused_everywhere(copied, "which is no part of a network", layer)
        assert keras.src.saving.serialization_lib.in_safe_mode() is None
    for name in ("TFSMLayer", "TorchModuleWrapper", "JaxLayer"):
        config = {"filepath": str(copied), "name": "loads"}
        layer = {"module": "keras.layers", "class_name": name, "config": config, "registered_name": None}
        refused_everywhere(copied, f"it has a {name}, which could run any program", layer)


def test_weights_of_another_file(copied):
    """HDF5 may take an array from any file that it names."""
    secret = copied / "secret"
    secret.write_bytes(bytes(16))
    layer = keras.saving.serialize_keras_object(keras.layers.Dense(1, name="dense"))

    def external(file):
        file.create_dataset("layers/dense/vars/0", (4, 1), np.float32, external=[(str(secret), 0, 16)])

    def virtual(file):
        layout = h5py.VirtualLayout((4, 1), np.float32)
        layout[:] = h5py.VirtualSource(str(secret), "secret", (4, 1))
        file.create_virtual_dataset("layers/dense/vars/0", layout)

    def link(file):
        file["layers/dense"] = h5py.ExternalLink(str(secret), "/")

    for write in (external, virtual, link):
        stream = io.BytesIO()
        with h5py.File(stream, "w") as file:
            write(file)
        refused_everywhere(copied, "leads to another file", layer, stream.getvalue())
    (copied / "run" / "network.keras").unlink()
    (copied / "run" / "network.weights.h5").write_bytes(stream.getvalue())
    refused(al.load_network, copied / "run", network=linear_network(), match="leads to another file")


UNREADABLE = "isn't what `Learner.save` writes"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, UNREADABLE),
        ({"format": 99}, "learner.json is in format 99,"),
        ({"format": 0}, "`format` must be"),
        ({"updates": -1}, "updates=-1"),
        ({"env_steps": "many"}, "env_steps='many'"),
        ({"total_steps": 0}, "`total_steps` must be"),
        ({"algorithm": {"name": "planted.Evil"}}, "none of this version .*planted.Evil"),
        ({"algorithm": {"name": "ppo", "evil": 1}}, "none of this version .*evil"),
        ({"algorithm": {"name": "ppo", "clip_range": -1.0}}, "`clip_range`"),
        ({"algorithm": []}, "none of this version"),
        ({"action_space": {"type": "planted.Evil"}}, UNREADABLE),
        ({"action_space": {"type": "Discrete"}}, UNREADABLE),
        ({"random_state": {"bit_generator": "Evil"}}, UNREADABLE),
        ({"random_state": None}, UNREADABLE),
    ],
)
def test_a_hostile_state(copied, changes, message):
    file = copied / "learner" / "learner.json"
    state = {} if changes is None else {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps(state))
    write_manifest(copied / "learner")
    with pytest.raises(ValueError, match=message) as error:
        al.Learner.load(copied / "learner")
    assert "\n" not in str(error.value)


def test_arrays_that_have_no_place(copied):
    write_arrays(copied / "learner" / "learner.npz", {"optimizer/0": np.zeros(3), "evil": np.zeros(1)})
    write_manifest(copied / "learner")
    refused(al.Learner.load, copied / "learner", match="doesn't fit this algorithm and network: evil")


def test_statistics_of_rewards_that_are_none(copied):
    write_arrays(copied / "learner" / "learner.npz", {"reward_scaling/0": np.zeros(3), "reward_scaling/1": np.zeros(2)})
    refused(read_return_statistics, copied / "learner", match="'learner.npz' has")
    write_manifest(copied / "learner")
    refused(read_return_statistics, copied / "learner", match="isn't what `Learner.save` writes")


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 3, "fields": {}}', "file.npz is in format 3,"),
        ('{"format": 1, "fields": {"reward": "reward"}}', "damaged"),
        (json.dumps({"format": 1, "fields": dict.fromkeys(al.Trajectory._fields)}), "it holds more than a trajectory"),
    ],
)
def test_a_hostile_trajectory(tmp_path, structure, message):
    write_arrays(tmp_path / "file.npz", {"structure": np.array(structure), "reward": np.zeros((1, 1))})
    refused(al.load_trajectory, tmp_path / "file.npz", match=message)


def test_a_trajectory_that_lacks_a_field(tmp_path):
    random_trajectory()._replace(reward=None).save(tmp_path / "file.npz")
    refused(al.load_trajectory, tmp_path / "file.npz", match="it has no reward")


@pytest.mark.parametrize("name", ["WriteFile", "ReadFile", "PrintV2"])
def test_a_graph_that_does_more_than_compute(copied, mark, name):
    """TensorFlow runs the graphs that LiteRT can't express, and such graphs can write files."""
    with tf.Graph().as_default() as graph:
        if name == "WriteFile":
            tf.raw_ops.WriteFile(filename=str(mark), contents="evil")
        elif name == "ReadFile":
            tf.raw_ops.ReadFile(filename=str(Path(__file__)))
        else:
            tf.raw_ops.PrintV2(input="evil", output_stream=f"file://{mark}")
    (copied / "policy" / "step.pb").write_bytes(graph.as_graph_def().SerializeToString())
    file = copied / "policy" / "policy.json"
    described = json.loads(file.read_text())
    described["step_graph"]["format"] = "tensorflow"
    file.write_text(json.dumps(described))
    write_manifest(copied / "policy")
    refused(al.load_policy, copied / "policy", match=f"operation {name}")


@pytest.mark.parametrize("change", [{"step_graph": None}, {"evil": 1}, {"action_space": {"type": "Evil"}}])
def test_a_hostile_policy(copied, change):
    file = copied / "policy" / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    write_manifest(copied / "policy")
    refused(al.load_policy, copied / "policy", match="This exported policy can't be read")
