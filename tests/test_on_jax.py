"""Whole runs on JAX, each command in a process of its own: Keras has one backend in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import actor_learner as al
from actor_learner.system.installation import install_command
from tests.support.processes import patience

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")]
SIZES = ["--num-actors", "1", "--num-envs", "4", "--unroll-length", "32", "--preset", "none"]
COMMAND = "import sys; from actor_learner.cli import main; code = main(sys.argv[1:]); "
WITHOUT_TENSORFLOW = "assert 'tensorflow' not in sys.modules, 'TensorFlow was loaded'; "


def started(*arguments, python=sys.executable, code=0, **environment):
    """A process of Python that has ended so; Keras's backend is none but that of `environment`."""
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | environment
    command, timeout = [python, *map(str, arguments)], patience(280)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run(*arguments, code=0):
    """What a command prints, without TensorFlow in its process."""
    done = started("-c", f"{COMMAND}{WITHOUT_TENSORFLOW}sys.exit(code)", *arguments, code=code)
    return done.stdout + done.stderr


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "jax"
    run("train", "CartPole-v1", "--backend", "jax", "--total-steps", 1280, "--run-dir", run_dir, "--quiet", *SIZES)
    return run_dir


def test_a_run_says_what_it_ran_on_and_is_evaluated(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["backend"] == "jax"
    assert config["versions"]["jax"]
    assert metrics(trained)[-1]["env_steps"] >= 1280
    assert list(trained.glob("events.out.tfevents.*"))
    assert "over 3 episodes" in run("evaluate", trained, "--episodes", 3)


@pytest.mark.skipif(bool(find_spec("jax_cuda12_plugin")), reason="needs JAX without CUDA")
@pytest.mark.parametrize(("command", "code"), [("train", 2), ("doctor", 1)])
def test_a_platform_that_is_not_there_is_one_line(command, code, tmp_path):
    run_it = ["CartPole-v1", "--total-steps", 64, "--run-dir", tmp_path / "run", *SIZES] if command == "train" else []
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cuda"}
    done = started("-c", f"{COMMAND}sys.exit(code)", command, *run_it, code=code, **environment)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "JAX finds no device" in line]
    assert lines[0].endswith("Received: JAX_PLATFORMS=cuda")
    assert len(lines) == (2 if command == "doctor" else 1)  # the doctor's problems, and its table for a bug report
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_is_resumed_on_its_own_backend(trained):
    """Where the policy runs may change."""
    before = len(metrics(trained))
    run("train", "--resume", trained, "--total-steps", 1664, "--acting", "device", "--quiet")
    assert len(metrics(trained)) == before + 3
    refused = run("train", "--resume", trained, "--total-steps", 2000, "--backend", "tensorflow", code=2)
    assert 'backend is "jax" there, "tensorflow" here' in refused
    assert refused.count("\n") == 1


def test_a_run_is_exported_by_keras_on_tensorflow_to_litert_s_signature(trained, tmp_path):
    words = ["export", trained, "--format", "tflite", "--output", tmp_path / "out"]
    refused = started("-c", f"{COMMAND}sys.exit(code)", *words, code=2, KERAS_BACKEND="jax").stderr
    assert "export with KERAS_BACKEND=tensorflow" in refused
    started("-c", f"{COMMAND}sys.exit(code)", *words)
    act = Interpreter(str(tmp_path / "out/policy.tflite")).get_signature_runner()
    observation = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    action = act(observation=observation)["action"]
    np.testing.assert_array_equal(action, al.load_policy(trained).act(observation))
    assert set(action.tolist()) == {0, 1}


def test_what_was_learned_starts_a_run_on_tensorflow(trained, tmp_path):
    flags = ["--init-from", trained, "--total-steps", 256, "--run-dir", tmp_path / "run", "--quiet", *SIZES]
    started("-c", f"{COMMAND}sys.exit(code)", "train", "CartPole-v1", *flags)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["backend"] == "tensorflow"


def test_lag_normalization_mixed_precision_and_cores(tmp_path):
    """The policy that is saved agrees with the network to rounding.

    JAX takes the number of cores when it starts, which must not happen before it is known.
    """
    program = """
import os, sys, warnings
import numpy as np
import keras
import actor_learner as al
keras.config.set_dtype_policy("mixed_bfloat16")
with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    result = al.train(al.TrainConfig(
        env="Pendulum-v1", algorithm=al.PPO(minibatch_size=32, normalize_reward=True), total_steps=512,
        num_actors=1, num_envs=4, unroll_length=16, max_policy_lag=1, normalize_observation=True, quiet=True,
        learner_threads=1, run_dir=sys.argv[1],
    ))
assert "bfloat16" in {layer.compute_dtype for layer in result.network.layers}
policy = al.load_policy(sys.argv[1])
observation = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
value = np.asarray(result.network(observation, training=False)[1])[:, 0]
assert np.abs(policy.value(observation) - value).max() < 0.01 * (1 + np.abs(value).max())
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert sum(name.startswith("tf_XLAEigen") for name in threads) == 1, threads
assert "tensorflow" not in sys.modules
"""
    started("-c", program, tmp_path / "run", KERAS_BACKEND="jax")
    assert metrics(tmp_path / "run")[-1]["updates"] >= 7


