"""Runs functions of keras.ops as actors do: converted to LiteRT."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter


def run_litert(function, *arrays):
    """Converts a function, runs it on these arrays, and returns a list of its outputs."""
    specs = [tf.TensorSpec(array.shape, array.dtype, name=f"input_{i}") for i, array in enumerate(arrays)]
    concrete = tf.function(lambda *inputs: list(function(*inputs)), autograph=False).get_concrete_function(*specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    converter.experimental_lower_to_saved_model = False
    interpreter = Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        position = int(details["name"].removeprefix("input_").split(":")[0])
        interpreter.set_tensor(details["index"], np.ascontiguousarray(arrays[position]))
    interpreter.invoke()
    return [interpreter.get_tensor(details["index"]) for details in interpreter.get_output_details()]
