"""Traces a function by TensorFlow, and converts it by TensorFlow's converter."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from actor_learner.networks.contract import all_layers
from actor_learner.networks.step import Spec
from actor_learner.policy.export.traced import Function, InexpressibleError, Traced
from actor_learner.policy.graph import Graph
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import silent_stderr
from actor_learner.system.types import Array


class TensorFlowFunction(Traced):
    """A function of TensorFlow."""

    def __init__(
        self, function: Function, inputs: Sequence[Spec], weights: Sequence[Spec], network: keras.Model
    ) -> None:
        super().__init__(inputs, weights)
        self._network = network
        self._specs = [tf.TensorSpec(spec.shape, spec.dtype, name=spec.name) for spec in self.arguments]
        self._function = tf.function(function, autograph=False).get_concrete_function(*self._specs)
        self.outputs = len(self._function.outputs)
        self.set_used(_find_used(self._function, self._specs))

    def run(self, inputs: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        return [output.numpy() for output in self._function(*map(tf.constant, (*inputs, *weights)))]

    def to_flatbuffer(self, weight_inputs: Sequence[int]) -> tuple[bytes, list[str]]:
        function = self._with_constants(weight_inputs)
        try:
            with _silent_converter():
                converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
                # The default writes a SavedModel into a temporary folder, which a killed process leaves behind.
                converter.experimental_lower_to_saved_model = False
                content: bytes = converter.convert()
        except Exception as error:
            raise InexpressibleError(_describe_failure(error, self._network)) from error
        return allow_any_rows(content, self.rows), [tensor.op.name for tensor in function.outputs]

    def _with_constants(self, weight_inputs: Sequence[int]) -> Any:
        """Return the function of its used inputs and of `weight_inputs`, with patterns for the other weights."""
        places, values = self.input_positions(weight_inputs), self.constants()

        def function(*given: Any) -> Any:
            at = dict(zip(places, given, strict=True))
            tensors = (at[place] if place in at else tf.constant(value) for place, value in enumerate(values))
            return self._function(*tensors)

        return tf.function(function, autograph=False).get_concrete_function(*(self._specs[place] for place in places))

    def fallback(self) -> Graph:
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        frozen = convert_variables_to_constants_v2(self._function, lower_control_flow=False)
        content: bytes = frozen.graph.as_graph_def().SerializeToString()
        outputs = tuple(tensor.name for tensor in frozen.outputs)
        return Graph(content, "tensorflow", outputs, (), tuple(sorted(self.used)), resizable=False)


def allow_any_rows(content: bytes, rows: int) -> bytes:
    """Return a flatbuffer whose reshapes that name the number of rows take any number.

    The probe finds out whether the graph then resizes: other operations may name it, too.
    """
    changed = bytearray(content)
    model = schema.Model.GetRootAsModel(changed, 0)
    graph = model.Subgraphs(0)
    for operator in map(graph.Operators, range(graph.OperatorsLength())):
        if model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode() != schema.BuiltinOperator.RESHAPE:
            continue
        source, shape = (graph.Tensors(operator.Inputs(place)) for place in (0, 1))
        buffer = model.Buffers(shape.Buffer()).DataAsNumpy()  # a view, or 0 for none
        sizes = buffer.view(np.int32) if isinstance(buffer, np.ndarray) else np.zeros(1)
        if sizes[0] == rows == source.Shape(0) and (sizes > 0).all():  # one size at most may be -1
            sizes[0] = -1
    return bytes(changed)


def _find_used(function: Any, arguments: Sequence[tf.TensorSpec]) -> list[int]:
    """Return the positions of the arguments that the function's outputs depend on."""
    seen: set[str] = set()
    pending = [tensor.op for tensor in function.graph.outputs]
    while pending:
        operation = pending.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            pending.extend(tensor.op for tensor in operation.inputs)
    return [position for position, argument in enumerate(arguments) if argument.name in seen]


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
    layer = next(filter(None, (_find_layer(scope, network) for scope in scopes)), None)
    outside = f"{scopes[0]!r}, outside its layers" if scopes else "the network"
    where = f"layer {layer!r}" if layer else outside
    what = f"its operation {operation[1]} has no counterpart" if operation else one_line(error).rstrip(".")
    return f"{where}: {what}."


def _find_layer(scope: str, network: keras.Model) -> str | None:
    """Return the innermost layer in the name of an operation, such as `model_1/attention_1/MatMul`."""
    names = {layer.name for layer in all_layers(network)}
    parts = reversed(scope.split("/"))
    candidates = (candidate for part in parts for candidate in (part, re.sub(r"_\d+$", "", part)))
    return next((candidate for candidate in candidates if candidate in names), None)
