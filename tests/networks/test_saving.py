import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.networks.saving import network_file, save_network, write_network
from actor_learner.policy.export.deployment import acting_network
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.files import check_folder, write_folder_atomically

pytestmark = pytest.mark.usefixtures("without_xla")

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
    network.optimizer = keras.optimizers.Adam()  # as a Learner sets it
    network.optimizer.build(network.trainable_variables)
    assert save_network(network, tmp_path) == tmp_path / "network.keras"
    assert os.listdir(tmp_path) == ["network.keras"]
    loaded = al.load_network(tmp_path)
    assert same_weights(network, loaded)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for before, after in zip(network(observation), loaded(observation), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("memory", ["lstm", "attention"])
def test_memories_are_registered_where_nothing_else_was_imported(memory, tmp_path):
    network = al.default_network(OBSERVATION, Discrete(2), memory=memory)
    save_network(network, tmp_path)
    program = f"import actor_learner as al; print(al.load_network({str(tmp_path)!r}).name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == network.name


def test_layers_are_registered_where_nothing_else_was_imported(tmp_path):
    network = al.default_network(OBSERVATION, Discrete(2), normalize_observation=True)
    network = acting_network(network, Spaces(OBSERVATION, Discrete(2)))  # adds layers of this package
    save_network(network, tmp_path)
    program = f"import actor_learner as al; print(al.load_network({str(tmp_path)!r}).name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == network.name


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


def test_weights_of_a_whole_network_go_into_another(tmp_path):
    network = al.default_network(OBSERVATION, ACTION, seed=1)
    other = al.default_network(OBSERVATION, ACTION, seed=2)
    save_network(network, tmp_path)
    assert same_weights(network, al.load_network(tmp_path / "network.keras", network=other))


def test_a_folder_with_a_manifest_is_checked_first(tmp_path):
    network = al.default_network(OBSERVATION, ACTION)
    write_folder_atomically(tmp_path / "saved", lambda folder: write_network(network, folder))
    assert check_folder(tmp_path / "saved") == ("network.keras",)
    assert same_weights(al.load_network(tmp_path / "saved"), network)
    file = tmp_path / "saved" / "network.keras"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="The folder is damaged: 'network.keras' has"):
        al.load_network(tmp_path / "saved")


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


def test_weights_that_do_not_fit_are_one_line(tmp_path):
    save_network(al.default_network(OBSERVATION, ACTION), tmp_path)
    with pytest.raises(ValueError, match=r"The saved weights don't fit this network \(.*Received: path=") as error:
        al.load_network(tmp_path, network=al.default_network(OBSERVATION, ACTION, hidden_sizes=(3,)))
    assert "\n" not in str(error.value)


def test_no_network_there(tmp_path):
    with pytest.raises(
        ValueError, match=r"no network \(network.keras\) there; a run writes it when it ends. Received: path="
    ):
        network_file(tmp_path)


def test_a_class_of_a_script_keeps_its_weights_only(tmp_path):
    """Only the script itself could load it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import keras, numpy as np\n"
        "from actor_learner.networks.saving import save_network\n"
        "class Doubled(keras.layers.Layer):\n"
        "    def call(self, x): return x * 2\n"
        "x = keras.Input((3,))\n"
        "y = Doubled()(x)\n"
        "network = keras.Model(x, (keras.layers.Dense(2)(y), keras.layers.Dense(1)(y)))\n"
        "print(save_network(network, '.').name)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "network.weights.h5"


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
from actor_learner.networks.saving import check_can_be_saved
network = Trunk(2)
network(np.zeros((1, 3), np.float32))
check_can_be_saved(network, ".")
"""


def test_a_class_of_a_script_is_told_to_move_into_a_module(tmp_path):
    (tmp_path / "own.py").write_text(OWN_CLASS)
    for program, told in (
        (OWN_CLASS + SAVE_IT, True),
        ("import numpy as np\nfrom own import Trunk\n" + SAVE_IT, False),
    ):
        (tmp_path / "script.py").write_text(program)
        command = [sys.executable, "-W", "always::UserWarning", "script.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        said = "so its weights alone will be saved" in done.stderr
        assert said == told
        assert ("To be saved whole, Trunk must be in a module other than the script" in done.stderr) == told


FILL_THE_DISK = """
import keras, resource, actor_learner as al
from gymnasium.spaces import Box, Discrete
from actor_learner.networks.saving import save_network, write_network
from actor_learner.system.files import write_folder_atomically

class Doubled(keras.layers.Layer):
    "Of a script, so that its network's weights alone can be saved."
    def call(self, x):
        return x * 2

whole = al.default_network(Box(-1, 1, (3,)), Discrete(2))
x = keras.Input((3,))
weights_alone = keras.Model(x, keras.layers.Dense(300)(Doubled()(x)))
writes = (
    lambda: save_network(whole, "."),
    lambda: save_network(weights_alone, "weights alone"),
    lambda: write_folder_atomically("saved", lambda folder: write_network(whole, folder)),
    lambda: write_folder_atomically("saved", lambda folder: write_network(weights_alone, folder)),
)
for write in writes[:2]:
    write()
for network in whole, weights_alone:
    network.set_weights([2 * weight + 1 for weight in network.get_weights()])
for limit in 20_000, 4_096, 100:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for write in writes:
        try:
            write()
        except OSError as error:
            print(error)
"""


def test_a_disk_that_fills_up_while_a_network_is_saved(tmp_path):
    """A limit on the size of files simulates a full disk: both raise an OSError in the middle of a write."""
    (tmp_path / "weights alone").mkdir()
    command = [sys.executable, "-c", FILL_THE_DISK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    names = ("network.keras", "network.weights.h5", "saved", "saved")
    for line, name in zip(done.stdout.splitlines(), names * 3, strict=True):
        assert line.startswith("[Errno 27] can't save ")
        assert line.endswith(f"{name}: File too large; what was saved before is kept")
    assert sorted(os.listdir(tmp_path)) == ["network.keras", "weights alone"]
    assert os.listdir(tmp_path / "weights alone") == ["network.weights.h5"]
    assert same_weights(al.load_network(tmp_path), al.default_network(Box(-1, 1, (3,)), Discrete(2)))
