"""Converts a traced function to a LiteRT graph that follows all its weights, or to a TensorFlow graph.

The converter folds constants: `exp(log_std)`, a normalization into the kernel before it, 1/255 into a first convolution
(recognized as a factor). So finding a weight once doesn't mean that it is found everywhere. The probe changes each
weight alone and compares all outputs with TensorFlow's. A weight that fails becomes an input of the graph, vectors
before kernels: a folded factor is mostly a vector, and a graph with a constant kernel is several times faster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from actor_learner.networks.contract import all_layers
from actor_learner.policy.export.trace import Traced
from actor_learner.policy.export.verify import Probe
from actor_learner.policy.export.weight_table import find_constants, patterns
from actor_learner.policy.graph import Graph
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import silent_stderr


class InexpressibleError(Exception):
    """Raised if LiteRT can't run a graph; the message names the place."""


def to_litert(traced: Traced, probe: Probe, network: keras.Model) -> Graph:
    """Converts and checks, with the weights that failed as further inputs, until none fails.

    Raises InexpressibleError if LiteRT lacks an operation, or if its outputs differ.
    """
    fed = {index for index in traced.used if not keras.backend.is_float_dtype(network.weights[index].dtype)}
    while True:
        content, outputs = _convert(traced, fed, network)
        constants = find_constants(content, [tuple(spec.shape) for spec in traced.weights], traced.used - fed)
        graph = Graph(content, "litert", outputs, constants, tuple(sorted(fed)), resizable=False)
        try:
            failed = probe.failing_weights(graph, traced)
        except (RuntimeError, ValueError) as error:
            raise InexpressibleError(f"it doesn't start ({one_line(error)}).") from error
        if not failed:
            return dataclasses.replace(graph, resizable=probe.is_resizable(graph, traced))
        if not failed - fed:
            names = sorted(network.weights[index].path for index in failed)
            raise InexpressibleError(f"its outputs differ from Keras's if these weights change: {names}.")
        failed -= fed
        fed |= {index for index in failed if len(traced.weights[index].shape) <= 1} or failed


def to_tensorflow(traced: Traced) -> Graph:
    """Returns the traced function as a TensorFlow graph with all used weights as inputs."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(traced.function, lower_control_flow=False)
    content: bytes = frozen.graph.as_graph_def().SerializeToString()
    outputs = tuple(tensor.name for tensor in frozen.outputs)
    return Graph(content, "tensorflow", outputs, (), tuple(sorted(traced.used)), resizable=False)


def _convert(traced: Traced, fed: Iterable[int], network: keras.Model) -> tuple[bytes, tuple[str, ...]]:
    """Returns the flatbuffer of a function, with patterns for the weights not in `fed`, and its outputs' names."""
    function = _with_constants(traced, sorted(fed))
    try:
        with _silent_converter():
            converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
            # The default writes a SavedModel into a temporary folder, which a killed process leaves behind.
            converter.experimental_lower_to_saved_model = False
            content: bytes = converter.convert()
    except Exception as error:
        raise InexpressibleError(_describe_failure(error, network)) from error
    return content, output_names([tensor.op.name for tensor in function.outputs], _outputs_of(content))


def _with_constants(traced: Traced, fed: Sequence[int]) -> Any:
    """Returns the function of its used inputs and the weights `fed`, with patterns for the other weights."""
    arguments = [*traced.inputs, *traced.weights]
    values = [np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in traced.inputs]
    values += patterns([tuple(spec.shape) for spec in traced.weights])
    places = [*sorted(traced.used_inputs), *(len(traced.inputs) + index for index in fed)]

    def function(*given: Any) -> Any:
        at = dict(zip(places, given, strict=True))
        tensors = (at[place] if place in at else tf.constant(value) for place, value in enumerate(values))
        return traced.function(*tensors)

    return tf.function(function, autograph=False).get_concrete_function(*(arguments[place] for place in places))


def _outputs_of(content: bytes) -> list[str]:
    """Returns the names of a flatbuffer's outputs, in its order."""
    from tensorflow.lite.python import schema_py_generated as schema

    graph = schema.Model.GetRootAsModel(content, 0).Subgraphs(0)
    return [graph.Tensors(graph.Outputs(place)).Name().decode() for place in range(graph.OutputsLength())]


def output_names(traced: Sequence[str], converted: Sequence[str]) -> tuple[str, ...]:
    """Returns the name in the flatbuffer of each of a function's outputs.

    The converter may reorder outputs. It joins equal ones, and an input that is an output, under the first name: such
    an output is found by its place. Raises InexpressibleError if outputs are missing.
    """
    if len(converted) != len(traced):
        raise InexpressibleError(f"it has {len(converted)} outputs where the network's graph has {len(traced)}.")
    return tuple(name if name in converted else converted[place] for place, name in enumerate(traced))


@contextlib.contextmanager
def _silent_converter() -> Iterator[None]:
    """Hides the converter's remarks on deprecation and on options that it ignores; errors are exceptions.

    The handler keeps absl from setting up the root logger at its first remark, which would change the caller's logging.
    """
    logger, placeholder = logging.getLogger("absl"), logging.NullHandler()
    disabled, logger.disabled = logger.disabled, True
    logging.root.addHandler(placeholder)
    try:
        with silent_stderr():
            yield
    finally:
        logging.root.removeHandler(placeholder)
        logger.disabled = disabled


def _describe_failure(error: Exception, network: keras.Model) -> str:
    """Names the layer and the operation that the converter failed at."""
    text = str(error)
    operation = re.search(r"'(tf\.\w+)' op", text)
    calls = [call for detail in getattr(error, "errors", []) for call in detail.location.call]
    scopes = [call.name.split("@")[0] for call in calls if call.name]
    layer = next(filter(None, (_layer_of(scope, network) for scope in scopes)), None)
    outside = f"{scopes[0]!r}, outside its layers" if scopes else "the network"
    where = f"layer {layer!r}" if layer else outside
    what = f"its operation {operation[1]} has no counterpart" if operation else one_line(error).rstrip(".")
    return f"{where}: {what}."


def _layer_of(scope: str, network: keras.Model) -> str | None:
    """Returns the innermost layer in the name of an operation, such as `model_1/attention_1/MatMul`."""
    names = {layer.name for layer in all_layers(network)}
    parts = reversed(scope.split("/"))
    candidates = (candidate for part in parts for candidate in (part, re.sub(r"_\d+$", "", part)))
    return next((candidate for candidate in candidates if candidate in names), None)
