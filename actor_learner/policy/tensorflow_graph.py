"""Graphs that TensorFlow runs, for networks that LiteRT can't express."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from actor_learner.policy.graph import Graph, LoadedGraph
from actor_learner.system.keras_import import check_installed
from actor_learner.system.types import Array


class TensorFlowGraph(LoadedGraph):
    """A graph of TensorFlow; all its weights are inputs."""

    def __init__(self, graph: Graph, weights: Sequence[Array], input_names: Sequence[str], batch_size: int) -> None:
        super().__init__(batch_size)
        self._tensorflow = tf = _import_tensorflow()
        self._weights = [weights[index] for index in graph.inputs]
        self._weight_tensors: list[Any] | None = None
        definition = parse_graph(graph.content)
        names = {node.name for node in definition.node}
        self._positions = [position for position, name in enumerate(input_names) if name in names]
        inputs = [input_names[position] for position in self._positions]
        tensor_names = [f"{name}:0" for name in (*inputs, *(f"weight_{index}" for index in graph.inputs))]
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        self._function = wrapped.prune(tensor_names, list(graph.outputs))

    def discard(self) -> None:
        self._weight_tensors = None

    renew = discard

    def _run_batch(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        constant = self._tensorflow.constant
        with self._tensorflow.device("cpu"):
            if self._weight_tensors is None:
                self._weight_tensors = [constant(weight) for weight in self._weights]
            tensors = [constant(inputs[position]) for position in self._positions]
            results = self._function(*tensors, *self._weight_tensors)
        return [results[output].numpy() for output in outputs]


def parse_graph(content: bytes) -> Any:
    """Return the GraphDef that a graph's bytes hold."""
    return _import_tensorflow().compat.v1.GraphDef.FromString(content)


def _import_tensorflow() -> Any:
    """Return TensorFlow; import it with one thread and no GPU, unless the process has imported it already."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    check_installed("tensorflow", "a policy whose network LiteRT can't run")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf
