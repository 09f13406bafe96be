"""Policies that remember, exported: the same actions and states in each format, step after step."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.networks import default
from actor_learner.runs.directory import RunDirectory, record_choices
from tests.support.run_files import create_ended_run

pytestmark = pytest.mark.slow

STEPS, ROWS = 7, 3
SPACE, ACTIONS = Box(-3, 3, (2,), np.float64), Discrete(5, start=2)


@pytest.fixture(scope="module", params=["lstm"])
def run(request, tmp_path_factory):
    """A run, with the inputs of each step beside the state, and what its LiteRT policy does. The GRU's has masks."""
    keras.utils.set_random_seed(4)
    network = default.default_network(SPACE, ACTIONS, memory=request.param, memory_size=8, hidden_sizes=(8,))
    rng = np.random.default_rng(2)
    network.set_weights([weight + 0.8 * rng.standard_normal(weight.shape) for weight in network.get_weights()])
    path = create_ended_run(tmp_path_factory.mktemp("runs") / "run", SPACE, ACTIONS, network)
    observations, starts = rng.normal(0, 2, (STEPS, ROWS, 2)), rng.random((STEPS, ROWS)) < 0.3
    masks = [None] * STEPS
    if request.param == "gru":
        record_choices(RunDirectory(path), action_masks=True)
        masks = (rng.random((STEPS, ROWS, 5)) < 0.4) | np.eye(5, dtype=bool)[rng.integers(0, 5, (STEPS, ROWS))]
    policy = al.load_policy(path)
    state = policy.initial_state(ROWS)
    starts[0] = True
    steps = []
    feeds = []
    for observation, start, mask in zip(observations, starts, masks, strict=True):
        action, state = policy.act(observation, start=start, state=state, action_mask=mask)
        steps.append((action, state))
        feeds.append({"observation": observation, "start": start} | ({} if mask is None else {"action_mask": mask}))
    assert len({action for actions, _ in steps for action in actions.tolist()}) > 1
    return path, feeds, steps


def step_keras(folder):
    network = al.load_network(folder)
    return lambda feed: {name: np.asarray(value) for name, value in network(feed).items()}


def step_saved_model(folder):
    import tensorflow as tf

    act = tf.saved_model.load(folder).signatures["serving_default"]
    return lambda feed: {
        name: value.numpy() for name, value in act(**{key: tf.constant(array) for key, array in feed.items()}).items()
    }


def step_tflite(folder):
    from ai_edge_litert.interpreter import Interpreter

    act = Interpreter(str(folder / "policy.tflite")).get_signature_runner()
    return lambda feed: act(**feed)


def step_onnx(folder):
    session = pytest.importorskip("onnxruntime", reason="needs onnxruntime").InferenceSession(folder / "policy.onnx")
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))


@pytest.mark.filterwarnings("ignore:This policy was trained with action masks")
@pytest.mark.parametrize(
    ("run", "load"),
    [
        ("lstm", step_keras),
        ("gru", step_tflite),
        *(pytest.param("lstm", step, marks=pytest.mark.thorough) for step in (step_saved_model, step_onnx)),
    ],
    indirect=["run"],
)
def test_other_formats_step_as_litert_does(run, load, tmp_path):
    kind = load.__name__.removeprefix("step_")
    if kind == "onnx":
        pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    path, feeds, steps = run
    folder = al.export(path, tmp_path / "out", format=kind)
    described = json.loads((folder / "spaces.json").read_text())
    memory = described["memory"]
    assert set(memory) == {name for name in described["inputs"] if name.startswith("state_")}
    state = {name: np.full((ROWS, *leaf["shape"]), leaf["initial"], np.float32) for name, leaf in memory.items()}
    step = load(folder)
    for feed, (action, after) in zip(feeds, steps, strict=True):
        assert {*feed, *state} == set(described["inputs"])
        outputs = step({**feed, **state})
        assert set(outputs) == set(described["outputs"])
        np.testing.assert_array_equal(outputs["action"], action)
        state = {name: outputs[leaf["next"]] for name, leaf in memory.items()}
        for name, leaf in zip(sorted(memory), after, strict=True):
            np.testing.assert_allclose(state[name], leaf, atol=1e-5)


def test_litert_s_manifest_describes_the_state(run, tmp_path):
    path, _, steps = run
    memory = json.loads((al.export(path, tmp_path / "out") / "spaces.json").read_text())["memory"]
    assert [tuple(leaf["shape"]) for leaf in memory.values()] == [leaf.shape[1:] for leaf in steps[0][1]]
