"""Networks of Keras on JAX are converted by litert-converter, in a process without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from actor_learner.system.installation import install_command
from tests.support.processes import patience

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        find_spec("litert_converter") is None, reason="needs litert-converter: pip install 'actor-learner[jax-export]'"
    ),
]


def program(*command, **environment):
    """What a program with Keras on JAX prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "KERAS_BACKEND": "jax", "ACTOR_LEARNER_CACHE": "", **environment},
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("exports") / "results.json"
    program("-m", "tests.support.direct_exports", output)
    return json.loads(output.read_text())


def test_new_weights_are_followed(results):
    errors = {name: result["error"] for name, result in results.items() if result["error"]}
    assert errors.keys() == {"int64"}, errors
    assert "INT64" in errors["int64"]


def test_graphs_take_any_number_of_rows_or_are_found_out(results):
    """With a Box, the batch of a logarithm of standard deviations is a constant of the step graph."""
    for name, resizable in (("several rows", True), ("Tuple and masks", True), ("Dict", False)):
        assert results[name]["resizable"] == [resizable, True]


def test_weights_stay_constants_where_nothing_is_folded(results):
    for name, fed in (("several rows", []), ("softplus(weight)", ["softplus/raw"])):
        assert results[name]["fed"] == fed
    assert not any(name.endswith("kernel") for name in results["batch normalization before dense"]["fed"])


SORTING = """
import logging, sys
import gymnasium, keras
import actor_learner as al

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
logging.getLogger("jax").setLevel(logging.ERROR)
x = keras.Input((6,))
h = keras.ops.sort(x, axis=-1)
network = keras.Model(x, (keras.layers.Dense(2)(h), keras.layers.Dense(1)(h)), name="sorting")
try:
    policy = al.Policy.from_network(network, gymnasium.spaces.Discrete(2))
    print(policy.exported.fallback)
except ImportError as error:
    print(error)
"""


def test_tensorflow_converts_what_is_refused():
    told, fallback = program("-c", SORTING).splitlines()
    assert told.startswith("actor_learner.policy.export.exporting: TensorFlow converts a network in a helper process")
    assert "LiteRT can't run the step graph of network 'sorting'" in told
    assert fallback == "False"


CACHED = """
import sys
from actor_learner.system.keras_import import import_keras

import_keras()
sys.modules["tensorflow"] = None
import gymnasium
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
"""


def test_without_tensorflow_exports_are_cached_and_what_is_refused_is_one_line(tmp_path):
    """A step graph and a value graph are converted, once."""
    *counts, told = program("-c", CACHED + SORTING, ACTOR_LEARNER_CACHE=str(tmp_path)).splitlines()
    assert counts == ["2", "2"]
    assert told.startswith("acting with a network that can't be converted on JAX (LiteRT can't run the step graph of")
    assert told.endswith(
        f"{install_command('actor-learner')}. Received: no tensorflow in Python 3.{sys.version_info[1]}"
    )
