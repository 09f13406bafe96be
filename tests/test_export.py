"""Runs exported to other formats: the same actions in each, and in a Python that has NumPy and LiteRT alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import actor_learner as al
from actor_learner.cli import main
from actor_learner.networks import default
from actor_learner.runs.directory import RunDirectory, record_choices
from actor_learner.spaces.kinds import from_json
from actor_learner.spaces.structure import to_gymnasium
from actor_learner.system.installation import install_command
from tests.support.damage import flipped
from tests.support.processes import patience
from tests.support.run_files import create_ended_run, create_run
from tests.support.small_networks import Unserializable

pytestmark = pytest.mark.slow


ROWS = 2_000
IMAGE = Box(0, 255, (36, 36, 1), np.uint8)
LOW, HIGH = np.array([-0.5, -2], np.float32), np.array([0.5, 0.25], np.float32)
GAME = Dict(
    board=Box(-3, 3, (3,), np.float64),
    turn=Discrete(4, start=-1),
    action_mask=Tuple([MultiBinary(3), Box(0, 1, (2,), np.int8)]),
)
MOVES = Tuple([Discrete(3, start=7), Discrete(2), Box(-1, 1, (2,))])
CASES = {
    "mlp": (Box(-np.inf, np.inf, (4,), np.float64), Box(LOW, HIGH), {"normalize_observation": True}),
    "cnn": (IMAGE, Discrete(6, start=2), {}),
    "dict": (GAME, MOVES, {"distribution": "squashed"}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}
    for name, (observation_space, action_space, changes) in CASES.items():
        network = default.default_network(observation_space, action_space, seed=1, **changes)
        rng, spread = np.random.default_rng(2), 0.02 if name == "cnn" else 0.2
        changed = [weight + spread * rng.standard_normal(weight.shape) for weight in network.get_weights()]
        network.set_weights(changed)
        made[name] = create_ended_run(folder / name, observation_space, action_space, network), network
    return made


def draw(name, rows=ROWS):
    """Observations as environments give them."""
    rng = np.random.default_rng(0)
    if name == "mlp":
        return rng.normal(0, 3, (rows, 4))
    if name == "cnn":
        return rng.integers(0, 256, (rows, *IMAGE.shape), np.uint8)
    masks = [(rng.random((rows, n)) < 0.5) | np.eye(n, dtype=bool)[rng.integers(0, n, rows)] for n in (3, 2)]
    return {
        "board": rng.uniform(-3, 3, (rows, 3)),
        "turn": rng.integers(-1, 3, rows),
        "action_mask": tuple(mask.astype(np.int8) for mask in masks),
    }


def leaf_values(value, name):
    """The leaves of a nested value, by the names that they have in models."""
    if not isinstance(value, dict | tuple):
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {inner: leaf for key, part in parts for inner, leaf in leaf_values(part, f"{name}.{key}").items()}


@pytest.fixture(scope="module")
def parameters(runs):
    """What Keras gives for these observations, as they stand in a Trajectory."""
    game = draw("dict")
    observations = {
        "mlp": draw("mlp").astype(np.float32),
        "cnn": draw("cnn"),
        "dict": {"board": game["board"].astype(np.float32), "turn": game["turn"] + 1},
    }
    return {name: network.predict(observations[name], 1000, verbose=0)[0] for name, (_, network) in runs.items()}


def check_actions(name, actions, parameters):
    """They are what the environment is to get, worked out in NumPy from the network's parameters."""
    if name == "mlp":
        clipped = np.clip(parameters[:, :2], LOW, HIGH)
        assert 0.05 < (clipped == HIGH).mean() < 0.95
        np.testing.assert_allclose(actions["action"], clipped, atol=1e-5)
    elif name == "cnn":
        check_choice(actions["action"], parameters, 2)
    else:
        three, two = (np.asarray(mask, bool) for mask in draw("dict")["action_mask"])
        check_choice(actions["action.0"], np.where(three, parameters[:, :3], -np.inf), 7)
        check_choice(actions["action.1"], np.where(two, parameters[:, 3:5], -np.inf), 0)
        np.testing.assert_allclose(actions["action.2"], np.tanh(parameters[:, 5:7]), atol=1e-5)


