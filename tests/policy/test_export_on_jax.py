"""Networks of Keras on JAX are converted by litert-converter, in a process without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.quick_xla import QUICK_XLA

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("litert_converter") is None, reason="needs litert-converter: pip install 'actor-learner[jax-export]'"
    ),
]


def program(*command, **environment):
    """What a program with Keras on JAX prints."""
    usual = {"KERAS_BACKEND": "jax", "ACTOR_LEARNER_CACHE": "", "XLA_FLAGS": QUICK_XLA}
    environment = {**os.environ, **usual, **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("exports") / "results.json"
    program("-m", "tests.support.direct_exports", output)
    return json.loads(output.read_text())


@pytest.mark.parametrize(
    "name",
    [
        "batch normalization before dense",
        "attention",
        "softplus(weight)",
        "several rows",
        "one torque row",
        "Dict",
        "Tuple and masks",
        "nature",
    ],
)
def test_new_weights_are_followed(name, results):
    assert not results[name]["error"], results[name]["error"]


@pytest.mark.parametrize("name", ["several rows", "Tuple and masks", "nature"])
def test_graphs_take_any_number_of_rows(name, results):
    assert results[name]["resizable"] == [True, True]


def test_graphs_that_do_not_resize_are_found_out(results):
    """The batch of a logarithm of standard deviations is a constant of the step graph."""
    assert results["Dict"]["resizable"] == [False, True]


@pytest.mark.parametrize("name", ["several rows", "nature"])
def test_weights_stay_constants(name, results):
    assert results[name]["fed"] == []


def test_what_is_folded_becomes_an_input(results):
    assert results["softplus(weight)"]["fed"] == ["softplus/raw"]
    assert not any(name.endswith("kernel") for name in results["batch normalization before dense"]["fed"])


def test_what_it_cannot_convert_is_refused(results):
    assert "INT64" in results["int64"]["error"]


LOOP = """
import logging, sys
import gymnasium, keras
import actor_learner as al

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
logging.getLogger("jax").setLevel(logging.ERROR)
x = keras.Input((6,))
h = keras.layers.LSTM(5)(keras.layers.Reshape((3, 2))(x))
network = keras.Model(x, (keras.layers.Dense(2)(h), keras.layers.Dense(1)(h)), name="looping")
try:
    policy = al.Policy.from_network(network, gymnasium.spaces.Discrete(2))
    print(policy.exported.fallback)
except ImportError as error:
    print(error)
"""


def test_tensorflow_converts_what_is_refused():
    told, fallback = program("-c", LOOP).splitlines()
    assert told.startswith("actor_learner.policy.export.exporting: TensorFlow converts a network in a helper process")
    assert "LiteRT can't run the step graph of network 'looping'" in told
    assert fallback == "False"


def test_without_tensorflow_what_is_refused_is_one_line():
    (told,) = program("-c", f"import sys\nsys.modules['tensorflow'] = None\n{LOOP}").splitlines()
    assert told.startswith("acting with a network that can't be converted on JAX (LiteRT can't run the step graph of")
    assert told.endswith("pip install actor-learner. Received: no tensorflow in Python 3." + str(sys.version_info[1]))


CACHED = """
import gymnasium, sys
import actor_learner as al
from actor_learner.policy.export import on_jax

converted = []
convert = on_jax._to_flatbuffer
on_jax._to_flatbuffer = lambda *arguments: converted.append(1) or convert(*arguments)
space = gymnasium.spaces.Box(-1, 1, (4,))
for seed in range(2):
    network = al.default_network(space, gymnasium.spaces.Discrete(2), seed=seed)
    al.Policy.from_network(network, gymnasium.spaces.Discrete(2), batch_size=4, observation_space=space)
    print(len(converted))
assert "tensorflow" not in sys.modules
"""


def test_exports_are_cached(tmp_path):
    """A step graph and a value graph, once."""
    cache = {"ACTOR_LEARNER_CACHE": str(tmp_path)}
    setup = "from actor_learner.system.keras_import import import_keras; import_keras()\n"
    assert program("-c", setup + CACHED, **cache).split() == ["2", "2"]
    assert program("-c", setup + CACHED, **cache).split() == ["0", "0"]
