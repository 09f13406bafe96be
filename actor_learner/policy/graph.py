"""A graph as bytes, with the places of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Constant:
    """The bytes of a LiteRT graph that hold one weight: transposed, then times `factor`, as float32."""

    weight: int
    offset: int
    permutation: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Graph:
    """A graph for a fixed batch size. Its weights are constants inside it, inputs, or both.

    Its other inputs are those of `ExportedPolicy.input_names` that it uses. The inputs for weights are called
    `weight_<index>`.
    """

    content: bytes
    """A LiteRT flatbuffer, or a TensorFlow GraphDef."""
    format: Literal["litert", "tensorflow"]
    outputs: tuple[str, ...]
    """Names of the output tensors. Several outputs may share a name: the converter joins equal ones."""
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]
    """Indices of the weights that are inputs."""
    resizable: bool
    """True if the graph also computes correctly at other batch sizes."""
