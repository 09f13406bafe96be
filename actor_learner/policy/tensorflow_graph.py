"""TensorFlow graphs with weights in them, ready to run: for networks that LiteRT can't express."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from actor_learner.policy.graph import Graph
from actor_learner.system.keras_import import check_tensorflow

Array = np.ndarray[Any, Any]


class TensorFlowGraph:
    """A TensorFlow graph with all weights as inputs: for networks that LiteRT can't express."""

    resizable = False

    def __init__(self, graph: Graph, weights: Sequence[Array], input_names: Sequence[str]) -> None:
        self._tensorflow = _import_tensorflow()
        self._weights = [weights[index] for index in graph.inputs]
        self._function = self._import(graph, input_names)
        self._fed: list[Any] | None = None

    def _import(self, graph: Graph, input_names: Sequence[str]) -> Any:
        tf = self._tensorflow
        definition = tf.compat.v1.GraphDef.FromString(graph.content)
        names = {node.name for node in definition.node}
        self._positions = [position for position, name in enumerate(input_names) if name in names]
        fed = [input_names[position] for position in self._positions]
        fed += [f"weight_{index}" for index in graph.inputs]
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        return wrapped.prune([f"{name}:0" for name in fed], list(graph.outputs))

    def discard(self) -> None:
        """Lets the next run take over the weights."""
        self._fed = None

    def renew(self) -> None:
        """Lets the next run take over the weights."""
        self._fed = None

    def run(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Runs on the exported batch size; `outputs` are positions."""
        constant = self._tensorflow.constant
        with self._tensorflow.device("cpu"):
            if self._fed is None:
                self._fed = [constant(weight) for weight in self._weights]
            results = self._function(*(constant(inputs[position]) for position in self._positions), *self._fed)
        return [results[output].numpy() for output in outputs]

    def run_resized(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Never called: the graph has a fixed batch size."""
        raise NotImplementedError


_IN_MEMORY = ("Assert", "Case", "If", "Random", "StatefulPartitionedCall", "TensorArray", "TruncatedNormal", "While")
_TOUCHES_THE_WORLD = ("Dataset", "Debug", "File", "Proto", "PyFunc", "Reader", "Remote", "XlaC", "XlaLaunch")


def check_operations(content: bytes) -> None:
    """Looks through a TensorFlow graph that came from a file: one of a stranger could write files when it is run.

    Raises ValueError for an operation that does more than compute.
    """
    tf = _import_tensorflow()
    from tensorflow.python.framework import op_def_registry

    definition = tf.compat.v1.GraphDef.FromString(content)
    functions = definition.library.function
    used = {node.op for nodes in (definition.node, *(each.node_def for each in functions)) for node in nodes}
    for name in sorted(used - {function.signature.name for function in functions}):
        known = op_def_registry.get(name)
        stateful = known is None or known.is_stateful
        if (stateful and not name.startswith(_IN_MEMORY)) or any(word in name for word in _TOUCHES_THE_WORLD):
            raise ValueError(f"its graph has the operation {name[:100]}, which does more than compute")


def _import_tensorflow() -> Any:
    """TensorFlow; with one thread and no GPU, unless the process uses it already."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    check_tensorflow("a policy whose network LiteRT can't run")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf
