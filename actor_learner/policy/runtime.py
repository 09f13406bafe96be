"""LiteRT graphs with weights in them, ready to run; `load_graph` picks TensorFlow where LiteRT can't run one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.graph import Constant, Graph, LoadedGraph
from actor_learner.policy.tensorflow_graph import TensorFlowGraph
from actor_learner.system.keras_import import silent_stderr
from actor_learner.system.types import Array

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter


def load_graph(graph: Graph, exported: ExportedPolicy, weights: Array) -> LoadedGraph:
    """Return a graph whose weights are views on the flat vector `weights`."""
    ends = np.cumsum([math.prod(shape) for shape in exported.weight_shapes], dtype=np.int64)
    places = zip(ends, exported.weight_shapes, strict=True)
    views = [weights[end - math.prod(shape) : end].reshape(shape) for end, shape in places]
    kind = LiteRTGraph if graph.format == "litert" else TensorFlowGraph
    return kind(graph, views, exported.input_names, exported.batch_size)


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
        names = enumerate(self._input_names)
        self._input_indices = [(position, numbers[name]) for position, name in names if name in numbers]
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
