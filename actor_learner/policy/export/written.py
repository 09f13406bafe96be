"""Checks a file that another program's format holds: its inputs and outputs, and a batch of actions."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from actor_learner.networks.contract import all_layers, seed_states, tensor_names
from actor_learner.networks.saving import load_network
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, to_gymnasium
from actor_learner.system.types import Array

_ROWS = 8
_TOLERANCE = 1e-3


@contextlib.contextmanager
def with_constants(model: keras.Model) -> Iterator[None]:
    """Let layers hold NumPy arrays in place of tensors, as `Normalization` has them: graphs take those as inputs."""
    changed = [
        (vars(layer), name, value)
        for layer in all_layers(model)
        for name, value in vars(layer).items()
        if keras.ops.is_tensor(value) and not isinstance(value, keras.Variable)  # which is one on TensorFlow
    ]
    for attributes, name, value in changed:
        attributes[name] = np.asarray(value)
    try:
        yield
    finally:
        for attributes, name, value in changed:
            attributes[name] = value


def check_written(model: keras.Model, spaces: Spaces, format: str, folder: Path) -> None:
    """Raise ValueError unless a written model takes and gives what `acting_network` returned, with the same numbers.

    Numbers aren't compared where layers draw some at each call, and those of ONNX only beside onnxruntime.
    """
    inputs = _draw(model, spaces)
    with keras.device("cpu"):  # a GPU may round to TF32
        expected = {name: np.asarray(value) for name, value in model(inputs, training=False).items()}
    found = _run(format, folder, inputs)
    if sorted(found) != sorted(expected):
        raise ValueError(f"its outputs are {sorted(found)}, not {sorted(expected)}")
    if seed_states(model) or (format == "onnx" and importlib.util.find_spec("onnxruntime") is None):
        return
    for name, value in expected.items():
        same = np.isclose(found[name], value, _TOLERANCE, _TOLERANCE, equal_nan=True)
        # Two choices may be as likely but for rounding.
        if found[name].shape != value.shape or same.mean() < (1.0 if value.dtype.kind == "f" else 0.5):
            raise ValueError(f"its output {name!r} differs from Keras's")


def _draw(model: keras.Model, spaces: Spaces) -> dict[str, Array]:
    """Return values of a model's inputs: observations of the space, everything allowed, at an episode's start."""
    space = to_gymnasium(spaces.observation.space)
    space.seed(0)
    rows = [spaces.observation.flatten(space.sample()) for _ in range(_ROWS)]
    leaves = [np.stack([np.asarray(value) for value in values]) for values in zip(*rows, strict=True)]
    found = {name: np.ones((_ROWS, *x.shape[1:]), x.dtype) for name, x in model.input.items()}
    names = tensor_names(leaf.name for leaf in spaces.observation.leaves)
    for name, leaf, values in zip(names, spaces.observation.leaves, leaves, strict=True):
        if leaf.path[:1] != (MASK_KEY,):  # numbers near a Box's bounds may overflow
            found[name] = (np.clip(values, -10, 10) if values.dtype.kind == "f" else values).astype(found[name].dtype)
    return found


def _run(format: str, folder: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a written model. Raises ValueError for other inputs."""
    act: Any
    if format == "keras":
        outputs = load_network(folder)(inputs, training=False)
        return {name: np.asarray(value) for name, value in outputs.items()}
    if format == "saved_model":
        import tensorflow as tf

        act = tf.saved_model.load(folder).signatures["serving_default"]
        _check_inputs(list(act.structured_input_signature[1]), [name.replace(".", "_") for name in inputs])
        outputs = act(**{name.replace(".", "_"): tf.constant(value) for name, value in inputs.items()})
        return {name: np.asarray(value) for name, value in outputs.items()}
    if format == "tflite":
        from ai_edge_litert.interpreter import Interpreter

        act = Interpreter(str(folder / "policy.tflite")).get_signature_runner()
        _check_inputs(list(act.get_input_details()), list(inputs))
        return dict(act(**inputs))
    import onnx

    graph = onnx.load(folder / "policy.onnx").graph
    _check_inputs([one.name for one in graph.input], list(inputs))
    names = [one.name for one in graph.output]
    if importlib.util.find_spec("onnxruntime") is None:
        return dict.fromkeys(names, np.zeros(0))
    import onnxruntime  # type: ignore[import-untyped]

    return dict(zip(names, onnxruntime.InferenceSession(folder / "policy.onnx").run(None, dict(inputs)), strict=True))


def _check_inputs(found: list[str], expected: list[str]) -> None:
    if sorted(found) != sorted(expected):
        raise ValueError(
            f"it takes {sorted(found)}, not {sorted(expected)}: a layer holds a tensor that isn't a weight"
        )
