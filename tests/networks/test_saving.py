import contextlib
import os
import resource
import subprocess
import sys

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.networks.contract import distribution_and_hold
from actor_learner.networks.saving import network_file, obstacle, save_network, write_network
from actor_learner.policy.export.deployment import acting_network
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import check_folder, write_folder_atomically
from tests.support import small_networks as support
from tests.support.processes import patience

pytestmark = pytest.mark.slow

OBSERVATION = Box(-1.0, 1.0, (3,), np.float32)
ACTION = Box(-1.0, 1.0, (2,), np.float32)


def forgetful(columns=4):
    """Returns a network that Keras can't rebuild."""
    network = support.Unserializable(columns)
    network(np.zeros((1, 3), np.float32))
    return network


def same_weights(first, second):
    return support.same_weights(first.get_weights(), second.get_weights())


def test_a_network_with_layers_of_this_package_there_and_back(tmp_path):
    options = {"normalize_observation": True, "initial_log_std": -1.5, "noise_hold": 3, "distribution": "squashed"}
    network = al.default_network(OBSERVATION, ACTION, **options)
    network.optimizer = keras.optimizers.Adam()  # as a Learner sets it
    network.optimizer.build(network.trainable_variables)
    assert save_network(network, tmp_path) == tmp_path / "network.keras"
    assert os.listdir(tmp_path) == ["network.keras"]
    loaded = al.load_network(tmp_path)
    assert same_weights(network, loaded)
    assert distribution_and_hold(loaded) == ("squashed", 3)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for before, after in zip(network(observation), loaded(observation), strict=True):
        np.testing.assert_array_equal(before, after)


def run(command, folder):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=True, timeout=patience(60)
    )


def test_layers_are_registered_where_nothing_else_was_imported(tmp_path):
    networks = [al.default_network(OBSERVATION, Discrete(2), memory=memory) for memory in ("attention", "lstm")]
    normalizing = al.default_network(OBSERVATION, Discrete(2), normalize_observation=True)
    networks.append(acting_network(normalizing, Spaces(OBSERVATION, Discrete(2))))  # adds layers of this package
    for number, network in enumerate(networks):
        (tmp_path / str(number)).mkdir()
        save_network(network, tmp_path / str(number))
    program = "import actor_learner as al\nfor number in '012': print(al.load_network(number).name)"
    assert run(["-c", program], tmp_path).stdout.split() == [network.name for network in networks]


def test_a_model_that_cannot_be_rebuilt_keeps_its_weights(tmp_path):
    network = forgetful()
    assert save_network(network, tmp_path) == tmp_path / "network.weights.h5"
    assert os.listdir(tmp_path) == ["network.weights.h5"]
    with pytest.raises(ValueError, match=r"give it as `network=` in Python. Received: path="):
        al.load_network(tmp_path)
    again = forgetful()
    assert not same_weights(network, again)
    assert al.load_network(tmp_path, network=again) is again
    assert same_weights(network, again)


def test_the_two_forms_of_a_network_never_stand_side_by_side(tmp_path):
    save_network(al.default_network(OBSERVATION, ACTION), tmp_path)
    save_network(forgetful(), tmp_path)
    assert os.listdir(tmp_path) == ["network.weights.h5"]
    save_network(al.default_network(OBSERVATION, ACTION), tmp_path)
    assert os.listdir(tmp_path) == ["network.keras"]


def test_a_folder_with_a_manifest_is_checked_first(tmp_path):
    network = al.default_network(OBSERVATION, ACTION)
    write_folder_atomically(tmp_path / "saved", lambda folder: write_network(network, folder))
    assert check_folder(tmp_path / "saved") == ("network.keras",)
    assert same_weights(al.load_network(tmp_path / "saved"), network)
    file = tmp_path / "saved" / "network.keras"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="The folder is damaged: 'network.keras' has"):
        al.load_network(tmp_path / "saved")


@keras.saving.register_keras_serializable("test_saving")
class Halved(keras.layers.Dense):
    """Saves half of each of its arrays."""

    def save_own_variables(self, store):
        for index, variable in enumerate(self.variables):
            store[str(index)] = variable.numpy() / 2


def with_adapters(network):
    """Enables LoRA, and gives all weights other values, as training does."""
    for layer in network._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(2)
    network.set_weights([weight + 0.5 for weight in network.get_weights()])
    return network


def with_strong_adapters():
    """Their scale isn't their rank, which Keras's own `build` takes it for."""
    network = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(2, 4), keras.layers.Flatten()])
    network.add(keras.layers.Dense(2))
    for layer in (network.layers[0], network.layers[2]):
        layer.enable_lora(2, lora_alpha=32)
    network.set_weights([weight + 0.5 for weight in network.get_weights()])
    return network


def test_the_scale_of_adapters_comes_back(tmp_path):
    network, rows = with_strong_adapters(), np.eye(3, dtype=np.int32)
    assert save_network(network, tmp_path).suffix == ".keras"
    np.testing.assert_array_equal(network(rows), al.load_network(tmp_path)(rows))
    other = with_strong_adapters()
    for layer in (other.layers[0], other.layers[2]):
        layer.lora_alpha = 2
    np.testing.assert_array_equal(network(rows), al.load_network(tmp_path, network=other)(rows))


@keras.saving.register_keras_serializable("test_saving")
class Forgetful(keras.layers.Dense):
    """Its factor is in no config."""

    factor = 1.0

    def call(self, x):
        return super().call(x) * self.factor


def test_a_copy_with_the_same_weights_and_other_outputs_is_no_copy(tmp_path):
    layer = Forgetful(2)
    network = keras.Sequential([keras.Input((3,)), layer])
    layer.factor = 2.0
    assert save_network(network, tmp_path).name == "network.weights.h5"
    assert obstacle(network) == "a copy from the file has the same weights and other outputs"


def quantized(network):
    network.layers[1].quantize("int8")
    return network


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: with_adapters(al.default_network(OBSERVATION, ACTION)), "network.keras"),
        (lambda: quantized(al.default_network(OBSERVATION, ACTION)), "network.keras"),
        (lambda: keras.Sequential([keras.Input((3,)), Halved(2)]), "network.keras"),
        (lambda: with_adapters(forgetful()), "network.weights.h5"),
    ],
    ids=["adapters", "int8", "own-methods", "weights-alone"],
)
def test_weights_that_layers_save_in_another_form_come_back_as_they_were(tmp_path, make, name):
    network = make()
    for _ in range(2):  # the first time, Keras's file is tried
        assert save_network(network, tmp_path).name == name
        loaded = al.load_network(tmp_path, network=make() if name.endswith("h5") else None)
        assert same_weights(network, loaded)
        assert [weight.trainable for weight in loaded.weights] == [weight.trainable for weight in network.weights]


def test_a_network_with_adapters_goes_into_one_without_and_keras_alone_reads_it(tmp_path):
    network = with_adapters(al.default_network(OBSERVATION, ACTION))
    save_network(network, tmp_path)
    without = al.load_network(tmp_path, network=al.default_network(OBSERVATION, ACTION))
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for loaded in without, keras.saving.load_model(tmp_path / "network.keras"):
        for before, after in zip(network(observation), loaded(observation), strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)


def test_the_optimizer_is_not_saved_with_the_network_and_stays_with_it(tmp_path):
    network = al.default_network(OBSERVATION, ACTION)
    before = save_network(network, tmp_path).stat().st_size
    network.optimizer = optimizer = keras.optimizers.Adam()
    optimizer.build(network.trainable_variables)
    assert save_network(network, tmp_path).stat().st_size == before
    assert network.optimizer is optimizer


def test_a_compiled_network_keeps_what_it_was_compiled_with(tmp_path):
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    network.compile(optimizer="adam", loss="mse")
    network.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    save_network(network, tmp_path)
    assert int(keras.saving.load_model(tmp_path / "network.keras").optimizer.iterations) == 1


