"""Graphs: as bytes with the places of their weights, and loaded, ready to run."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np

from actor_learner.system.types import Array


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
