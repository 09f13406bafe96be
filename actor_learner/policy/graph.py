"""Graphs: as bytes with the places of their weights, and loaded, ready to run by LiteRT or by TensorFlow."""

from __future__ import annotations

import abc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from actor_learner.system.keras_import import check_installed, silent_stderr
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter


@dataclass(frozen=True)
class Constant:
    """The bytes of a LiteRT graph that hold one weight: transposed, then times `factor`, as float32."""

    weight: int
    offset: int
    permutation: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Graph:
    """A graph for a fixed batch size. Its weights are constants inside it, inputs (`weight_<index>`), or both.

    Its other inputs are those of `ExportedPolicy.input_names` that it uses.
    """

    content: bytes  # a LiteRT flatbuffer, or a TensorFlow GraphDef
    format: Literal["litert", "tensorflow"]
    outputs: tuple[str, ...]
    """Names of the output tensors. Several outputs may share a name: the converter joins equal ones."""
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]  # indices of the weights that are inputs
    resizable: bool  # True if the graph also computes correctly at other batch sizes


class LoadedGraph(abc.ABC):
    """A graph with weights, ready to run.

    Its inputs are arrays for all of `ExportedPolicy.input_names` (for the value graph without noise and mask, which are
    the last); the graph ignores those that it doesn't use. Its outputs are chosen by position.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def run(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Run on any number of rows and return new arrays. The exported batch size is the fastest."""
        if len(inputs[0]) == self._batch_size:
            return self._run_batch(inputs, outputs)
        return self._run_rows(inputs, outputs)

    def _run_rows(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Run in chunks of the exported batch size, the last one padded with zeros."""
        rows, size = len(inputs[0]), self._batch_size
        padding = -rows % size if rows else size
        padded = [np.concatenate([array, np.zeros((padding, *array.shape[1:]), array.dtype)]) for array in inputs]
        starts = range(0, rows + padding, size)
        chunks = [self._run_batch(tuple(array[start : start + size] for array in padded), outputs) for start in starts]
        return [np.concatenate(arrays)[:rows] for arrays in zip(*chunks, strict=True)]

    @abc.abstractmethod
    def _run_batch(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        """Run on the exported batch size."""

    @abc.abstractmethod
    def renew(self) -> None:
        """Read the weights again, now."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Lets the next run read the weights again: cheaper than `renew` for a graph that seldom runs."""


class LiteRTGraph(LoadedGraph):
    """A graph of LiteRT. Weights are written into its bytes; new weights get a new interpreter.

    `weights` are views on memory that the caller changes before it calls `renew` or `discard`; `input_names` are the
    names of the arrays that `run` gets.
    """

    def __init__(self, graph: Graph, weights: Sequence[Array], input_names: Sequence[str], batch_size: int) -> None:
        super().__init__(batch_size)
        self._resizable = graph.resizable
        self._input_names, self._output_names = input_names, graph.outputs
        self._content = bytearray(graph.content)
        self._copies = [_copy_pair(self._content, constant, weights) for constant in graph.constants]
        self._weight_inputs = {f"weight_{index}": weights[index] for index in graph.inputs}
        self._output_indices: list[int] = []
        self.discard()

    def discard(self) -> None:
        self._interpreter: Interpreter | None = None
        self._resized: tuple[int, Any] = (0, None)  # one interpreter, of the last other batch size

    def renew(self) -> None:
        self.discard()
        self._interpreter = self._build(self._batch_size)

    def _run_batch(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        if self._interpreter is None:
            self._interpreter = self._build(self._batch_size)
        return self._invoke(self._interpreter, inputs, outputs)

    def _run_rows(self, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        rows = len(inputs[0])
        if not (self._resizable and rows):
            return super()._run_rows(inputs, outputs)
        if rows != self._resized[0]:
            self._resized = rows, self._build(rows)
        return self._invoke(self._resized[1], inputs, outputs)

    def _invoke(self, interpreter: Interpreter, inputs: tuple[Array, ...], outputs: tuple[int, ...]) -> list[Array]:
        for position in self._integers:  # a graph of 0.1.0 takes integers where floats are kept now
            inputs = (*inputs[:position], inputs[position].astype(np.int64, copy=False), *inputs[position + 1 :])
        for position, index in self._input_indices:
            interpreter.set_tensor(index, inputs[position])
        interpreter.invoke()
        return [interpreter.get_tensor(self._output_indices[output]) for output in outputs]

    def _build(self, rows: int) -> Interpreter:
        """Return an interpreter with the present weights, for so many rows."""
        for target, source, factor in self._copies:
            if factor == 1.0:
                np.copyto(target, source)
            else:
                np.multiply(source, factor, target)
        interpreter = _new_interpreter(bytes(self._content))
        if not self._output_indices:
            self._find_tensors(interpreter)
        for index, shape in self._shapes.items():
            if shape[0] != rows:
                interpreter.resize_tensor_input(index, (rows, *shape[1:]))
        interpreter.allocate_tensors()
        for index, weight in self._weight_places:
            interpreter.set_tensor(index, weight)
        return interpreter

    def _find_tensors(self, interpreter: Interpreter) -> None:
        """Look up tensor numbers by name, and the inputs' shapes, once: they are the same for all weights."""
        details = {detail["name"]: detail for detail in interpreter.get_input_details()}
        numbers = {name: detail["index"] for name, detail in details.items()}
        names = [(position, name) for position, name in enumerate(self._input_names) if name in numbers]
        self._input_indices = [(position, numbers[name]) for position, name in names]
        self._integers = [position for position, name in names if details[name]["dtype"] == np.int64]
        self._shapes = {numbers[name]: details[name]["shape"] for name in self._input_names if name in numbers}
        self._weight_places = [(numbers[name], weight) for name, weight in self._weight_inputs.items()]
        numbers = {detail["name"]: detail["index"] for detail in interpreter.get_output_details()}
        self._output_indices = [numbers[name] for name in self._output_names]


def _copy_pair(content: bytearray, constant: Constant, weights: Sequence[Array]) -> tuple[Array, Array, np.float32]:
    """Return (view on the graph's bytes, view on the weight in the same shape, factor)."""
    source = weights[constant.weight].transpose(constant.permutation)
    target = np.frombuffer(content, np.float32, source.size, constant.offset).reshape(source.shape)
    return target, source, np.float32(constant.factor)


_delegate_announced = False


def _new_interpreter(content: bytes) -> Interpreter:
    """Return an interpreter of one thread, and hide what the first one of a process logs about its delegate."""
    global _delegate_announced
    from ai_edge_litert.interpreter import Interpreter

    if _delegate_announced:
        return Interpreter(model_content=content, num_threads=1)
    _delegate_announced = True
    with silent_stderr():
        interpreter = Interpreter(model_content=content, num_threads=1)
        interpreter.allocate_tensors()
    return interpreter


class TensorFlowGraph(LoadedGraph):
    """A graph of TensorFlow, for networks that LiteRT can't express; all its weights are inputs."""

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