def test_weights_of_a_whole_network_go_into_another_that_they_fit(tmp_path):
    network = al.default_network(OBSERVATION, ACTION, seed=1)
    save_network(network, tmp_path)
    other = al.default_network(OBSERVATION, ACTION, seed=2)
    assert same_weights(network, al.load_network(tmp_path / "network.keras", network=other))
    with pytest.raises(ValueError, match=r"The saved weights don't fit this network \(.*Received: path=") as error:
        al.load_network(tmp_path, network=al.default_network(OBSERVATION, ACTION, hidden_sizes=(3,)))
    assert "\n" not in str(error.value)


def test_no_network_there(tmp_path):
    with pytest.raises(
        ValueError, match=r"no network \(network.keras\) there; a run writes it when it ends. Received: path="
    ):
        network_file(tmp_path)


OWN_CLASS = """
import keras, numpy as np

@keras.saving.register_keras_serializable("own")
class Trunk(keras.Model):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units, self.heads = units, [keras.layers.Dense(units), keras.layers.Dense(1)]

    def build(self, shape):
        for head in self.heads:
            head.build(shape)
        self.built = True

    def call(self, x):
        return tuple(head(x) for head in self.heads)

    def get_config(self):
        return {"units": self.units}
"""
SAVE_IT = """
import own
from actor_learner.networks.saving import check_can_be_saved, save_network

class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x

networks = Trunk(2), own.Trunk(2), keras.Sequential([keras.Input((3,)), Doubled()])
for network in networks:
    network(np.zeros((1, 3), np.float32))
    check_can_be_saved(network, ".")
    print(save_network(network, ".").name)
"""


@pytest.mark.thorough
def test_a_class_of_a_script_is_told_to_move_into_a_module(tmp_path):
    """Only the script itself could load it."""
    (tmp_path / "own.py").write_text(OWN_CLASS.replace('"own"', '"module"'))
    (tmp_path / "script.py").write_text(OWN_CLASS + SAVE_IT)
    done = run(["-W", "always::UserWarning", "script.py"], tmp_path)
    assert done.stdout.split() == ["network.weights.h5", "network.keras", "network.weights.h5"]
    assert done.stderr.count("so its weights alone will be saved") == 2
    assert "from a file (only this script could load it), so" in done.stderr
    for name in ("Trunk", "Doubled"):
        assert done.stderr.count(f"To be saved whole, {name} must be in a module other than the script") == 1


@contextlib.contextmanager
def files_of_at_most(size):
    """Simulates a full disk: both raise an OSError in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_while_a_network_is_saved(tmp_path):
    whole, alone, folder = al.default_network(OBSERVATION, Discrete(2)), forgetful(300), tmp_path / "saved"
    save_network(whole, tmp_path)
    (tmp_path / "weights alone").mkdir()
    save_network(alone, tmp_path / "weights alone")
    kept = whole.get_weights()
    for network in whole, alone:
        network.set_weights([2 * weight + 1 for weight in network.get_weights()])
    for write, name in (
        (lambda: save_network(whole, tmp_path), "network.keras"),
        (lambda: save_network(alone, tmp_path / "weights alone"), "network.weights.h5"),
        (lambda: write_folder_atomically(folder, lambda inner: write_network(whole, inner)), "saved"),
        (lambda: write_folder_atomically(folder, lambda inner: write_network(alone, inner)), "saved"),
    ):
        for limit in (20_000, 4_096, 100):
            expected = rf"^\[Errno 27\] can't save .*{name}: File too large; what was saved before is kept$"
            with files_of_at_most(limit), pytest.raises(OSError, match=expected):
                write()
    assert sorted(os.listdir(tmp_path)) == ["network.keras", "weights alone"]
    assert os.listdir(tmp_path / "weights alone") == ["network.weights.h5"]
    assert support.same_weights(kept, al.load_network(tmp_path).get_weights())
