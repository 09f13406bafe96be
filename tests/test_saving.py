import errno
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.saving import network_file, save_network, write_atomically

OBSERVATION = Box(-1.0, 1.0, (3,), np.float32)
ACTION = Box(-1.0, 1.0, (2,), np.float32)


class Forgetful(keras.Model):
    """A subclassed model that Keras can't rebuild: it has no get_config for its argument."""

    def __init__(self, units):
        super().__init__()
        self.trunk = keras.layers.Dense(units)
        self.parameters_head = keras.layers.Dense(4)
        self.value_head = keras.layers.Dense(1)

    def call(self, observation):
        features = self.trunk(observation)
        return self.parameters_head(features), self.value_head(features)


def forgetful():
    network = Forgetful(units=8)
    network(np.zeros((1, 3), np.float32))
    return network


def same_weights(first, second):
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return all(np.array_equal(before, after) for before, after in pairs)


def test_a_network_with_layers_of_this_package_there_and_back(tmp_path):
    network = al.default_network(OBSERVATION, ACTION, normalize_observation=True, initial_log_std=-1.5, noise_hold=3)
    network.optimizer = keras.optimizers.Adam()  # as a Learner leaves it
    network.optimizer.build(network.trainable_variables)
    assert save_network(network, tmp_path) == tmp_path / "network.keras"
    assert os.listdir(tmp_path) == ["network.keras"]
    loaded = al.load_network(tmp_path)
    assert same_weights(network, loaded)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for before, after in zip(network(observation), loaded(observation), strict=True):
        np.testing.assert_array_equal(before, after)


def test_layers_are_registered_where_nothing_else_was_imported(tmp_path):
    network = al.default_network(OBSERVATION, Discrete(2), normalize_observation=True)
    save_network(network, tmp_path)
    program = f"import actor_learner as al; print(al.load_network({str(tmp_path)!r}).name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == network.name


def test_a_model_that_cannot_be_rebuilt_keeps_its_weights(tmp_path):
    network = forgetful()
    assert save_network(network, tmp_path) == tmp_path / "network.weights.h5"
    assert os.listdir(tmp_path) == ["network.weights.h5"]
    with pytest.raises(ValueError, match=r"load_network\(path, network=...\). Received: path="):
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


def test_weights_of_a_whole_network_go_into_another(tmp_path):
    network = al.default_network(OBSERVATION, ACTION, seed=1)
    other = al.default_network(OBSERVATION, ACTION, seed=2)
    save_network(network, tmp_path)
    assert same_weights(network, al.load_network(tmp_path / "network.keras", network=other))


def test_no_network_there(tmp_path):
    with pytest.raises(ValueError, match=r"no network \(network.keras\) there. Received: path="):
        network_file(tmp_path)


def test_a_class_of_a_script_keeps_its_weights_only(tmp_path):
    """The script itself could load it, no other program."""
    script = tmp_path / "script.py"
    script.write_text(
        "import keras, numpy as np\n"
        "from actor_learner.saving import save_network\n"
        "class Doubled(keras.layers.Layer):\n"
        "    def call(self, x): return x * 2\n"
        "x = keras.Input((3,))\n"
        "y = Doubled()(x)\n"
        "network = keras.Model(x, (keras.layers.Dense(2)(y), keras.layers.Dense(1)(y)))\n"
        "print(save_network(network, '.').name)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "network.weights.h5"


def test_a_file_is_whole_or_not_there(tmp_path):
    file = tmp_path / "state"
    write_atomically(file, lambda partial: partial.write_text("first"))

    def fail(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, fail)
    assert file.read_text() == "first"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path):
    file = tmp_path / "state"
    file.write_text("first")
    with pytest.raises(OSError, match=r"can't save .*state: No space left on device; .* is kept") as error:
        write_atomically(file, lambda partial: Path("/dev/full").write_text("second"))
    assert error.value.errno == errno.ENOSPC
    assert file.read_text() == "first"


def test_a_disk_that_fills_up_while_a_network_is_saved(tmp_path):
    """A limit on the size of files stands in for the end of the disk: both are an OSError in the middle of a write."""
    program = (
        "import resource, sys, actor_learner as al\n"
        "from gymnasium.spaces import Box, Discrete\n"
        "from actor_learner.saving import save_network\n"
        "network = al.default_network(Box(-1, 1, (3,)), Discrete(2))\n"
        "save_network(network, '.')\n"
        "network.set_weights([2 * w for w in network.get_weights()])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    save_network(network, '.')\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "can't save network.keras: File too large; what was saved before is kept" in done.stdout
    assert os.listdir(tmp_path) == ["network.keras"]
    first = al.default_network(Box(-1, 1, (3,)), Discrete(2))
    assert same_weights(al.load_network(tmp_path), first)