def check_choice(action, logits, start):
    """The likeliest, or one that is as likely but for rounding."""
    chosen = np.take_along_axis(logits, action[:, None] - start, axis=1)[:, 0]
    assert (logits.max(axis=1) - chosen).max() < 1e-5
    assert (action - start == logits.argmax(axis=1)).mean() > 0.999
    assert len(set(action.tolist())) > 1


def acts_litert(folder, observation):
    return leaf_values(al.load_policy(folder).act(observation), "action")


def acts_keras(folder, observation):
    feed = leaf_values(observation, "observation")
    return {key: np.asarray(value) for key, value in al.load_network(folder).predict(feed, 1000, verbose=0).items()}


def acts_saved_model(folder, observation):
    import tensorflow as tf

    act = tf.saved_model.load(folder).signatures["serving_default"]
    feed = leaf_values(observation, "observation")
    outputs = act(**{key.replace(".", "_"): tf.constant(value) for key, value in feed.items()})
    return {key: value.numpy() for key, value in outputs.items()}


def acts_tflite(folder, observation):
    from ai_edge_litert.interpreter import Interpreter

    act = Interpreter(str(folder / "policy.tflite")).get_signature_runner()
    return act(**leaf_values(observation, "observation"))


def acts_onnx(folder, observation):
    session = pytest.importorskip("onnxruntime", reason="needs onnxruntime").InferenceSession(folder / "policy.onnx")
    feed = leaf_values(observation, "observation")
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed), strict=True))