def test_a_replay_buffer_is_learned_from_and_resumed(tmp_path):
    """The schedule of gradient steps goes on where it stood."""
    run_dir, sizes = tmp_path / "run", ["--num-actors", "1", "--num-envs", "4", "--unroll-length", "8"]
    learn = ["--learning-starts", "64", "--updates-per-step", "0.5", "--minibatch-size", "16", "--hidden-sizes", "16"]
    words = ["Pendulum-v1", "--algorithm", "sac", "--backend", "jax", "--preset", "none", *sizes, *learn]
    run("train", *words, "--total-steps", 256, "--run-dir", run_dir, "--quiet")
    run("train", "--resume", run_dir, "--total-steps", 512, "--quiet")
    last = metrics(run_dir)[-1]
    assert last["env_steps"] >= 512
    assert (last["gradient_steps"], last["gradient_steps_owed"]) == ((last["env_steps"] - 64) // 2, 0)
    assert 400 < last["buffer_rows"] <= last["env_steps"]


def test_networks_that_cannot_be_converted_are_told(tmp_path):
    """A process with TensorFlow finds out that LiteRT can't express one, and this one warns.

    Without litert-converter, the conversion needs Keras on TensorFlow, in a process that can't load layers of here;
    and without either there is none.
    """
    (tmp_path / "bits.py").write_text("""
import keras
from keras import ops

@keras.saving.register_keras_serializable()
class Bits(keras.layers.Layer):
    def call(self, x):
        return x + ops.cast(ops.bitwise_and(ops.cast(x, "int32"), 1), x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape
""")
    program = """
import sys, warnings
import gymnasium, keras
import actor_learner as al
from bits import Bits

class Own(keras.layers.Layer):
    def call(self, x):
        return 2 * x

def convert(layer):
    x = keras.Input((4,))
    h = layer(x)
    network = keras.Model(x, (keras.layers.Dense(2)(h), keras.layers.Dense(1)(h)))
    al.Policy.from_network(network, gymnasium.spaces.Discrete(2))

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    convert(Bits(name="puzzling"))
    failures, sys.modules["litert_converter"] = [], None
    for layer in (Own(), keras.layers.Dense(3)):
        try:
            convert(layer)
        except (ImportError, ValueError) as error:
            failures.append(error)
        sys.modules["tensorflow"] = None
print(*(str(warning.message) for warning in told if "LiteRT" in str(warning.message)), *failures, sep="\\n")
"""
    cache = str(tmp_path / "cache")
    done = started("-c", program, KERAS_BACKEND="jax", PYTHONPATH=str(tmp_path), ACTOR_LEARNER_CACHE=cache)
    step, value, failure, missing = done.stdout.splitlines()
    assert step.startswith("LiteRT can't run the step graph")
    assert value.startswith("LiteRT can't run the value graph")
    for line in (step, value):
        assert "layer 'puzzling'" in line
        expected = "Processes that act by it use TensorFlow, which is many times slower and takes more memory."
        assert line.endswith(expected)
    assert failure.startswith("Acting with a network needs its conversion by Keras on TensorFlow")
    assert failure.endswith("on jax")
    assert missing.endswith(
        f"{install_command('actor-learner')}, or {install_command('actor-learner[jax-export]')}, "
        f"which converts without it. Received: no tensorflow in Python 3.{sys.version_info[1]}"
    )


@pytest.fixture(scope="module")
def without_tensorflow(tmp_path_factory):
    """The interpreter of a venv that has all that is installed here, but TensorFlow."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("tensorflow", "tensorboard", "pip")) and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def on_its_own(python, *commands, **environment):
    """What commands, one after the other, print in a venv."""
    program = f"import sys; from actor_learner.cli import main; sys.exit(max([main(words) for words in {commands!r}]))"
    done = started("-c", program, python=python, **environment)
    return done.stdout + done.stderr


def test_where_tensorflow_is_not_installed(without_tensorflow, trained, tmp_path):
    """A run of an architecture that is known, its resumption, evaluation, plot and export; JAX's are the numbers."""
    python, run_dir = without_tensorflow, str(tmp_path / "run")
    assert "No module named 'tensorflow'" in started("-c", "import tensorflow", python=python, code=1).stderr
    plot = [["plot", run_dir, "--output", str(tmp_path / "curve.png")]] if find_spec("matplotlib") else []
    told = on_its_own(
        python,
        ["train", "CartPole-v1", "--backend", "jax", "--total-steps", "1280", "--run-dir", run_dir, "--quiet", *SIZES],
        ["train", "--resume", run_dir, "--total-steps", "1408", "--quiet"],
        ["evaluate", run_dir, "--episodes", "3"],
        *plot,
        ["export", run_dir, "--output", str(tmp_path / "policy")],
        ["doctor"],
    )
    assert "over 3 episodes" in told
    assert "jax" in told
    same = ("env_steps", "loss", "episode_return")
    found, expected = (
        [[row.get(name) for name in same] for row in metrics(run)] for run in (tmp_path / "run", trained)
    )
    count = next(index for index, row in enumerate(expected, 1) if row[0] >= 1280)  # the rows before it was resumed
    assert found[:count] == expected[:count]
    assert found[-1][0] >= 1408
    other = ["train", "CartPole-v1", "--run-dir", str(tmp_path / "other"), "--quiet"]
    refused = started("-m", "actor_learner", *other, python=python, code=2).stderr
    assert refused.count("\n") == 1
    assert "no tensorflow" in refused
    assert "KERAS_BACKEND=jax" in refused


@pytest.mark.skipif(
    find_spec("litert_converter") is None, reason="needs litert-converter: pip install 'actor-learner[jax-export]'"
)
def test_without_tensorflow_a_new_architecture_is_converted_here(without_tensorflow, tmp_path):
    run_dir = str(tmp_path / "run")
    told = on_its_own(
        without_tensorflow,
        ["train", "Pendulum-v1", "--backend", "jax", "--total-steps", "640", "--run-dir", run_dir, "--quiet", *SIZES],
        ["evaluate", run_dir, "--episodes", "3"],
        ACTOR_LEARNER_CACHE=str(tmp_path / "cache"),
    )
    assert "over 3 episodes" in told
    assert len(list((tmp_path / "cache" / "policies").iterdir())) == 2  # for the actors' four environments, and for one