@pytest.fixture(scope="module")
def litert_exports(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litert")
    return {name: al.export(path, folder / name) for name, (path, _) in runs.items()}


@pytest.mark.parametrize(
    ("acts", "name"),
    [
        pytest.param(acts, name, marks=[pytest.mark.thorough] * (name in ("mlp", "cnn")))
        for acts in (acts_litert, acts_tflite, acts_keras, acts_saved_model, acts_onnx)
        for name in CASES
    ],
)
def test_thousands_of_actions_are_keras_s_in_every_format(name, acts, runs, parameters, litert_exports, tmp_path):
    kind = acts.__name__.removeprefix("acts_")
    if kind == "onnx":
        pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    folder = litert_exports[name] if kind == "litert" else al.export(runs[name][0], tmp_path / "out", format=kind)
    actions = acts(folder, draw(name))
    check_actions(name, actions, parameters[name])
    for key, leaf in leaf_values(CASES[name][1].sample(), "action").items():
        assert actions[key].dtype == np.asarray(leaf).dtype
    if kind != "litert":
        np.testing.assert_allclose(actions["parameters"], parameters[name], atol=1e-4)
        described = json.loads((folder / "spaces.json").read_text())
        assert set(described["outputs"]) == set(actions)


ACT_WITH_NOTHING_ELSE = """
import sys
sys.path.append(sys.argv[1])
import json
import numpy as np
import actor_learner as al
for folder, file, kind in zip(sys.argv[2::2], sys.argv[3::2], ("cnn", "dict")):
    stored = np.load(file)
    policy = al.load_policy(folder, seed=5)
    if kind == "cnn":
        observation, trajectory = (stored["observation"],) * 2
    else:
        observation = {name: stored[name] for name in ("board", "turn")}
        observation["action_mask"] = stored["mask0"], stored["mask1"]
        trajectory = {**observation, "turn": observation["turn"] + 1}
    action, log_prob = policy.step(trajectory)
    actions = policy.act(observation), policy.to_env(action)
    parts = [part for each in actions for part in (each if isinstance(each, tuple) else (each,))]
    print(json.dumps([part.tolist() for part in [*parts, log_prob, policy.value(trajectory)]]))
print({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"})
try:
    policy.action_space
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_discrete_values_that_count_from_1_are_exported(tmp_path):
    """A written model is tried out with values of the space: for others, ONNX makes another one-hot vector."""
    pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    space = Discrete(3, start=1)
    run = create_ended_run(tmp_path / "run", space, MOVES, default.default_network(space, MOVES, seed=1))
    assert al.export(run, tmp_path / "exported", format="onnx").exists()


def test_numpy_and_litert_alone_are_enough(litert_exports, tmp_path):
    """`-S` leaves site-packages out, so nothing but what is linked here can be imported; `-I` all else."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "ai_edge_litert", "actor_learner"):
        (site / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    image, game = draw("cnn", 50), draw("dict", 50)
    np.savez(tmp_path / "cnn.npz", observation=image)
    masks = {f"mask{i}": mask for i, mask in enumerate(game["action_mask"])}
    np.savez(tmp_path / "dict.npz", board=game["board"], turn=game["turn"], **masks)
    paths = [path for name in ("cnn", "dict") for path in (litert_exports[name], tmp_path / f"{name}.npz")]
    command = [sys.executable, "-I", "-S", "-c", ACT_WITH_NOTHING_ELSE, site, *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=patience(60))
    assert done.returncode == 0, done.stderr
    *lines, imported, missing = done.stdout.splitlines()
    for line, observation, name in zip(lines, (image, game), ("cnn", "dict"), strict=True):
        policy = al.load_policy(litert_exports[name], seed=5)
        trajectory = {**observation, "turn": observation["turn"] + 1} if name == "dict" else observation
        action, log_prob = policy.step(trajectory)
        parts = [*keras.tree.flatten((policy.act(observation), policy.to_env(action)))]
        assert json.loads(line) == [part.tolist() for part in [*parts, log_prob, policy.value(trajectory)]]
    assert {"numpy", "ai_edge_litert", "actor_learner"} <= eval(imported)
    assert not {"gymnasium", "cloudpickle", "keras", "tensorflow"} & eval(imported)
    assert missing == "gymnasium"  # which the public spaces are of


@keras.saving.register_keras_serializable("test_export")
class Shifted(keras.layers.Layer):
    """Holds a tensor, where no export finds it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.held = {"shift": (keras.ops.ones(3), None)}

    def call(self, x):
        return x + self.held["shift"][0]


@keras.saving.register_keras_serializable("tests.test_export")
class Gain(keras.layers.Layer):
    """Reads its weight by `value`, which only a variable has."""

    def build(self, shape):
        self.gain = self.add_weight(initializer="ones")

    def call(self, x):
        return x * self.gain.value


@pytest.mark.parametrize("kind", ["onnx", "saved_model", "keras", pytest.param("tflite", marks=pytest.mark.thorough)])
def test_tensors_that_layers_hold_are_constants_of_what_is_exported(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    space, normalization = Box(-1, 1, (3,)), keras.layers.Normalization()
    normalization.adapt(np.random.default_rng(0).normal(5, 2, (50, 3)))
    x = keras.Input((3,))
    network = keras.Model(x, (keras.layers.Dense(2)(Gain()(normalization(x))), keras.layers.Dense(1)(x)))
    observation = np.random.default_rng(1).normal(5, 2, (20, 3)).astype(np.float32)
    expected = np.argmax(network(observation)[0], axis=1)
    assert len(set(expected)) == 2
    run_dir = create_ended_run(tmp_path / "run", space, Discrete(2), network)
    folder = al.export(run_dir, tmp_path / "out", format=kind)
    np.testing.assert_array_equal(globals()[f"acts_{kind}"](folder, observation)["action"], expected)


def test_an_onnx_file_that_needs_more_inputs_is_refused(tmp_path):
    pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    x = keras.Input((3,))
    network = keras.Model(x, (keras.layers.Dense(2)(Shifted()(x)), keras.layers.Dense(1)(x)))
    run_dir = create_ended_run(tmp_path / "run", Box(-1, 1, (3,)), Discrete(2), network)
    with pytest.raises(ValueError, match=r"it takes \[.*shifted.*\], not \['observation'\]: a layer holds a tensor"):
        al.export(run_dir, tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()


def test_masks_from_infos_are_an_input(tmp_path):
    """The run says whether its environments gave masks."""
    space, actions = Box(-1, 1, (3,)), MultiDiscrete([3, 2], start=[1, 0])
    run_dir = create_ended_run(
        tmp_path / "run", space, actions, default.default_network(space, actions, hidden_sizes=(8,))
    )
    without = al.export(run_dir, tmp_path / "without", format="keras")
    assert set(json.loads((without / "spaces.json").read_text())["inputs"]) == {"observation"}
    record_choices(RunDirectory(run_dir), action_masks=True)
    with pytest.warns(UserWarning, match=r"trained with action masks.*by its input `action_mask`, bool \[N, 5\]"):
        model = al.load_network(al.export(run_dir, tmp_path / "with", format="keras"))
    with pytest.warns(UserWarning, match=r"by `policy.act\(observation, action_mask=mask\)`, bool \[N, 5\]"):
        al.export(run_dir, tmp_path / "litert")
    mask = np.eye(5, dtype=bool)[[0, 1, 2]] | np.eye(5, dtype=bool)[[3, 4, 3]]
    action = model({"observation": np.zeros((3, 3), np.float32), "action_mask": mask})["action"]
    np.testing.assert_array_equal(action, [[1, 0], [2, 1], [3, 0]])


def test_the_command_prints_the_folder_and_refuses_in_a_line(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_dir = runs["mlp"][0]
    assert main(["export", str(run_dir)]) == 0
    assert capsys.readouterr().out == "mlp-litert\n"
    described = json.loads(Path("mlp-litert/spaces.json").read_text())
    assert to_gymnasium(from_json(described["action_space"])) == CASES["mlp"][1]
    Path("empty").mkdir()
    create_run(al.TrainConfig(run_dir="unsaved"))
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    for argv, message in (
        ([run_dir], "`--output` exists; give another name. Received: --output mlp-litert"),
        ([run_dir, "--format", "onx"], "(did you mean 'onnx'?). Received: --format onx"),
        ([run_dir, "--format", "onnx"], f"needs tf2onnx: {install_command('actor-learner[onnx]')}"),
        (["empty"], "holds no run: the directory has no config.json"),
        (["nowhere"], "holds no run: the directory isn't there"),
        (["unsaved"], "holds no policy yet: a run saves it when it ends"),
    ):
        assert main(["export", *map(str, argv)]) == 2
        assert message in one_line(capsys)


def one_line(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("actor-learner: error: ")
    return line


def test_a_damaged_run_is_a_line_and_leaves_nothing_behind(tmp_path, capsys):
    space, actions = Box(-1, 1, (3,)), Discrete(2)
    run_dir = create_ended_run(
        tmp_path / "run", space, actions, default.default_network(space, actions, hidden_sizes=(8,))
    )
    network = run_dir / "network.keras"
    network.write_bytes(network.read_bytes()[:-100])
    assert main(["export", str(run_dir), "--format", "keras", "--output", str(tmp_path / "out")]) == 2
    assert "The network can't be read" in one_line(capsys)
    weights = run_dir / "policy" / "weights.npy"
    weights.write_bytes(flipped(weights.read_bytes(), [2000]))
    for kind in ("litert", "saved_model"):
        assert main(["export", str(run_dir), "--format", kind, "--output", str(tmp_path / "out")]) == 2
        assert "isn't what was written" in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_network_that_keras_can_t_rebuild(tmp_path):
    space, actions = Box(-1, 1, (3,)), Discrete(2, start=4)
    network = Unserializable(2)
    network(np.zeros((1, 3), np.float32))
    run_dir = create_ended_run(tmp_path / "run", space, actions, network)
    with pytest.raises(ValueError, match=r"build it, and give it as `network=`"):
        al.export(run_dir, tmp_path / "out", format="saved_model")
    again = Unserializable(2)
    again(np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match=r"can't be exported in this format.*Received: format='keras'"):
        al.export(run_dir, tmp_path / "out", format="keras", network=again)
    with pytest.raises(ValueError, match=r"`network` can't be given with format='litert'.*Received: network="):
        al.export(run_dir, tmp_path / "out", network=again)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert al.load_policy(al.export(run_dir, tmp_path / "out")).act([0.1, 0.2, 0.3]) in (4, 5)
